"""What the benchmarks share: alternating runs, medians and spreads of pairs, provenance, tables and JSON.

Machines drift, so candidates are timed in turn within one run, and what is reported is the ratio of each pair.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

import terngrad

HERE = Path(__file__).resolve().parent


def _cpu_seconds() -> dict[str, float]:
    """Seconds for which all CPUs have worked, were withheld by a hypervisor, and worked for this program."""
    columns = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, stolen = (int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in columns[:8])
    mine = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"busy": user + nice + system + irq + softirq, "stolen": stolen, "mine": mine, "now": time.monotonic()}


def _git(*command: str) -> str:
    if shutil.which("git") is None:
        return "unknown"
    done = subprocess.run(["git", *command], cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _source() -> dict[str, str]:
    """The commit, and what differs from it: tracked files and new ones, except for results."""
    changes = _git("status", "--porcelain", "--", ":/", ":(exclude,top,glob)**/results/**")
    return {"commit": _git("rev-parse", "HEAD"), "changes": changes}


# As the program starts: while it runs, others may commit.
_START = _cpu_seconds()
_START_SOURCE = _source()


def quietness() -> dict[str, float]:
    """Which parts of the machine's CPU time went to others since the program started: how far to trust the times."""
    passed = {key: value - _START[key] for key, value in _cpu_seconds().items()}
    capacity = passed["now"] * (os.cpu_count() or 1)
    return {
        "used_by_others": round(max(0.0, passed["busy"] - passed["mine"]) / capacity, 3),
        "stolen": round(passed["stolen"] / capacity, 3),
    }


@dataclass(frozen=True)
class Case:
    """Something to time, what it wrote, and what puts things back before each run, untimed."""

    run: Callable[[], object]
    outputs: Callable[[], list[Tensor]]
    prepare: Callable[[], object] = lambda: None


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    repeats: int,
    prepare: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, list[float]]:
    """Seconds of every candidate in every repeat; each repeat times all of them once. One more repeat warms up.

    What `prepare` has for a candidate is called before each of its runs, and not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(-1, repeats):
        for name, run in candidates.items():
            if prepare is not None and name in prepare:
                prepare[name]()
            start = time.perf_counter()
            run()
            if repeat >= 0:
                times[name].append(time.perf_counter() - start)
    return times


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * [values[0]]
    return {"median": middle, "low": low, "high": high}


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of the ratio of each pair, with the number of pairs."""
    pairs = [a / b for a, b in zip(numerators, denominators, strict=True)]
    return {**spread(pairs), "pairs": len(pairs)}


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    """Everything needed to say which program ran where, and to run it again on the same data."""
    arguments = {name: value for name, value in vars(args).items() if name not in ("json", "data")}  # local paths
    return {
        "commit": _START_SOURCE["commit"],
        "modified": bool(_START_SOURCE["changes"]),
        "changed_meanwhile": _source() != _START_SOURCE,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "terngrad": terngrad.__version__,
            "kernel": f"{platform.system()} {platform.release()}",
        },
        "backend": terngrad.backend(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "cpu_time": quietness(),
        "arguments": arguments,
    }


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def write_json(path: Path | None, result: Mapping[str, Any]) -> None:
    """Writes a result where one was asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A Markdown table on standard output, with the first column to the left."""
    table = Table(box=box.MARKDOWN)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    print(title)
    Console(width=200).print(table)


def verdict(value: float, target: float | None, *, at_least: bool = False) -> str:
    """Whether a target is met, in words; empty where there is none."""
    if target is None:
        return ""
    met = value >= target if at_least else value <= target
    return f"{'>=' if at_least else '<='} {target:g} {'met' if met else 'MISSED'}"
