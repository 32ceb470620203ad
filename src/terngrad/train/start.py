"""Starting a run: in this process, in processes of our own, or as one rank of those that somebody else has started."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from terngrad.errors import ConfigurationError
from terngrad.lab import Lab
from terngrad.train.config import NO_LINK, TrainConfig, recipe_named
from terngrad.train.environment import describe_environment, now
from terngrad.train.job import Job, join, work, work_virtually
from terngrad.train.launch import launch
from terngrad.train.record import Watcher
from terngrad.train.runs import CONFIG, ENVIRONMENT, Run, check_new, read_run, write_json
from terngrad.train.tensorboard import check_tensorboard


def train(config: TrainConfig, folder: Path, watcher: Watcher) -> Run:
    """A new run, in this process or in processes that it starts, whichever the settings ask for."""
    check_new(folder)
    _check_needs(config)
    with _lab(config) as lab:
        _begin(config, folder)
        return _run(config, folder, watcher, lab)


def resume(folder: Path, watcher: Watcher) -> Run:
    """Goes on with a run from its last checkpoint."""
    config = _unfinished(folder)
    _check_needs(config)
    with _lab(config) as lab:
        _note_resumed(folder)
        return _run(config, folder, watcher, lab)


@contextlib.contextmanager
def _lab(config: TrainConfig) -> Iterator[Lab | None]:
    if config.link == NO_LINK:
        yield None
    else:
        with Lab(num_hosts=config.num_processes, link=config.link) as lab:
            yield lab


def _run(config: TrainConfig, folder: Path, watcher: Watcher, lab: Lab | None) -> Run:
    if config.virtual_workers:
        work_virtually(Job(config, str(folder)), [watcher])
    else:
        launch(config, folder, watcher, lab)
    return read_run(folder)


def _check_needs(config: TrainConfig) -> None:
    """Reads the data once, so that it is there when the workers want it all at the same time."""
    check_tensorboard(config)
    task = recipe_named(config.recipe).load(Path(config.data) if config.data else None)
    task.steps_per_epoch(config.batch)  # refuses a batch that the data cannot fill


def _begin(config: TrainConfig, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, config.to_json())
    write_json(folder / ENVIRONMENT, {**describe_environment(), "resumed": []})


def _unfinished(folder: Path) -> TrainConfig:
    """The settings of a run that is to go on."""
    run = read_run(folder)
    if run.end is not None:
        raise ConfigurationError(f"--resume {folder}: this run has come to its end, at step {run.end['step']}")
    return TrainConfig.from_json(run.config)


def _note_resumed(folder: Path) -> None:
    before = read_run(folder).environment
    again = {"date": now(), "command": sys.argv}
    write_json(folder / ENVIRONMENT, {**before, "resumed": [*before.get("resumed", []), again]})


# As a rank that somebody else has started


def is_rank() -> bool:
    """Whether somebody else (torchrun, the lab) has started this process as one of several ranks."""
    return "RANK" in os.environ


def train_as_rank(config: TrainConfig, folder: Path, watcher: Watcher) -> Run | None:
    """A new run, as this rank. Rank 0 says in which folder; it alone gets the run."""

    def open_run() -> Job:
        check_new(folder)
        _check_needs(config)
        _begin(config, folder)
        return Job(config, str(folder.absolute()))

    return _work_as_rank(config, open_run, watcher)


def resume_as_rank(folder: Path, watcher: Watcher) -> Run | None:
    """Goes on with a run, as this rank."""
    config = _unfinished(folder)

    def open_run() -> Job:
        _check_needs(config)
        _note_resumed(folder)
        return Job(config, str(folder.absolute()))

    return _work_as_rank(config, open_run, watcher)


def _work_as_rank(config: TrainConfig, open_run: Callable[[], Job], watcher: Watcher) -> Run | None:
    _check_world(config)
    join(config, "")
    first = dist.get_rank() == 0
    job = _told_by_the_first(open_run if first else None)
    work(job, [watcher] if first else [])
    return read_run(job.folder) if first else None


def _check_world(config: TrainConfig) -> None:
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigurationError(
            f"RANK is set, so this is one of several ranks, but {', '.join(missing)} is not; start it with torchrun or "
            "`terngrad lab`, or unset RANK"
        )
    if config.virtual_workers or config.link != NO_LINK:
        option = "virtual-workers" if config.virtual_workers else "link"
        raise ConfigurationError(f"--{option} in one of several ranks (RANK is set): leave it out, or unset RANK")
    world_size = int(os.environ["WORLD_SIZE"])
    if world_size != config.num_processes:
        raise ConfigurationError(
            f"--workers {config.workers} and --servers {config.servers}, but {world_size} ranks were started; "
            f"start {config.num_processes}, or leave --workers out"
        )


def _told_by_the_first(open_run: Callable[[], Job] | None) -> Job:
    """The job as rank 0 has opened it; what that cannot open, all ranks refuse."""
    told: list[Any] = [None]
    if open_run is not None:
        try:
            told = [open_run().to_json()]
        except ConfigurationError as error:
            told = [error]
    dist.broadcast_object_list(told)
    if isinstance(told[0], ConfigurationError):
        raise told[0]
    return Job.from_json(told[0])
