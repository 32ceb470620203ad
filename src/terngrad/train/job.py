"""What the processes of a run are told, and what they do: join the others, then train or serve."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore

import terngrad as tg
from terngrad.recipes import Task
from terngrad.train.config import TrainConfig, recipe_named
from terngrad.train.loop import Trainer
from terngrad.train.record import Progress, Recorder, Watcher
from terngrad.train.tensorboard import tensorboard_watcher
from terngrad.train.virtual import OneProcess
from terngrad.train.workers import DDPWorker, Workers


@dataclass(frozen=True)
class Job:
    """What all processes of a run are told."""

    config: TrainConfig
    folder: str
    link: dict[str, Any] | None = None  # what the lab says of it
    rendezvous: str = ""  # a file in which the processes find each other; empty: by MASTER_ADDR and MASTER_PORT

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "config": self.config.to_json()}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Job:
        return cls(**{**found, "config": TrainConfig.from_json(found["config"])})


def make_model(config: TrainConfig) -> tuple[Task, nn.Module]:
    """The task, and the model as every rank starts with it."""
    recipe = recipe_named(config.recipe)
    task = recipe.load(Path(config.data) if config.data else None)
    torch.manual_seed(config.seed)
    return task, recipe.make_model(task)


def join(config: TrainConfig, rendezvous: str) -> None:
    """Becomes a rank of the process group; which one says the environment."""
    torch.set_num_threads(config.threads)
    meeting: dict[str, Any] = {}
    if rendezvous:
        meeting = {
            "store": FileStore(rendezvous, int(os.environ["WORLD_SIZE"])),
            "rank": int(os.environ["RANK"]),
            "world_size": int(os.environ["WORLD_SIZE"]),
        }
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=config.timeout_s), **meeting)


def work(job: Job, watchers: Sequence[Watcher] = ()) -> None:
    """Trains, or serves, as this rank of a process group that there is already."""
    config = job.config
    servers = tg.ParameterServers(config.servers) if config.servers else None
    if servers is not None and servers.is_server:
        servers.serve()
    else:
        task, module = make_model(config)
        group = servers.workers if servers is not None else None
        train(job, task, DDPWorker(config, task, module, group, servers), watchers)
    dist.destroy_process_group()


def work_virtually(job: Job, watchers: Sequence[Watcher] = ()) -> None:
    """Trains all workers in this process."""
    torch.set_num_threads(job.config.threads)
    task, module = make_model(job.config)
    train(job, task, OneProcess(job.config, task, module), watchers)


def train(job: Job, task: Task, workers: Workers, watchers: Sequence[Watcher]) -> None:
    """The whole run, from its first step or its last checkpoint on."""
    folder = Path(job.folder)

    def make_recorder(progress: Progress) -> Recorder:
        logs = [tensorboard_watcher(folder, progress.step)] if job.config.tensorboard else []
        return Recorder(folder, progress.metrics_bytes, [*watchers, *logs])

    with closing(Trainer(job.config, task, workers, folder, make_recorder, job.link)) as trainer:
        trainer.run()
    workers.close()
