"""`terngrad model`: what a step takes on clusters that need not be there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from terngrad import from_spec
from terngrad.cli import options
from terngrad.errors import ConfigurationError
from terngrad.perf import (
    Line,
    Link,
    ParameterInfo,
    Prediction,
    Served,
    break_even,
    default_plan,
    describe,
    paper,
)
from terngrad.perf.choice import PLAIN, PLAIN_FP16
from terngrad.perf.diagnosis import in_bits, predict_all
from terngrad.perf.probes import Codec
from terngrad.perf.saved import Saved
from terngrad.recipes import RECIPES
from terngrad.report import write_chart
from terngrad.train import split_methods

MOST_WORKERS = 1 << 14
USUAL_NET, USUAL_CLUSTER = "alexnet", "paper-ethernet"
PAPER_NOTE = (
    "fp32, fp16 and terngrad-paper are summed on their way by a collective that takes account of nodes, as in the "
    "paper's model; other methods go as this package sends them, from every worker to every other one."
)
PAPER_METHODS = ["fp32", "fp16", "terngrad-paper", "terngrad", "sdagc"]


def model(
    net: Annotated[
        str | None, typer.Option(help=f"One of the paper's: {', '.join(paper.BATCH)}; {USUAL_NET} if not given.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help=f"{' or '.join(paper.CLUSTERS)}; {USUAL_CLUSTER} if not given.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A step that `terngrad doctor --save` measured, instead of net and cluster."),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="RATE[@LATENCY]", help="Between nodes, such as 10gbit or 100mbit@30ms, instead of its own."
        ),
    ] = None,
    servers: Annotated[
        int,
        typer.Option(min=0, help="Parameter servers, each on a node of its own; 0: workers average among themselves."),
    ] = 0,
    workers: Annotated[str, typer.Option(help="A range, taken by powers of two, or a list.")] = "1..512",
    methods: Annotated[
        str | None,
        typer.Option(
            help='Specs; "terngrad-paper" is TernGrad as the paper models it. By default some of all kinds, of a '
            "profile all that it has."
        ),
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the throughput, as SVG.")] = None,
    json: options.Json = False,
) -> None:
    """Predict throughput, speed-up and what bounds it, on clusters that need not be there.

    By arithmetic alone: docs/performance-model.md derives it, and says what was calibrated.
    """
    counts, between = parse_workers(workers), parse_link(link) if link else None
    names = split_methods(methods) if methods else None
    if figure is not None:
        options.check_folder("--figure", figure)
    if profile and (net or cluster):
        raise ConfigurationError(
            f"--profile with {'--net' if net else '--cluster'}: a profile has a step and nodes of its own; pass one"
        )
    if profile:
        source = _of_profile(profile, between, names, servers)
    else:
        source = _of_paper(net or USUAL_NET, cluster or USUAL_CLUSTER, between, names, servers)
    rows = [row for name in source.names for row in _rows(source, name, counts)]
    if figure is not None:
        curves = {
            name: [(row["workers"], row["examples_per_s"]) for row in rows if row["method"] == name]
            for name in source.names
        }
        write_chart(curves, figure, source.title, f"{source.unit} a second")
    if json:
        options.write_json({"source": source.title, "points": rows, "figure": str(figure) if figure else None})
    else:
        _print(rows, counts, source, f"{source.title}, {source.unit} a second and what bounds them")


@dataclass(frozen=True)
class _Source:
    """Where predictions come from."""

    title: str
    unit: str  # of throughput
    batch: int  # of one worker: how many of those a step is
    names: list[str]
    least_workers: int  # from which on there is a link between nodes
    predict: Callable[[str, int], Prediction]  # a method's step on so many workers
    note: str = ""


def _of_paper(net: str, cluster: str, between: Link | None, names: list[str] | None, servers: int) -> _Source:
    parameters = parameters_of(net)

    def predict(name: str, count: int) -> Prediction:
        return paper.predict(cluster, net, parameters, name, count, between, servers)

    title = f"{net}, {cluster}" + (f" at {_text(between)}" if between else "") + _by(servers)
    note = "" if servers else PAPER_NOTE
    names = names or PAPER_METHODS
    return _Source(title, "images", paper.BATCH.get(net, 1), names, paper.GPUS_OF_A_NODE + 1, predict, note)


def _of_profile(path: Path, between: Link | None, names: list[str] | None, servers: int) -> _Source:
    """With as many workers in every node as there were, the same codecs, and the same links unless others are given."""
    saved = Saved.read(path)
    plan = default_plan(saved.profile)
    own = saved.cluster.between
    if between is None and math.isinf(own.bytes_per_s):
        raise ConfigurationError(
            f"--profile {path}: it was measured on one rank, which has no link; pass --link, such as --link 1gbit"
        )
    overheads = saved.overheads_elsewhere if between else saved.overheads
    at = replace(between, cpu_s=own.cpu_s, busy_s=own.busy_s) if between else own
    known = ["fp32", *(() if servers else (PLAIN_FP16,)), *(spec for spec in saved.codecs if spec != "fp32")]
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ConfigurationError(
            f"--methods {','.join(unknown)}: {path} has {', '.join(known)}; pass some of these, or run `terngrad "
            "doctor --methods ... --save` again"
        )

    def predict(name: str, count: int) -> Prediction:
        devices = min(count, saved.cluster.devices)
        if count % devices:
            raise ConfigurationError(f"--workers {count}: nodes have {devices} each; pass a multiple of that")
        there = replace(saved.cluster, num_nodes=count // devices, devices=devices, between=at)
        if servers:
            codec = saved.codecs.get(name, Codec(Line(), Line(), Line()))
            overhead_s = overheads.get(name, overheads.get(PLAIN, 0.0))
            sending = Served(from_spec(name), "", *codec.figures, overhead_s, num_servers=servers)
            return Prediction(saved.profile, plan, sending, there, saved.contention)
        codecs = {name: (from_spec(name), saved.codecs[name])} if name not in ("fp32", PLAIN_FP16) else {}
        found = predict_all(saved.profile, there, codecs, saved.contention, saved.cast_s, overheads)
        return found[PLAIN if name == "fp32" else name]

    return _Source(
        f"{path.name}, {_text(at)}{_by(servers)}",
        "steps of a worker",
        1,
        names or known,
        saved.cluster.devices + 1,
        predict,
    )


def _by(servers: int) -> str:
    return f", {servers} parameter servers" if servers else ""


def _text(link: Link) -> str:
    return f"{in_bits(link.bytes_per_s)} and {1e3 * link.latency_s:.3g} ms"


def parse_link(text: str) -> Link:
    """A rate, and a latency of 0.1 ms if no other follows."""
    number = r"(\d+\.?\d*)"
    found = re.fullmatch(rf"{number}([kmg])bit(?:@{number}(us|ms|s))?", text)
    rate = float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]] if found else 0.0
    if found is None or rate == 0:
        raise ConfigurationError(
            f"--link {text!r}: pass a rate such as 10gbit or 100mbit, and if it matters a latency, as in 100mbit@30ms"
        )
    latency = float(found[3]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[4]] if found[3] else 1e-4
    return Link.of(rate, latency)


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


def _rows(source: _Source, name: str, counts: Sequence[int]) -> list[dict[str, Any]]:
    return [_figures(source, name, source.predict(name, count), source.predict("fp32", count)) for count in counts]


def _figures(source: _Source, name: str, found: Prediction, base: Prediction) -> dict[str, Any]:
    count = found.cluster.num_workers
    rate = None
    if count >= source.least_workers and name != "fp32":
        rate = break_even(found.profile, found.plan, found.sending, base.sending, found.cluster, found.contention)
    return {
        "method": name,
        "workers": count,
        "examples_per_s": count * source.batch / found.step_s,
        "step_s": found.step_s,
        "speedup": base.step_s / found.step_s,
        "bound": found.bound,
        "bytes_sent": found.bytes_sent,
        "pays_below_bits_per_s": None if rate is None or math.isinf(rate) else 8 * rate,
        "always_pays": rate is not None and math.isinf(rate),
    }


def _print(rows: Sequence[dict[str, Any]], counts: Sequence[int], source: _Source, title: str) -> None:
    names = source.names
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
            cells.append(f"{row['examples_per_s']:,.{0 if row['examples_per_s'] >= 10 else 2}f}{gain} {row['bound']}")
        table.add_row(f"{count:,}", *cells)
    table.add_row(f"{counts[-1]:,}: pays below", *(_pays(by_key[name, counts[-1]]) for name in names))
    options.console().print(table)
    if source.note:
        options.console().print(source.note, highlight=False)


def _pays(row: dict[str, Any]) -> str:
    """On the largest number of workers."""
    if row["always_pays"]:
        return "any rate"
    rate = row["pays_below_bits_per_s"]
    return "-" if rate is None else f"{rate / 1e9:.3g} Gb/s"
