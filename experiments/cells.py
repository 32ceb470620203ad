"""What the experiments on step times share: cells of a net, a number of hosts and a link, each one run of bench_hooks.

In a cell all methods take turns, `auto` among them, and beside every measured step stands the predicted one. Cells that
have a result are not measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BENCHMARK = HERE.parent / "benchmarks" / "bench_hooks.py"
RESULTS = HERE / "predicted-vs-measured" / "results" / "cells"
NETS = {"alexnet": 8, "resnet50": 4, "vgg-a": 2, "lenet-mnist": 32, "lstm-wikitext2": 8}  # and examples of a host
HOSTS = (2, 4)
LINKS = ("100mbit", "1gbit", "10gbit", "none")
NO_SYNC, PLAIN, AUTO = "no-sync", "ddp", "auto"
SINGLE = (
    PLAIN, "ddp-fp16", "fp16", "terngrad:codec=two-bit", "terngrad", "terngrad:codec=entropy", "sdagc",
)  # fmt: skip
TURNS = {"100mbit": (1, 4)}  # of each method, and the timed steps of one
USUAL_TURNS = (2, 4)
LARGE = ("alexnet", "vgg-a", "resnet50")
SMALL_TURNS = (4, 10)
LONGEST = ("vgg-a", 4, "100mbit")  # more than a minute for a dense step
LONGEST_TURNS = (1, 2)

Cell = tuple[str, int, str]


def read_options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the datasets, as for `terngrad train`")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--hosts", nargs="+", type=int, choices=HOSTS, default=HOSTS)
    parser.add_argument("--links", nargs="+", choices=LINKS, default=LINKS)
    parser.add_argument("--table", action="store_true", help="measure nothing, only write the table of what is there")
    return parser.parse_args()


def measured(options: argparse.Namespace) -> dict[Cell, dict[str, Any]]:
    """All cells that have a result in the end; those that were asked for are measured if they have none."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    found = {}
    for net, hosts, link in product(NETS, HOSTS, LINKS):
        path = RESULTS / f"{net}-{hosts}-{link}.json"
        wanted = net in options.nets and hosts in options.hosts and link in options.links
        if wanted and not options.table and not path.exists():
            _measure(net, hosts, link, path, options.data)
        if path.exists():
            found[net, hosts, link] = json.loads(path.read_text())
    return found


def _measure(net: str, hosts: int, link: str, path: Path, data: Path | None) -> None:
    turns, steps = _turns(net, hosts, link)
    command = [
        sys.executable, str(BENCHMARK), "--net", net, "--hosts", str(hosts), "--link", link, "--batch", str(NETS[net]),
        "--steps", str(turns * steps), "--steps-per-turn", str(steps), "--momentum", "0.9", "--predict",
        "--methods", NO_SYNC, *SINGLE, AUTO, "--timeout", "3600", "--json", str(path),
    ]  # fmt: skip
    subprocess.run([*command, "--data", str(data)] if data else command, check=True)


def _turns(net: str, hosts: int, link: str) -> tuple[int, int]:
    if (net, hosts, link) == LONGEST:
        return LONGEST_TURNS
    return TURNS.get(link, USUAL_TURNS) if net in LARGE else SMALL_TURNS


def seconds(result: dict[str, Any], method: str) -> float:
    value: float = result["methods"][method]["seconds"]["median"]
    return value


def commits(found: dict[Cell, dict[str, Any]]) -> list[str]:
    return sorted({result["provenance"]["commit"][:10] for result in found.values()})
