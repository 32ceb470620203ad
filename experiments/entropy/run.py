"""How many bits TernGrad's values take over a training, layer by layer, against Shannon's limit and base3."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

HERE = Path(__file__).resolve().parent
TASKS = {  # recipe, workers, steps
    "LeNet": ("lenet-mnist", 4, 2_000),
    "CifarNet": ("cifarnet-cifar10", 2, 750),
}
CODECS = ("base3", "entropy")
MEASUREMENTS = 20  # over a run


def cell(task: str, codec: str, seed: int, options: argparse.Namespace) -> grid.Cell:
    recipe, workers, number = TASKS[task]
    steps = int(grid.scaled(number, options))
    arguments = (
        recipe, "--steps", str(steps), "--eval-every", str(steps // 5), "--schedule", "cosine",
        "--virtual-workers", str(workers), "--method", f"terngrad:codec={codec}",
        "--measure-every", str(max(1, steps // MEASUREMENTS)), "--checkpoint-every", "0", "--threads", "1",
        "--seed", str(seed),
    )  # fmt: skip
    return grid.Cell(f"{task}-{codec}-seed{seed}", arguments)


def of_runs(task: str, seed: int, plain: dict[str, Any], coded: dict[str, Any]) -> tuple[object, ...]:
    """Bytes of whole messages, and whether both trainings were the same to the last digit."""
    before, after = plain["bytes_sent_per_step"], coded["bytes_sent_per_step"]
    same = all(plain[key] == coded[key] for key in ("losses", "evaluations"))
    ratio = coded["dense_bytes_per_step"] / after
    share = f"{100 * after / before:.1f} %"
    return (task, seed, f"{before:,.0f}", f"{after:,.0f}", share, f"{ratio:.1f}x", "yes" if same else "NO")


def of_layers(task: str, found: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """Means over seeds: of the first, the middle and the last measurement, and of all."""
    rows = []
    for name in found[0]["layers"][0][1]:
        traces = [[layers[name] for _, layers in result["layers"]] for result in found]
        bits = statistics.fmean(one["bits"] for trace in traces for one in trace)
        least = statistics.fmean(one["least_bits"] or 0.0 for trace in traces for one in trace)
        moments = [
            f"{100 * statistics.fmean(trace[at]['density'] for trace in traces):.2f} %"
            for at in (0, len(traces[0]) // 2, -1)
        ]
        excess = f"{100 * (bits / least - 1):+.2f} %" if least else ""
        rows.append((task, name, f"{traces[0][0]['numel']:,}", *moments, f"{bits:.4f}", f"{least:.4f}", excess))
    return rows


def main() -> None:
    options = grid.read_options(__doc__ or "")
    seeds = range(options.seeds)
    cells = {
        (task, codec, seed): cell(task, codec, seed, options) for seed in seeds for task in TASKS for codec in CODECS
    }
    results = grid.run_cells(list(cells.values()), HERE / "results" / "runs", options)
    runs: list[tuple[object, ...]] = []
    layers: list[tuple[object, ...]] = []
    for task in TASKS:
        pairs = [[results.get(cells[task, codec, seed].name) for codec in CODECS] for seed in seeds]
        there = [(seed, plain, coded) for seed, (plain, coded) in zip(seeds, pairs, strict=True) if plain and coded]
        runs += [of_runs(task, seed, plain, coded) for seed, plain, coded in there]
        layers += of_layers(task, [coded for _, _, coded in there]) if there else []
    commits = sorted({grid.commit_of(result) for result in results.values()})
    columns = ("net", "seed", "bytes a step, base3", "entropy", "of base3", "fewer than fp32", "same training")
    grid.write_table(HERE / "results" / "table.md", columns, runs, commits)
    columns = ("net", "layer", "values", "not zero at first", "midway", "at last", "bits a value", "limit", "above it")
    grid.write_table(HERE / "results" / "layers.md", columns, layers, commits)


if __name__ == "__main__":
    main()
