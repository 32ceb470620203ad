"""`terngrad train`: one run, new or resumed, by workers it starts or as one of those that somebody else has started."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from terngrad.cli import options
from terngrad.cli.tables import print_figures
from terngrad.errors import ConfigurationError
from terngrad.train import (
    Run,
    TrainConfig,
    default_folder,
    figures_of,
    is_rank,
    read_run,
    resume_as_rank,
    show_progress,
    train_as_rank,
)
from terngrad.train import resume as resume_run
from terngrad.train import train as run_new


def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="What to train; `terngrad recipes` lists them.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help='"terngrad" (the default) with options such as "terngrad:block=512", "sdagc", "dgc" or "bf16"; '
            '"fp32", "fp16" and "powersgd:rank=R": torch\'s own; "none": no communication, for its speed.',
        ),
    ] = None,
    workers: options.Workers = None,
    link: options.Link = None,
    servers: options.Servers = None,
    virtual_workers: options.VirtualWorkers = None,
    vectorize: options.Vectorize = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with this run, exactly, from its last checkpoint.")
    ] = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    optimizer: options.Optimizer = None,
    lr: options.Lr = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    clip_norm: options.ClipNorm = None,
    schedule: options.Schedule = None,
    seed: options.Seed = None,
    exchange: options.Exchange = None,
    data: options.Data = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The run's folder; runs/RECIPE-METHOD-<date-time> if not given."),
    ] = None,
    log_every: options.LogEvery = None,
    eval_every: options.EvalEvery = None,
    checkpoint_every: options.CheckpointEvery = None,
    measure_every: options.MeasureEvery = None,
    threads: options.Threads = None,
    timeout: options.Timeout = None,
    tensorboard: options.Tensorboard = False,
    json: options.Json = False,
) -> None:
    """Train a recipe with several workers, and record the run in a folder.

    Starts the workers itself, on this machine or, with --link, each on a host of a lab. Where RANK is set, as torchrun
    and `terngrad lab` do, it is one of the workers.
    """
    settings = {
        "workers": workers, "link": link, "servers": servers, "virtual_workers": virtual_workers,
        "vectorize": vectorize, "steps": steps, "batch": batch, "lr": lr, "momentum": momentum,
        "weight_decay": weight_decay, "clip_norm": clip_norm, "update": optimizer,
        "schedule": schedule, "seed": seed, "exchange": exchange,
        "data": str(data.absolute()) if data else None, "log_every": log_every, "eval_every": eval_every,
        "checkpoint_every": checkpoint_every, "measure_every": measure_every, "threads": threads, "timeout_s": timeout,
        "tensorboard": tensorboard or None,
    }  # fmt: skip
    if resume is not None:
        _refuse({"RECIPE": recipe, "--method": method, "--out": out, **settings})
        run = _resume(resume)
    else:
        run = _begin(_config(recipe, method, settings), out)
    if run is not None:
        figures = figures_of(run)
        if json:
            options.write_json(figures)
        else:
            timed = not run.config["virtual_workers"]
            print_figures([figures], f"{run.config['recipe']}: {run.path}", timed)


def _config(recipe: str | None, method: str | None, settings: dict[str, Any]) -> TrainConfig:
    if recipe is None:
        raise ConfigurationError("no RECIPE given: `terngrad recipes` lists them; or --resume RUN")
    if is_rank() and settings["workers"] is None:
        settings["workers"] = int(os.environ.get("WORLD_SIZE", "1")) - (settings["servers"] or 0)
    return TrainConfig.of(recipe, method or "terngrad", **settings)


def _refuse(given: dict[str, Any]) -> None:
    """A run goes on with the settings it began with."""
    given = {**given, "optimizer": given.pop("update")}
    names = [name if name.isupper() else f"--{name.strip('-').removesuffix('_s').replace('_', '-')}"
             for name, value in given.items() if value is not None]  # fmt: skip
    if names:
        raise ConfigurationError(f"--resume goes on with the run's own settings; leave out {', '.join(names)}")


def _begin(config: TrainConfig, out: Path | None) -> Run | None:
    folder = out or default_folder(config.recipe, config.method)
    with _shown(config) as watcher:
        return train_as_rank(config, folder, watcher) if is_rank() else run_new(config, folder, watcher)


def _resume(folder: Path) -> Run | None:
    with _shown(TrainConfig.from_json(read_run(folder).config)) as watcher:
        return resume_as_rank(folder, watcher) if is_rank() else resume_run(folder, watcher)


def _shown(config: TrainConfig) -> AbstractContextManager[Callable[[dict[str, Any]], None]]:
    """Progress, on one rank only."""
    return show_progress(config) if os.environ.get("RANK", "0") == "0" else nullcontext(lambda event: None)
