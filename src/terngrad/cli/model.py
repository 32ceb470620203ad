"""`terngrad model`: what a step takes on a cluster that is not there."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from terngrad.cli import options
from terngrad.errors import ConfigurationError
from terngrad.perf import ParameterInfo, Prediction, break_even, describe, paper
from terngrad.recipes import RECIPES
from terngrad.report import write_chart
from terngrad.train import split_methods

MOST_WORKERS = 1 << 14


def model(
    net: Annotated[str, typer.Option(help=f"One of the paper's: {', '.join(paper.BATCH)}.")] = "alexnet",
    cluster: Annotated[str, typer.Option(help=f"{' or '.join(paper.CLUSTERS)}.")] = "paper-ethernet",
    workers: Annotated[str, typer.Option(help="GPUs: a range, taken by powers of two, or a list.")] = "1..512",
    methods: Annotated[
        str, typer.Option(help='Specs; "terngrad-paper" is TernGrad as the paper models it.')
    ] = "fp32,fp16,terngrad-paper,terngrad,sdagc",
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the throughput, as SVG.")] = None,
    json: options.Json = False,
) -> None:
    """Predict throughput, speed-up and what bounds it, on the paper's clusters.

    By arithmetic alone: docs/performance-model.md derives it, and says what was calibrated.
    """
    counts, names = parse_workers(workers), split_methods(methods)
    parameters = parameters_of(net)
    found = {name: [paper.predict(cluster, net, parameters, name, count) for count in counts] for name in names}
    rows = [
        _figures(net, name, p, base) for name in names for p, base in _beside(found, name, cluster, net, parameters)
    ]
    if figure is not None:
        curves = {
            name: [(row["workers"], row["images_per_s"]) for row in rows if row["method"] == name] for name in names
        }
        write_chart(curves, figure, f"{net}, {cluster}", "images a second")
    if json:
        options.write_json({"net": net, "cluster": cluster, "points": rows, "figure": str(figure) if figure else None})
    else:
        _print(rows, counts, names, f"{net}, {cluster}, images a second and what bounds them")


def parse_workers(text: str) -> list[int]:
    """The numbers of a range such as "1..512", doubled from its first, or of a list such as "1,8,512"."""
    found = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if found is not None:
        first, last = int(found[1]), int(found[2])
        numbers = [first * 2**k for k in range(32) if first and first * 2**k <= last]
    else:
        numbers = [int(part) for part in text.split(",") if part.strip().isdecimal()]
    if not numbers or (len(numbers) != text.count(",") + 1 and found is None) or max(numbers) > MOST_WORKERS:
        raise ConfigurationError(
            f"--workers {text!r}: pass a range such as 1..512, which doubles from its first number, or a list such as "
            f"1,8,512, of at most {MOST_WORKERS:,}"
        )
    return numbers


def parameters_of(net: str) -> list[ParameterInfo]:
    """Of a net that is not made: its shapes alone."""
    if net not in paper.BATCH:
        raise ConfigurationError(f"--net {net!r}: the paper has {', '.join(paper.BATCH)}; pass one of these")
    with torch.device("meta"):
        return describe(dict(RECIPES[net].build(1000).named_parameters()))


def _beside(
    found: dict[str, list[Prediction]], name: str, cluster: str, net: str, parameters: Sequence[ParameterInfo]
) -> list[tuple[Prediction, Prediction]]:
    """Every prediction with that of fp32 on as many workers."""
    base = found.get("fp32") or [
        paper.predict(cluster, net, parameters, "fp32", p.cluster.num_workers) for p in found[name]
    ]
    return list(zip(found[name], base, strict=True))


def _figures(net: str, name: str, found: Prediction, base: Prediction) -> dict[str, Any]:
    count = found.cluster.num_workers
    rate = None
    if count > paper.GPUS_OF_A_NODE and name != "fp32":
        rate = break_even(found.profile, found.plan, found.sending, base.sending, found.cluster)
    return {
        "method": name,
        "workers": count,
        "images_per_s": count * paper.BATCH[net] / found.step_s,
        "step_s": found.step_s,
        "speedup": base.step_s / found.step_s,
        "bound": found.bound,
        "bytes_sent": found.bytes_sent,
        "pays_below_bits_per_s": None if rate is None or math.isinf(rate) else 8 * rate,
        "always_pays": rate is not None and math.isinf(rate),
    }


def _print(rows: Sequence[dict[str, Any]], counts: Sequence[int], names: Sequence[str], title: str) -> None:
    by_key = {(row["method"], row["workers"]): row for row in rows}
    table = Table(title=title, title_justify="left")
    table.add_column("workers", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    for count in counts:
        cells = []
        for name in names:
            row = by_key[name, count]
            gain = f" {row['speedup']:.2f}x" if name != "fp32" else ""
            cells.append(f"{row['images_per_s']:,.0f}{gain} {row['bound']}")
        table.add_row(f"{count:,}", *cells)
    table.add_row("pays below", *(_pays(by_key[name, counts[-1]]) for name in names))
    options.console().print(table)


def _pays(row: dict[str, Any]) -> str:
    """On the largest number of workers."""
    if row["always_pays"]:
        return "any rate"
    rate = row["pays_below_bits_per_s"]
    return "-" if rate is None else f"{rate / 1e9:.3g} Gb/s"
