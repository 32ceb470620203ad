"""How fast are the kernels, in units of a copy of the same tensor?

One tensor that fits no cache, one scaler, every buffer allocated beforehand. Each repeat times every candidate once;
reported is the ratio of each candidate to the copy of the same repeat. What is timed has been compared with the
reference before, bit for bit, on the first elements of the same gradient.

The entropy coder has a table of its own (entropy.py): speed, and bits for each value against Shannon's limit.

"encode" is what a step pays: statistics, limit and ternarize together. "average 2" unpacks two payloads and writes
their mean. The kernels of sparse gradients come in a table of their own, and so does the gap code: its bits for an
index beside the entropy, and its speed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import entropy
import measure
import numpy as np
import torch
from measure import Case
from sparse_cases import TARGETS as SPARSE_TARGETS
from sparse_cases import SparseBench, gap_results, print_gaps, whole_messages
from torch import Tensor

import terngrad
from terngrad.codecs import CODES, DENSE_TYPES, Frame, Segment
from terngrad.kernels import Kernels, draw_keys, kernels_for, reference

COPY = "copy"
TARGETS = {"encode two-bit": 1.3, "encode base3": 1.6, "average 2 two-bit": 1.0, "average 2 base3": 1.0}
LEVEL_PAYLOADS = (2, 4)
CHECKED_NUMEL = 100_003  # no multiple of a vector, a group or a chunk


class Bench:
    """All candidates over one gradient, with the buffers they share."""

    def __init__(self, kernels: Kernels, gradient: Tensor, seed: int) -> None:
        self.kernels = kernels
        self.gradient = gradient
        self.seed = seed
        self.target = torch.zeros_like(gradient)
        self.half = torch.zeros(gradient.numel(), dtype=torch.float16)
        self.method = terngrad.TernGrad()
        self.segment = Segment(0, 0, gradient.numel())
        self.spans = self._frame("base3", 1).spans
        self.counts = torch.from_numpy(self.spans[:, 1]).double()
        self.limit = self._limit()

    def _limit(self) -> Tensor:
        return self.method.limits(self.kernels.statistics(self.gradient, self.spans), self.counts)

    def _frame(self, codec: str, world_size: int) -> Frame:
        return Frame(
            [self.segment], [], codec=codec, block=0, dense_type=torch.float32, num_shards=1,
            world_size=world_size,
        )  # fmt: skip

    def _encode(self, frame: Frame, rank: int, packed: Tensor) -> None:
        keys = draw_keys(self.seed, 0, rank, np.zeros(1, dtype=np.uint64))
        limit = self._limit()
        self.kernels.ternarize(self.gradient, frame.runs, keys, limit, limit * 2.0**-24, frame.code, packed)

    def _payloads(self, frame: Frame) -> list[Tensor]:
        payloads = [torch.zeros(frame.nbytes, dtype=torch.uint8) for _ in range(frame.world_size)]
        for rank, payload in enumerate(payloads):
            self._encode(frame, rank, payload)
        return payloads

    def torch_cases(self) -> dict[str, Case]:
        """torch's own: the unit of all ratios, and the casts of an fp16 hook."""
        written = [self.target]
        return {
            COPY: Case(lambda: self.target.copy_(self.gradient), lambda: written),
            "cast to fp16": Case(lambda: self.half.copy_(self.gradient), lambda: [self.half]),
            "cast from fp16": Case(lambda: self.target.copy_(self.half), lambda: written),
        }

    def kernel_cases(self) -> dict[str, Case]:
        """Every kernel that a step runs on ternary segments."""
        found: list[Tensor] = []
        cases = {"statistics": _returning(lambda: self.kernels.statistics(self.gradient, self.spans), found)}
        for codec in CODES:
            cases |= self._code_cases(codec)
        for count in LEVEL_PAYLOADS:
            cases |= self._level_cases(count)
        return cases

    def _code_cases(self, codec: str) -> dict[str, Case]:
        frame = self._frame(codec, 2)
        payloads = self._payloads(frame)
        packed = torch.zeros(frame.nbytes, dtype=torch.uint8)
        scale = self.limit / 2
        measured: list[Tensor] = []
        return {
            f"encode {codec}": Case(lambda: self._encode(frame, 0, packed), lambda: [packed]),
            f"average 2 {codec}": Case(
                lambda: self.kernels.mean_shared(self.target, frame.runs, payloads, scale, frame.code),
                lambda: [self.target],
            ),
            f"error {codec}": _returning(
                lambda: self.kernels.error(self.gradient, frame.runs, payloads[0], self.limit, frame.code)[:2],
                measured,
            ),
        }

    def _level_cases(self, count: int) -> dict[str, Case]:
        frame = self._frame("base3", count)
        payloads = self._payloads(frame)
        levels = torch.zeros(frame.sum_nbytes, dtype=torch.uint8)
        self.kernels.sum_levels(frame.runs, payloads, frame.code, levels)
        scale = self.limit / count
        return {
            f"sum levels {count}": Case(
                lambda: self.kernels.sum_levels(frame.runs, payloads, frame.code, levels), lambda: [levels]
            ),
            f"average levels {count}": Case(
                lambda: self.kernels.mean_levels(self.target, frame.runs, levels, count, scale),
                lambda: [self.target],
            ),
        }


def _returning(run: Callable[[], Any], found: list[Tensor]) -> Case:
    """A case whose output is what it returns."""

    def keep() -> None:
        found[:] = run()

    return Case(keep, lambda: found)


