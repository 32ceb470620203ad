"""What the experiments on accuracy share: a grid of training runs, several at a time, kept as small JSON files.

A cell is one run of `terngrad train`. Its result is written when it has ended, and a cell that has one with the same
arguments is not run again: an experiment that was interrupted goes on where it stopped, and one that needs a run of
another takes it from there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from terngrad.train import read_run

HERE = Path(__file__).resolve().parent
_running: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True)
class Cell:
    """One run: a name that is unique in its experiment, and the arguments of `terngrad train`."""

    name: str
    arguments: tuple[str, ...]


def run_cells(cells: Sequence[Cell], folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The result of every cell that has one in the end; failures are printed and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    _take_from_others(cells, folder)
    found = {cell.name: _kept(cell, folder) for cell in cells}
    missing = [cell for cell in cells if found[cell.name] is None]
    print(f"{len(cells)} runs, {len(cells) - len(missing)} of them there already", flush=True)
    if options.table:
        missing = []
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(_run, cell, folder, options): cell for cell in missing}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                cell = futures[future]
                found[cell.name] = future.result()
                value = found[cell.name]
                print(f"{number}/{len(missing)} {cell.name}: {value['final'] if value else 'FAILED'}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in _running:
                process.kill()
            raise
    return {name: result for name, result in found.items() if result is not None}


def _kept(cell: Cell, folder: Path) -> dict[str, Any] | None:
    path = folder / f"{cell.name}.json"
    result: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return result if result is not None and result["arguments"] == list(cell.arguments) else None


def _take_from_others(cells: Sequence[Cell], folder: Path) -> None:
    """Copies runs with the same arguments that another experiment has made."""
    others = [path for path in HERE.glob("*/results/runs/*.json") if path.parent != folder]
    made = {tuple(result["arguments"]): result for result in (json.loads(path.read_text()) for path in others)}
    for cell in cells:
        if cell.arguments in made and _kept(cell, folder) is None:
            _write(made[cell.arguments], folder / f"{cell.name}.json")


def _write(result: dict[str, Any], path: Path) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.rename(path)


def _run(cell: Cell, folder: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory(prefix="terngrad-experiment-") as scratch:
        run = Path(scratch, "run")
        command = [sys.executable, "-m", "terngrad", "train", *cell.arguments, "--out", str(run), "--json"]
        command += ["--data", str(options.data)] if options.data else []
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )
        _running.add(process)
        said = process.communicate()[1]
        _running.discard(process)
        if process.returncode:
            print(f"{cell.name}: exit code {process.returncode}\n{said[-2000:]}", file=sys.stderr, flush=True)
            return None
        result = compact(cell, run)
    _write(result, folder / f"{cell.name}.json")
    return result


def compact(cell: Cell, path: Path) -> dict[str, Any]:
    """What is kept of a run: settings, machine, evaluations and the end."""
    run = read_run(path)
    assert run.start is not None
    assert run.end is not None
    losses = [(event["step"], event["loss"]) for event in run.steps]
    return {
        "arguments": list(cell.arguments),
        "config": {key: value for key, value in run.config.items() if key != "data"},
        "environment": {key: value for key, value in run.environment.items() if key not in ("command", "hostname")},
        "final": run.end["final"],  # null: diverged
        "best": run.end["best"],
        "steps": run.end["step"],
        "seconds": run.end["seconds"],
        "bytes_sent_per_step": run.end["bytes_sent"] / run.end["step"],
        "dense_bytes_per_step": run.start["dense_bytes_per_step"],
        "evaluations": [(event["step"], event["value"]) for event in run.evals],
        "losses": losses[:: max(1, len(losses) // 50)],
        "layers": [(event["step"], event["layers"]) for event in run.layers],
    }


@dataclass(frozen=True)
class Mean:
    """Of several seeds, with its standard error."""

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        return cls(statistics.fmean(values), error, len(values))

    def __str__(self) -> str:
        return format(self, "")

    def __format__(self, sign: str) -> str:
        error = f" ± {self.error:.2f}" if self.count > 1 else ""
        return f"{self.mean:{sign}.2f}{error}"


@dataclass(frozen=True)
class Measure:
    """How results are read and compared: accuracies by points, perplexities by per cent."""

    name: str
    value: Callable[[dict[str, Any]], float]
    tolerance: float
    relative: bool = False
    higher_is_better: bool = True

    def compare(self, mine: Mapping[int, float], base: Mapping[int, float]) -> tuple[str, str]:
        """The mean difference over the seeds that both have, with its standard error, and whether it is tolerated."""
        common = sorted(mine.keys() & base.keys())
        if not common:
            return "", ""
        scale = 100 / statistics.fmean(base[seed] for seed in common) if self.relative else 1.0
        difference = Mean.of([scale * (mine[seed] - base[seed]) for seed in common])
        worse = -difference.mean if self.higher_is_better else difference.mean
        verdict = "NO" if worse > self.tolerance else "yes" if abs(worse) <= self.tolerance else "better"
        return f"{difference:+}" + (" %" if self.relative else ""), verdict


ACCURACY = "accuracy %"


def accuracy(tolerance: float) -> Measure:
    return Measure(ACCURACY, lambda result: 100 * result["final"], tolerance)


def perplexity(tolerance_percent: float) -> Measure:
    return Measure(
        "perplexity", lambda result: result["final"], tolerance_percent, relative=True, higher_is_better=False
    )


@dataclass(frozen=True)
class Arm:
    """A setting that is trained with several seeds, and the one that it is compared with."""

    label: str
    arguments: tuple[str, ...]
    base: str | None = None  # another arm's label
    most_seeds: int = 100  # where fewer do: what is compared with the arm that an experiment is about

    def seeds(self, options: argparse.Namespace) -> range:
        return range(min(self.most_seeds, options.seeds))

    def cell(self, seed: int) -> Cell:
        name = self.label.replace(" ", "-").replace(",", "").replace(":", "-").replace("=", "")
        return Cell(f"{name}-seed{seed}", (*self.arguments, "--seed", str(seed)))


def read_options(description: str) -> argparse.Namespace:
    """What every experiment can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, help="folder with the dataset, as for `terngrad train`")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, of one thread each")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all numbers of steps")
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table of what is there")
    return parser.parse_args()


