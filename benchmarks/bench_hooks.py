"""How long is a training step, by method, on a network of a given speed?

Every rank is a process of its own with one thread; with --link each has a host of its own, in a lab (terngrad.lab) with
links of that rate. All methods run in one process tree, in turn, and what is reported is the ratio of each pair of
steps. A step is as long as its slowest rank's.

    bench_hooks.py                      step times and bytes over a link
    bench_hooks.py --overhead           one rank, nothing on the wire: what attaching costs
    bench_hooks.py --memory             resident memory next to plain DDP's
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import measure
import predictions
from hook_worker import DDP, DDP_FP16, NO_SYNC, POWERSGD, SILENT, Job
from nets import NETS, PERCEPTRON

from terngrad.lab import LINKS, Lab, LabError

BASE3, TWO_BIT = "terngrad", "terngrad:codec=two-bit"
STEP_METHODS = [NO_SYNC, DDP, DDP_FP16, f"{POWERSGD}1", f"{POWERSGD}4", "fp32", "fp16", "bf16", TWO_BIT, BASE3]
TERNARY = [TWO_BIT, BASE3]
SPEEDUP_TARGETS = {DDP: 4.5, DDP_FP16: 2.5}  # of TernGrad with default options, at 1 Gb/s and two hosts
BITS_TARGET = 1.66  # of everything that passes the sockets in one direction, headers and scalers included
STATS_TARGET = 0.03
OVERHEAD_TARGET = 1.02
MEMORY_TARGET = 0.15
# malloc's heuristics give large tensors back or keep them depending on what happened before: by chance a method pays
# thousands of page faults in each step, or none. So for times all of it is kept, and for memory all of it given back.
MALLOC = {
    "steps": {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)},
    "memory": {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
}
_WORKER = measure.HERE / "hook_worker.py"


# Processes


@contextlib.contextmanager
def started(job: Job, lab: Lab | None) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One process for each rank, each on its own host where there is a lab; none outlives the context."""
    path = Path(job.folder, "job.json")
    path.write_text(json.dumps(asdict(job)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **MALLOC[job.kind]}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(job.world_size):
            program = [sys.executable, str(_WORKER), str(path), str(rank)]
            start = functools.partial(lab.start, rank) if lab else subprocess.Popen
            processes.append(start(program, env=environment))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for(processes: list[subprocess.Popen[bytes]], timeout_s: float) -> None:
    """Returns when all ranks have ended well; raises when one has not, or when the time is over."""
    end = time.monotonic() + timeout_s
    while any(process.poll() is None for process in processes):
        if any(process.returncode for process in processes) or time.monotonic() > end:
            break
        time.sleep(0.1)
    codes = [process.returncode for process in processes]
    if any(code != 0 for code in codes):
        raise SystemExit(f"ranks ended with {codes} (None: still running after a failure, or after {timeout_s:g} s)")


def run(args: argparse.Namespace, lab: Lab | None, **changes: Any) -> list[dict[str, Any]]:
    """Runs a job on all ranks and gives what each measured."""
    with tempfile.TemporaryDirectory(prefix="bench-hooks-") as folder:
        settings = {
            "kind": "steps", "world_size": args.hosts, "folder": folder, "methods": args.methods,
            "interface": lab.environment(0)["GLOO_SOCKET_IFNAME"] if lab else "lo",
            "rounds": -(-args.steps // args.steps_per_turn),
            "steps_per_turn": args.steps_per_turn, "sample_steps": args.sample_steps, "net": args.net,
            "data": str(args.data or ""),
            "width": args.width, "depth": args.depth, "batch": args.batch, "bucket_view": args.bucket_view,
            "momentum": args.momentum, "pin": args.pin, "predict": args.predict, "seed": args.seed,
        }  # fmt: skip
        job = Job(**{**settings, **changes})
        with started(job, lab) as processes:
            wait_for(processes, args.timeout)
        return [json.loads(Path(folder, f"rank{rank}.json").read_text()) for rank in range(job.world_size)]


@contextlib.contextmanager
def opened(args: argparse.Namespace) -> Iterator[Lab | None]:
    """A lab with the link that was asked for, or none."""
    if args.link == "none":
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            lab = stack.enter_context(Lab(args.hosts, args.link))
        except LabError as error:
            raise SystemExit(f"--link {args.link}: {error}. Pass --link none to run without a link.") from error
        yield lab


# What it means


def pooled(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The ranks of several runs as if of one long one: series one behind the other, counters added."""
    ranks = runs[0]
    for more in runs[1:]:
        for rank, other in zip(ranks, more, strict=True):
            for name, found in rank["methods"].items():
                for key, value in other["methods"][name].items():
                    if isinstance(value, dict):
                        found[key] = {entry: found[key][entry] + number for entry, number in value.items()}
                    else:
                        found[key] += value
    return ranks


def by_run(runs: list[list[dict[str, Any]]], method: str) -> dict[str, list[float]]:
    """The median speed-up of every run: how far one run can be trusted."""
    return {
        name: [measure.ratios(slowest(ranks, name), slowest(ranks, method))["median"] for ranks in runs]
        for name in (DDP, DDP_FP16)
        if name in runs[0][0]["methods"]
    }


def slowest(ranks: list[dict[str, Any]], method: str) -> list[float]:
    """Seconds of every step on its slowest rank."""
    return [max(step) for step in zip(*(rank["methods"][method]["seconds"] for rank in ranks), strict=True)]


def per_step(ranks: list[dict[str, Any]], method: str, group: str) -> dict[str, float]:
    """Counters of rank 0 per step."""
    found = ranks[0]["methods"][method]
    return {key: value / found["num_steps"] for key, value in found[group].items()}


def summarize(ranks: list[dict[str, Any]], method: str, linked: bool) -> dict[str, Any]:
    """Time, speed-up and bytes of one method."""
    mine = slowest(ranks, method)
    wire, stats = per_step(ranks, method, "counts"), per_step(ranks, method, "stats")
    if not linked:  # the loopback counts both directions of all ranks
        wire = {key: value for key, value in wire.items() if not key.startswith("interface")}
    baselines = [name for name in (NO_SYNC, DDP, DDP_FP16) if name in ranks[0]["methods"]]
    return {
        "seconds": measure.spread(mine),
        "cpu_seconds": measure.spread(ranks[0]["methods"][method]["cpu_seconds"]),
        "page_faults": measure.spread(ranks[0]["methods"][method]["page_faults"]),
        "speedup": {name: measure.ratios(slowest(ranks, name), mine) for name in baselines},
        "bytes_per_step": {**wire, **{key: stats[key] for key in ("bytes_sent", "bytes_received") if stats}},
        "bits_per_parameter": 8 * wire["socket_sent"] / ranks[0]["num_parameters"],
        "stats_to_socket": stats["bytes_sent"] / wire["socket_sent"] if stats and wire["socket_sent"] else None,
        "phases_s": {key: value for key, value in stats.items() if key.endswith("_s")},
        "chosen": ranks[0]["methods"][method]["chosen"],
    }


def targets(methods: dict[str, Any]) -> dict[str, Any]:
    """The figures that TernGrad is to reach, where they were measured."""
    found: dict[str, Any] = {}
    if BASE3 in methods:
        for name, least in SPEEDUP_TARGETS.items():
            if name in methods:
                value = methods[BASE3]["speedup"][name]["median"]
                found[f"speed-up over {name}"] = {"value": value, "at_least": least, "met": value >= least}
        value = methods[BASE3]["bits_per_parameter"]
        found["bits per parameter"] = {"value": value, "at_most": BITS_TARGET, "met": value <= BITS_TARGET}
        value = abs(1 - methods[BASE3]["stats_to_socket"])
        found["stats() off the sockets"] = {"value": value, "at_most": STATS_TARGET, "met": value <= STATS_TARGET}
    return found


# Modes


def bench_steps(args: argparse.Namespace) -> dict[str, Any]:
    with opened(args) as lab:
        link = lab.describe() if lab else None
        if link:
            print_link(link)
        runs = [run(args, lab) for _ in range(args.runs)]
    speedups = {name: by_run(runs, name) for name in args.methods}
    ranks = pooled(runs)
    probed = ranks[0]["probed"]
    predicted = predictions.predict(probed, args.hosts) if probed else {}
    methods = {
        name: {
            **summarize(ranks, name, lab is not None),
            "speedup_by_run": speedups[name],
            "predicted_s": predicted.get(name),
        }
        for name in args.methods
    }
    pairs = len(slowest(ranks, args.methods[0]))
    result = {"link": link, "num_parameters": ranks[0]["num_parameters"], "pairs": pairs, "methods": methods}
    result |= {"probed": probed} if probed else {}
    print_steps(args, result)
    if args.predict:
        print_predictions(methods)
    if args.link == "1gbit" and args.hosts == 2 and args.net == PERCEPTRON:
        result["targets"] = targets(methods)
        print_targets(result["targets"])
    if args.runs > 1:
        print_runs(methods)
    return result


def bench_overhead(args: argparse.Namespace) -> dict[str, Any]:
    ranks = run(args, None, world_size=1)
    result = {}
    for name in args.methods:
        times = slowest(ranks, name)
        result[name] = {"seconds": measure.spread(times), "ratio": measure.ratios(times, slowest(ranks, DDP))}
    rows = [
        (
            name,
            _ms(found["seconds"]["median"]),
            f"{found['ratio']['median']:.4f}",
            f"{found['ratio']['low']:.4f} .. {found['ratio']['high']:.4f}",
            measure.verdict(found["ratio"]["median"], OVERHEAD_TARGET if name in TERNARY else None),
        )
        for name, found in result.items()
    ]
    title = f"overhead: one rank, {ranks[0]['num_parameters']:,} parameters, {len(times)} pairs"
    measure.print_table(title, ("method", "ms", "x plain DDP", "quartiles", "target"), rows)
    return {"num_parameters": ranks[0]["num_parameters"], "methods": result}


def bench_memory(args: argparse.Namespace) -> dict[str, Any]:
    found = {name: run(args, None, kind="memory", methods=[name])[0] for name in args.methods}
    gradient_bytes = found[DDP]["gradient_bytes"]
    plain = found[DDP]["samples"]
    rows = []
    for name in args.methods:
        for sample, base in zip(found[name]["samples"], plain, strict=True):
            sample["extra_rss"] = (sample["rss_bytes"] - base["rss_bytes"]) / gradient_bytes
            sample["extra_peak"] = (sample["peak_bytes"] - base["peak_bytes"]) / gradient_bytes
            sample["scratch"] = sample["scratch_bytes"] / gradient_bytes
            worst = max(sample["extra_peak"], sample["scratch"])
            rows.append(
                (name, sample["step"], f"{sample['rss_bytes'] / 1e6:.1f}", f"{sample['peak_bytes'] / 1e6:.1f}",
                 f"{sample['extra_rss']:.1%}", f"{sample['extra_peak']:.1%}", f"{sample['scratch']:.1%}",
                 measure.verdict(worst, MEMORY_TARGET if name in TERNARY else None))
            )  # fmt: skip
    title = f"memory of rank 0 of {args.hosts}; percentages of the gradients' {gradient_bytes / 1e6:.1f} MB"
    columns = ("method", "after step", "RSS MB", "peak MB", "RSS beyond DDP", "peak beyond DDP", "scratch", "target")
    measure.print_table(title, columns, rows)
    return {"gradient_bytes": gradient_bytes, "methods": {name: found[name]["samples"] for name in args.methods}}


# Tables


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def print_link(link: dict[str, Any]) -> None:
    carried = " and ".join(f"{value / 1e6:.0f}" for value in link["goodput_bits_per_s"])
    print(f"link: one TCP stream carries {carried} of {link['rate_bits_per_s'] / 1e6:.0f} Mbit/s", flush=True)
    if min(link["goodput_bits_per_s"]) < 0.9 * link["rate_bits_per_s"]:
        print("warning: that is less than 90 %; this machine is too busy or too slow for such a link", flush=True)


def _speedup(found: dict[str, Any], baseline: str) -> str:
    ratio = found["speedup"].get(baseline)
    return f"{ratio['median']:.2f} ({ratio['low']:.2f} .. {ratio['high']:.2f})" if ratio else ""


def _mb(found: dict[str, Any], key: str) -> str:
    return f"{found['bytes_per_step'][key] / 1e6:.3f}" if key in found["bytes_per_step"] else ""


STEP_COLUMNS = (
    "method", "ms", "CPU ms", "x faster than ddp", "x faster than ddp-fp16", "MB sent: stats", "socket", "interface",
    "bits/param", "encode ms", "exchange ms", "decode ms",
)  # fmt: skip


def step_row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    times = [_ms(found[key]["median"]) for key in ("seconds", "cpu_seconds")]
    speedups = [_speedup(found, baseline) for baseline in (DDP, DDP_FP16)]
    sizes = [_mb(found, key) for key in ("bytes_sent", "socket_sent", "interface_sent")]
    phases = [_ms(seconds) for seconds in found["phases_s"].values()] or 3 * [""]
    return name, *times, *speedups, *sizes, f"{found['bits_per_parameter']:.4f}", *phases


def print_steps(args: argparse.Namespace, result: dict[str, Any]) -> None:
    size = f"{result['num_parameters']:,} parameters, {result['pairs']} steps of each"
    rows = [step_row(name, found) for name, found in result["methods"].items()]
    measure.print_table(f"{args.net}, {args.hosts} hosts, link {args.link}, {size}", STEP_COLUMNS, rows)


def print_predictions(methods: dict[str, Any]) -> None:
    rows = []
    for name, found in methods.items():
        seconds, predicted = found["seconds"]["median"], found["predicted_s"]
        if predicted is not None:
            rows.append((name, _ms(seconds), _ms(predicted), f"{100 * (predicted / seconds - 1):+.1f} %"))
    measure.print_table("the performance model", ("method", "ms", "predicted", "off by"), rows)


def print_runs(methods: dict[str, Any]) -> None:
    rows = [
        (
            name,
            *(
                ", ".join(f"{value:.2f}" for value in sorted(found["speedup_by_run"].get(base, [])))
                for base in (DDP, DDP_FP16)
            ),
        )
        for name, found in methods.items()
    ]
    measure.print_table("medians of each run, sorted", ("method", "x faster than ddp", "x faster than ddp-fp16"), rows)


def print_targets(found: dict[str, Any]) -> None:
    rows = [
        (name, f"{value['value']:.3f}",
         measure.verdict(value["value"], value.get("at_least", value.get("at_most")), at_least="at_least" in value))
        for name, value in found.items()
    ]  # fmt: skip
    measure.print_table("TernGrad, default options", ("figure", "measured", "target"), rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time training steps by method over a link of a given speed.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--overhead", action="store_true", help="one rank: what attaching costs")
    mode.add_argument("--memory", action="store_true", help="memory next to plain DDP's, without a link")
    parser.add_argument("--hosts", type=int, default=2, help="ranks, each on a host of its own")
    parser.add_argument("--link", choices=LINKS, default="1gbit",
                        help="of a lab; none: no lab, the ranks talk over the loopback")  # fmt: skip
    parser.add_argument("--methods", nargs="+", metavar="METHOD",
                        help=f"of {NO_SYNC}, {SILENT}, {DDP}, {DDP_FP16}, {POWERSGD}RANK, or specs")  # fmt: skip
    parser.add_argument("--runs", type=int, default=1, help="how often all of it is started anew")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each method and run")
    parser.add_argument("--steps-per-turn", type=int, default=5, help="timed steps before the next method's turn")
    parser.add_argument("--sample-steps", type=int, nargs="+", default=[5, 20, 50], help="when --memory looks")
    parser.add_argument("--net", choices=NETS, default=PERCEPTRON, help="the perceptron, or a recipe")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="of a recipe that needs one")
    parser.add_argument("--width", type=int, default=1024, help="of the perceptron's layers")
    parser.add_argument("--depth", type=int, default=24, help="how many of them")
    parser.add_argument("--batch", type=int, default=16, help="examples of a rank and step")
    parser.add_argument("--bucket-view", action="store_true", help="DDP's gradient_as_bucket_view, for all methods")
    parser.add_argument(
        "--predict", action="store_true", help="compare with the performance model (docs/performance-model.md)"
    )
    parser.add_argument("--momentum", type=float, default=0.0, help="of SGD, for all methods")
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=False,
                        help="a core for each rank, where there are as many")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=1800, help="seconds after which the ranks are ended")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    alone = args.overhead or args.memory
    args.methods = args.methods or ([DDP, *TERNARY] if alone else STEP_METHODS)
    if alone and DDP not in args.methods:
        parser.error(f"--overhead and --memory compare with {DDP}: it must be among --methods {args.methods}")
    return args


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that hosts and ranks are removed
    bench = bench_overhead if args.overhead else bench_memory if args.memory else bench_steps
    result = bench(args)
    measure.write_json(args.json, {"provenance": measure.provenance(args), **result})


if __name__ == "__main__":
    main()
