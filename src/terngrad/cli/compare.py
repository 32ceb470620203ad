"""`terngrad compare`: several methods on one recipe, one after the other, and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from terngrad.cli import options
from terngrad.cli.tables import print_figures
from terngrad.report import write_report
from terngrad.train import (
    TrainConfig,
    check_comparison,
    default_folder,
    figures_of,
    split_methods,
    without_lab_if_refused,
)
from terngrad.train import compare as run_all


def compare(
    recipe: options.Recipe,
    methods: Annotated[
        str,
        typer.Option(
            metavar="SPECS",
            help='Methods, separated by commas: "fp32,powersgd:rank=2,terngrad:clip=2,block=512". The options of a '
            "method follow it; see `terngrad train --help` for the methods.",
        ),
    ] = "fp32,terngrad",
    workers: options.Workers = None,
    link: options.Link = None,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Where the lab is not allowed, go on without a limit on the link.")
    ] = False,
    servers: options.Servers = None,
    virtual_workers: options.VirtualWorkers = None,
    vectorize: options.Vectorize = None,
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
        typer.Option(metavar="FOLDER", help="For the runs' folders; runs/RECIPE-compare-<date-time> if not given."),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report of all runs there.")] = None,
    log_every: options.LogEvery = None,
    eval_every: options.EvalEvery = None,
    checkpoint_every: options.CheckpointEvery = None,
    measure_every: options.MeasureEvery = None,
    threads: options.Threads = None,
    timeout: options.Timeout = None,
    tensorboard: options.Tensorboard = False,
    json: options.Json = False,
) -> None:
    """Train a recipe once with each of several methods, and compare quality, bytes and time.

    All else is the same for all: the same data in the same order, the same first weights, a lab of its own for each.
    """
    settings = {
        "workers": workers, "link": link, "servers": servers, "virtual_workers": virtual_workers,
        "vectorize": vectorize, "steps": steps, "batch": batch, "lr": lr,
        "momentum": momentum, "weight_decay": weight_decay, "clip_norm": clip_norm, "update": optimizer,
        "schedule": schedule, "seed": seed, "exchange": exchange,
        "data": str(data.absolute()) if data else None, "log_every": log_every, "eval_every": eval_every,
        "checkpoint_every": checkpoint_every, "measure_every": measure_every, "threads": threads,
        "timeout_s": timeout, "tensorboard": tensorboard or None,
    }  # fmt: skip
    configs = [TrainConfig.of(recipe, method, **settings) for method in split_methods(methods)]
    check_comparison(configs)
    if fallback:
        configs = without_lab_if_refused(configs, options.say)
    runs = run_all(configs, out or default_folder(recipe, "compare"))
    rows = [figures_of(run) for run in runs]
    used = configs[0]
    if json:
        options.write_json({"recipe": recipe, "workers": used.num_ranks, "link": used.link, "runs": rows})
    else:
        print_figures(rows, f"{recipe}: {used.steps} steps, {used.setting}", timed=not used.virtual_workers)
    if report is not None:
        options.say(f"The report is {write_report(runs, report)}")
