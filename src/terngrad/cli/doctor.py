"""`terngrad doctor`: what a cluster is like, what is wrong with it, and whether compression would pay."""

from __future__ import annotations

import json as json_format
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import Tensor, nn

import terngrad as tg
from terngrad.cli import options
from terngrad.cli.own_model import load_own_model
from terngrad.errors import ConfigurationError
from terngrad.perf.diagnosis import codec_rates, described, in_bits, step_parts
from terngrad.perf.doctor import Examination, examine
from terngrad.perf.probes import measure_profile, sample_of
from terngrad.perf.profile import Profile
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
        if path is not None:
            options.check_folder(option, path)
    specs = split_methods(methods)
    module, loss_of, optimizer = (
        (*load_own_model(model), None) if model else _recipe(recipe, data, batch, rank, world_size)
    )
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


def _print(found: Examination) -> None:
    console = options.console()
    for line in _lines(found):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if found.profile is not None and found.codecs:
        console.print(_codecs(codec_rates(found.codecs, found.profile)))
    if found.predictions:
        console.print(_predictions(described(found.predictions)))
    console.print(found.verdict, highlight=False, markup=False, soft_wrap=True)


def _codecs(rates: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        "codecs, on gradients of this model", ("method", "encode, GB/s of fp32", "decode, GB/s", "fp32 to message")
    )
    for row in rates:
        speeds = [_in_gb(row[f"{does}_bytes_per_s"]) for does in ("encode", "decode")]
        table.add_row(row["method"], *speeds, f"{row['ratio']:.1f}")
    return table


def _in_gb(bytes_per_s: float | None) -> str:
    return "" if bytes_per_s is None else f"{bytes_per_s / 1e9:.3g}"


def _predictions(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("predicted, quickest first", ("method", "ms a step", "exposed", "MB sent", "bound by", "exchange"))
    for row in rows:
        table.add_row(
            row["method"], f"{1e3 * row['step_s']:,.1f}", f"{1e3 * row['exposed_s']:,.1f}",
            f"{row['bytes_sent'] / 1e6:,.3f}", row["bound"], row["exchange"],
        )  # fmt: skip
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    """Words to the left, numbers to the right."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("method", "bound by", "exchange") else "right")
    return table


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
        lines.append(_step(found.profile))
    lines += [f"{finding.what}: {finding.text}" for finding in found.findings] or ["nothing wrong was found"]
    return lines


def _step(profile: Profile) -> str:
    parts = step_parts(profile)
    forward, backward, update, first, half = (
        f"{1e3 * parts[name]:,.2f}" for name in ("forward_s", "backward_s", "update_s", "first_ready_s", "half_ready_s")
    )
    return (
        f"step without communication: {1e3 * profile.compute_s:,.2f} ms (forward {forward}, backward {backward}, "
        f"update {update}); {parts['gradients']} gradients of {parts['numel']:,} numbers, the first ready after "
        f"{first} ms of backward, half of the numbers after {half}"
    )
