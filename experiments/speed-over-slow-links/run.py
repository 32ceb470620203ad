"""How long a training step of AlexNet, VGG-A and ResNet-50 is over links of 100 Mb/s, 1 Gb/s and 10 Gb/s.

Every cell (net, hosts, link) is one run of benchmarks/bench_hooks.py, in which all methods take turns. Cells that have
a result are not measured again. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BENCHMARK = HERE.parents[1] / "benchmarks" / "bench_hooks.py"
NETS = {"alexnet": 8, "resnet50": 4, "vgg-a": 2}  # and how many images each host takes in a step
HOSTS = (2, 4)
LINKS = ("100mbit", "1gbit", "10gbit")
METHODS = ("no-sync", "ddp", "ddp-fp16", "powersgd-1", "powersgd-4", "terngrad", "terngrad:codec=entropy")
EXCHANGES = ("terngrad@all-gather", "terngrad@two-shot")  # where there is a choice: with more than two hosts
TURNS = {"100mbit": (1, 3), "1gbit": (2, 3), "10gbit": (2, 3)}  # of each method, and the timed steps of one
TOO_LARGE = {("vgg-a", 4): ("powersgd-1", "powersgd-4")}  # their states take four hosts more than 24 GB


# Sparse methods take the optimizer's momentum over, so they are compared where there is one, and over more steps:
# residuals have to fill first. Once as DDP is by default, and once with its gradient_as_bucket_view.
SPARSE = ("no-sync", "ddp-silent", "terngrad:codec=entropy", "sdagc", "sdagc:threshold=5")
SPARSE_TURNS = (2, 40)
SPARSE_RUNS: dict[str, tuple[str, ...]] = {"sparse": (), "sparse-views": ("--bucket-view",)}


def measure(net: str, hosts: int, link: str, path: Path) -> None:
    methods = [name for name in METHODS if name not in TOO_LARGE.get((net, hosts), ())]
    methods += EXCHANGES if hosts > 2 else ()
    _measure(net, hosts, link, path, methods, *TURNS[link])


def measure_sparse(path: Path, *more: str) -> None:
    _measure("alexnet", 2, "100mbit", path, SPARSE, *SPARSE_TURNS, "--momentum", "0.9", *more)


def _measure(
    net: str, hosts: int, link: str, path: Path, methods: Sequence[str], turns: int, steps: int, *more: str
) -> None:
    command = [
        sys.executable, str(BENCHMARK), "--net", net, "--hosts", str(hosts), "--link", link,
        "--batch", str(NETS[net]), "--steps", str(turns * steps), "--steps-per-turn", str(steps),
        "--methods", *methods, "--predict", "--timeout", "3600", "--json", str(path), *more,
    ]  # fmt: skip
    subprocess.run(command, check=True)


def write_sparse_table(found: dict[str, dict[str, Any]]) -> None:
    """Milliseconds, those of the step without communication as one, and megabytes that a host sent."""
    columns = ["run", "method", "ms", "of no-sync", "of ddp-silent", "MB sent"]
    lines = [columns, ["---", "---", *["---:"] * (len(columns) - 2)]]
    for run, result in found.items():
        alone, silent = (result["methods"][name]["seconds"]["median"] for name in SPARSE[:2])
        for name in SPARSE:
            one = result["methods"][name]
            seconds, sent = one["seconds"]["median"], one["bytes_per_step"]["socket_sent"]
            ratios = [f"{seconds / base:.2f}x" for base in (alone, silent)]
            lines.append([run, name, f"{1e3 * seconds:,.0f}", *ratios, f"{sent / 1e6:.3f}"])
    head = "AlexNet, two hosts, 100 Mb/s, SGD with momentum 0.9; with views: DDP's gradient_as_bucket_view."
    _write(HERE / "results" / "sparse.md", head, lines, found.values())


def row(result: dict[str, Any]) -> list[str]:
    """Milliseconds of every method, and TernGrad's speed-ups."""
    methods = result["methods"]
    own = methods["terngrad"]
    times = [
        f"{1e3 * methods[name]['seconds']['median']:,.0f}" if name in methods else "" for name in METHODS + EXCHANGES
    ]
    ratios = [f"{own['speedup'][base]['median']:.1f}x" for base in ("ddp", "ddp-fp16")]
    alone = own["seconds"]["median"] / methods["no-sync"]["seconds"]["median"]
    return [*times, *ratios, f"{alone:.2f}x"]


def write_table(found: dict[tuple[str, int, str], dict[str, Any]]) -> None:
    columns = ["net", "hosts", "link", *METHODS, *EXCHANGES, "faster than ddp", "than ddp-fp16", "of no-sync"]
    lines = [columns, ["---", "---:", *["---:"] * (len(columns) - 2)]]
    lines += [[net, str(hosts), link, *row(result)] for (net, hosts, link), result in found.items()]
    _write(HERE / "results" / "table.md", "Milliseconds for a step (medians).", lines, found.values())


def _write(path: Path, head: str, lines: Sequence[Sequence[str]], results: Iterable[dict[str, Any]]) -> None:
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    print(text)
    commits = sorted({result["provenance"]["commit"][:10] for result in results})
    path.write_text(f"{head}\n\n{text}\n\nMeasured at {', '.join(commits)}.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--hosts", nargs="+", type=int, choices=HOSTS, default=HOSTS)
    parser.add_argument("--links", nargs="+", choices=LINKS, default=LINKS)
    parser.add_argument("--sparse", action="store_true", help="also the step of AlexNet with sparse methods")
    parser.add_argument("--table", action="store_true", help="measure nothing, only write the table of what is there")
    args = parser.parse_args()
    found = {}
    for net, hosts, link in product(NETS, HOSTS, LINKS):
        path = HERE / "results" / f"{net}-{hosts}-{link}.json"
        wanted = net in args.nets and hosts in args.hosts and link in args.links
        if wanted and not args.table and not path.exists():
            measure(net, hosts, link, path)
        if path.exists():
            found[net, hosts, link] = json.loads(path.read_text())
    write_table(found)
    sparse = {}
    for name, more in SPARSE_RUNS.items():
        path = HERE / "results" / f"alexnet-2-100mbit-{name}.json"
        if args.sparse and not args.table and not path.exists():
            measure_sparse(path, *more)
        if path.exists():
            sparse[name] = json.loads(path.read_text())
    write_sparse_table(sparse)


if __name__ == "__main__":
    main()
