"""`terngrad doctor`: what a cluster is like, what is wrong with it, and whether compression would pay."""

from __future__ import annotations

import importlib
import json as json_format
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from torch import Tensor, nn

import terngrad as tg
from terngrad.cli import options
from terngrad.errors import ConfigurationError
from terngrad.perf.diagnosis import described, in_bits
from terngrad.perf.doctor import Examination, examine
from terngrad.perf.probes import measure_profile, sample_of
from terngrad.recipes import RECIPES
from terngrad.report import write_examination
from terngrad.train import Outcome, make_optimizer, split_methods

DEFAULT_METHODS = ",".join(tg.Auto().candidates)


def doctor(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Whose step to look at.")] = "digits",
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Look at your own instead: a function that gives a model, a loss of outputs and targets, and a batch "
            "of inputs and targets.",
        ),
    ] = None,
    methods: Annotated[str, typer.Option(help="What to consider.")] = DEFAULT_METHODS,
    batch: options.Batch = None,
    data: options.Data = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help='Keep what was measured, for `terngrad model` and for "auto".')
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page of it.")] = None,
    json: options.Json = False,
) -> None:
    """Measure the links between ranks and the speed of each, say what is wrong, and whether compression would pay.

    Under torchrun, or on the hosts of a lab: `terngrad lab --hosts 2 --link 100mbit -- terngrad doctor`. Alone it looks
    at this machine and the model. It takes about a minute.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    for option, path in (("--save", save), ("--html", html)):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigurationError(
                f"{option} {str(path)!r}: there is no folder {path.absolute().parent}; make it first"
            )
    specs = split_methods(methods)
    module, loss_of, optimizer = _own_model(model) if model else _recipe(recipe, data, batch, rank, world_size)
    found = examine(
        rank,
        world_size,
        {spec: tg.from_spec(spec) for spec in specs},
        lambda slowest: (measure_profile(module, loss_of, optimizer, slowest=slowest), sample_of(module)),
        tg.attach,
    )
    if rank == 0:
        if save is not None:
            save.write_text(json_format.dumps(found.describe(), indent=1) + "\n")
        if html is not None:
            write_examination(found.describe(), html)
        if json:
            options.write_json(found.describe())
        else:
            _print(found)
    if any(finding.fatal for finding in found.findings):
        raise typer.Exit(Outcome.FAILED)


def _recipe(
    name: str, data: Path | None, batch: int | None, rank: int, world_size: int
) -> tuple[nn.Module, Callable[[], Tensor], torch.optim.Optimizer | None]:
    if name not in RECIPES:
        raise ConfigurationError(f"recipe {name!r}: there is {', '.join(RECIPES)}; pass one of these")
    recipe = RECIPES[name]
    task = recipe.load(data)
    torch.manual_seed(0)
    module = recipe.make_model(task)
    # The recipe's own is made to fit the number of ranks; one that was asked for must do so.
    fitting = recipe.batch // world_size * world_size or world_size
    inputs, targets = task.batch(0, 0, rank, world_size, fitting if batch is None else batch)
    optimizer = make_optimizer(list(module.parameters()), replace(recipe.optimizer, lr=0.0))
    return module, lambda: task.loss(module(inputs), targets), optimizer


def _own_model(name: str) -> tuple[nn.Module, Callable[[], Tensor], torch.optim.Optimizer | None]:
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigurationError(f"--model {name!r}: pass MODULE:FUNCTION, such as my_code:make")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"--model {name!r}: {error}; MODULE must be one that can be imported here") from error
    made = function()
    wanted = "it must return a model, a loss of outputs and targets, and a batch, a pair of inputs and targets"
    if not isinstance(made, (tuple, list)) or len(made) != 3:
        raise ConfigurationError(f"--model {name!r}: {wanted}, but gave {type(made).__name__}")
    module, loss, batch = made
    if not isinstance(module, nn.Module) or not callable(loss):
        kinds = f"{type(module).__name__} and {type(loss).__name__}"
        raise ConfigurationError(f"--model {name!r}: {wanted}, but model and loss are {kinds}")
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ConfigurationError(f"--model {name!r}: {wanted}, but the batch is {type(batch).__name__}")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigurationError(f"--model {name!r}: {wanted}, but no parameter of the model wants a gradient")
    inputs, targets = batch
    return module, lambda: loss(module(inputs), targets), None


def _print(found: Examination) -> None:
    console = options.console()
    for line in _lines(found):
        console.print(line, highlight=False, markup=False)
    if found.predictions:
        table = Table(title="predicted, quickest first", title_justify="left")
        for heading in ("method", "ms a step", "exposed", "MB sent", "bound by", "exchange"):
            table.add_column(heading, justify="left" if heading in ("method", "bound by", "exchange") else "right")
        for row in described(found.predictions):
            table.add_row(
                row["method"], f"{1e3 * row['step_s']:,.1f}", f"{1e3 * row['exposed_s']:,.1f}",
                f"{row['bytes_sent'] / 1e6:,.3f}", row["bound"], row["exchange"],
            )  # fmt: skip
        console.print(table)
    console.print(found.verdict, highlight=False, markup=False)


def _lines(found: Examination) -> Sequence[str]:
    lines = []
    for place in found.places:
        where = f"{place.interface} {place.address}" if place.address else "no address"
        lines.append(f"rank {place.rank}: {place.host}, {where}, {len(place.cores)} cores, {place.threads} threads")
    lines += [
        f"  copies {speed.copy_bytes_per_s / 1e9:.1f} GB/s, arithmetic {1e3 * speed.compute_s:.2f} ms (rank {rank})"
        for rank, speed in enumerate(found.speeds)
    ]
    lines += [
        f"rank {wire.sender} to {wire.receiver}: {in_bits(wire.bytes_per_s)}, {1e6 * wire.latency_s:,.0f} us"
        for wire in found.wires
    ]
    if found.profile is not None:
        lines.append(
            f"step without communication: {1e3 * found.profile.compute_s:,.1f} ms, {found.profile.numel:,} parameters"
        )
    lines += [f"{finding.what}: {finding.text}" for finding in found.findings] or ["nothing wrong was found"]
    return lines