def make_gradient(numel: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Normal values of a gradient's size."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(numel, generator=generator) * 1e-3).to(dtype)


def checked_cases(kernels: Kernels, gradient: Tensor, seed: int) -> dict[str, Case]:
    """Every kernel, ternary and sparse."""
    return Bench(kernels, gradient, seed).kernel_cases() | SparseBench(kernels, gradient, seed).cases()


def check(kernels: Kernels, gradient: Tensor, seed: int) -> int:
    """Asserts that every kernel equals the reference bit for bit on this gradient; returns how many were compared."""
    mine = checked_cases(kernels, gradient, seed)
    truth = checked_cases(cast(Kernels, reference), gradient, seed)
    for name, case in mine.items():
        for one in (case, truth[name]):
            one.prepare()
            one.run()
        for got, want in zip(case.outputs(), truth[name].outputs(), strict=True):
            same = got.dtype == want.dtype and torch.equal(got.view(torch.uint8), want.view(torch.uint8))
            assert same, f"{name}: {kernels.name} differs from the reference; nothing is timed"
    return len(mine)


def time_cases(cases: dict[str, Case], targets: dict[str, float], repeats: int) -> dict[str, Any]:
    """Milliseconds and ratio to the copy, by name."""
    times = measure.interleave(
        {name: case.run for name, case in cases.items()},
        repeats,
        {name: case.prepare for name, case in cases.items()},
    )
    return {
        name: {
            "ms": {key: 1e3 * value for key, value in measure.spread(seconds).items()},
            "ratio": measure.ratios(seconds, times[COPY]),
            "target": targets.get(name),
        }
        for name, seconds in times.items()
    }


def time_all(kernels: Kernels, gradient: Tensor, repeats: int, seed: int) -> dict[str, Any]:
    """The ternary kernels, then the sparse ones, then the gap code. The targets are the native kernels'."""
    native = kernels.name != reference.name
    bench = Bench(kernels, gradient, seed)
    found = {"kernels": time_cases(bench.torch_cases() | bench.kernel_cases(), TARGETS if native else {}, repeats)}
    copy = {COPY: bench.torch_cases()[COPY]}
    sparse = SparseBench(kernels, gradient, seed).cases()
    fp32 = gradient.dtype == torch.float32  # states are fp32 whatever the gradient is, and a copy of it is no measure
    if native and fp32:
        sparse |= whole_messages(gradient.numel(), seed)
    found["sparse"] = time_cases(copy | sparse, SPARSE_TARGETS if native and fp32 else {}, repeats)
    if native:
        found["gaps"] = gap_results(kernels, gradient.numel(), repeats, seed)
    return found


def print_all(title: str, results: dict[str, Any]) -> None:
    print_results(title, results["kernels"])
    print_results(f"sparse, {title}", results["sparse"])
    if "gaps" in results:
        print_gaps(f"gap code, {title}", results["gaps"])


def print_results(title: str, results: dict[str, Any]) -> None:
    rows = [
        (
            name,
            f"{found['ms']['median']:.2f}",
            f"{found['ratio']['median']:.2f}",
            f"{found['ratio']['low']:.2f} .. {found['ratio']['high']:.2f}",
            measure.verdict(found["ratio"]["median"], found["target"]),
        )
        for name, found in results.items()
    ]
    measure.print_table(title, ("kernel", "ms", "x copy", "quartiles", "target"), rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the kernels in units of a copy of the same tensor.")
    parser.add_argument("--numel", type=int, default=25_000_000, help="elements of the tensor (default: 25 million)")
    parser.add_argument("--repeats", type=int, default=21, help="how often each candidate is timed")
    parser.add_argument("--dtype", choices=list(DENSE_TYPES), default="fp32", help="type of the gradient")
    parser.add_argument("--backend", choices=terngrad.backends(), default=terngrad.backend(), help="kernels to time")
    parser.add_argument("--threads", type=int, default=1, help="threads of kernels and of torch")
    parser.add_argument("--reference-numel", type=int, default=1_000_000, help="elements for the reference kernels")
    parser.add_argument("--reference-repeats", type=int, default=5, help="0 leaves the reference out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    terngrad.set_backend(args.backend, args.threads)
    kernels = kernels_for(torch.device("cpu"))
    gradient = make_gradient(args.numel, DENSE_TYPES[args.dtype], args.seed)
    num_checked = check(kernels, gradient[:CHECKED_NUMEL].clone(), args.seed)
    print(f"{num_checked} kernels of {kernels.name} equal the reference bit for bit")

    results = time_all(kernels, gradient, args.repeats, args.seed)
    size = f"{args.numel:,} elements, {args.dtype}, {args.threads} thread{'s' * (args.threads > 1)}"
    print_all(f"{kernels.name}: {size}, {args.repeats} repeats", results)
    results["entropy"] = entropy.time_coder(kernels, args.numel, args.repeats, args.seed)
    title = f"{kernels.name}: entropy coder, symbols of {size}, {args.repeats} repeats; GB of fp32 gradient a second"
    entropy.print_results(title, results["entropy"])
    if args.reference_repeats and kernels.name != reference.name:
        small = gradient[: args.reference_numel].clone()
        found = time_all(cast(Kernels, reference), small, args.reference_repeats, args.seed)
        title = f"reference: {small.numel():,} elements, {args.reference_repeats} repeats, unit: a copy of that size"
        print_all(title, found)
        results |= {f"reference_{name}" if name != "kernels" else "reference": found[name] for name in found}
    measure.write_json(args.json, {"provenance": measure.provenance(args), "num_checked": num_checked, **results})


if __name__ == "__main__":
    main()