def main(here: Path, description: str, arms: Callable[[argparse.Namespace], Sequence[Arm]], measure: Measure) -> None:
    """Runs an experiment's arms over all seeds, and writes results/runs and results/table.md."""
    options = read_options(description)
    chosen = arms(options)
    cells = [arm.cell(seed) for seed in range(options.seeds) for arm in chosen if seed in arm.seeds(options)]
    results = run_cells(cells, here / "results" / "runs", options)
    by_seed: dict[str, dict[int, float]] = {}
    rows = []
    for arm in chosen:
        seeds = [seed for seed in arm.seeds(options) if arm.cell(seed).name in results]
        found = [results[arm.cell(seed).name] for seed in seeds]
        if not found:
            continue
        if any(result["final"] is None for result in found):
            rows.append((arm.label, f"{found[0]['steps']:,}", len(found), "diverged", "", "NO", ratio_of(found)))
            continue
        mine = by_seed[arm.label] = {seed: measure.value(one) for seed, one in zip(seeds, found, strict=True)}
        mean = Mean.of(list(mine.values()))
        compared = measure.compare(mine, by_seed[arm.base]) if arm.base in by_seed else ("", "")
        rows.append((arm.label, f"{found[0]['steps']:,}", mean.count, mean, *compared, ratio_of(found)))
    unit = " %" if measure.relative else ""
    columns = (
        "setting",
        "steps",
        "seeds",
        measure.name,
        "to float",
        f"within {measure.tolerance}{unit}",
        "fewer bytes",
    )
    write_table(
        here / "results" / "table.md", columns, rows, sorted({commit_of(result) for result in results.values()})
    )


SDAGC = "sdagc:threshold=2.5,values=sign,compensation=upfront"  # the default, written out
OTHERS = {"fp16": "fp16", "TernGrad": "terngrad:codec=entropy", "DGC": "dgc:density=0.001"}


def methods_of(
    label: str,
    recipe: Sequence[str],
    steps: int,
    options: argparse.Namespace,
    variants: Mapping[str, tuple[str, int]] = MappingProxyType({}),
) -> list[Arm]:
    """One recipe with SDAGC and fp32 over all seeds, and once with every method that SDAGC is compared with.

    `variants` of SDAGC, by their names, come with their specs and numbers of seeds.
    """
    number = scaled(steps, options)
    common = (*recipe, "--steps", number, "--eval-every", str(int(number) // 5), *COMMON)
    base = f"{label}, fp32"
    four = (*common, "--virtual-workers", "4")
    return [
        Arm(base, (*four, "--method", "fp32")),
        Arm(f"{label}, SDAGC", (*four, "--method", SDAGC), base),
        *(
            Arm(f"{label}, SDAGC {name}", (*four, "--method", spec), base, seeds)
            for name, (spec, seeds) in variants.items()
        ),
        *(Arm(f"{label}, {name}", (*four, "--method", spec), base, 1) for name, spec in OTHERS.items()),
        Arm(f"{label}, PowerSGD", (*common, "--workers", "4", "--method", "powersgd:rank=1"), base, 1),
    ]


def in_processes(arm: Arm) -> Arm:
    """Once by processes with sockets, whose bytes are then those of the kernel's counters, gloo's own included."""
    at = arm.arguments.index("--virtual-workers")
    arguments = (*arm.arguments[:at], "--workers", *arm.arguments[at + 1 :])
    return replace(arm, label=f"{arm.label}, by processes", arguments=arguments, most_seeds=1)


def ratio_of(results: Sequence[dict[str, Any]]) -> str:
    """How many times fewer bytes a worker sent than a ring all-reduce in fp32, over the whole training."""
    sent = [result["bytes_sent_per_step"] for result in results]
    if not all(sent) or any("dense_bytes_per_step" not in result for result in results):
        return ""
    return f"{statistics.fmean(result['dense_bytes_per_step'] for result in results) / statistics.fmean(sent):,.0f}x"


def scaled(steps: int, options: argparse.Namespace) -> str:
    """A number of steps, as an argument."""
    return str(max(5, round(steps * options.scale)))


COMMON = ("--checkpoint-every", "0", "--measure-every", "0", "--threads", "1")


def commit_of(result: dict[str, Any]) -> str:
    return str(result["environment"].get("commit"))[:10]


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], commits: Sequence[str]) -> None:
    """A Markdown table, printed and written: means over seeds with their standard errors, and which programs ran."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    text = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
    text += f"\n\nMeasured at {', '.join(commits)}."
    print(text)
    path.write_text(text + "\n")
