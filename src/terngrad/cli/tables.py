"""Tables of results, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from terngrad.cli.options import console
from terngrad.train import metric_text


def print_figures(rows: Sequence[dict[str, Any]], title: str, timed: bool = True) -> None:
    """One line for each run: how good, how many bytes, how fast. Recipes for speed alone have no quality to show, and
    virtual workers no times: theirs are those of one process that computes all of them.
    """
    metric = rows[0]["metric"]
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    headings = [metric] if metric else []
    headings += ["bytes sent a step", "received", "ratio to fp32"]
    if timed:
        headings += ["ms a step"]
        headings += [f"s to {metric} {metric_text(metric, rows[0]['target'])}"] if metric else []
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*_cells(row), *(_times(row) if timed else ()))
    console().print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    quality = [metric_text(row["metric"], row["final"])] if row["metric"] else []
    return [
        row["method"],
        *quality,
        f"{row['bytes_sent_per_step']:,.0f}",
        f"{row['bytes_received_per_step']:,.0f}",
        f"{row['ratio']:.2f}" if row["ratio"] else "-",
    ]


def _times(row: dict[str, Any]) -> list[str]:
    return [f"{1e3 * row['median_step_s']:.1f}", *([_time_to_target(row)] if row["metric"] else [])]


def _time_to_target(row: dict[str, Any]) -> str:
    if row["best"] is None:  # never evaluated, or never finite
        return "-"
    seconds = row["seconds_to_target"]
    return "not reached" if seconds is None else f"{seconds:.1f}"
