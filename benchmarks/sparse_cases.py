"""What a step of a sparse method runs, as cases for bench_kernels.py.

States are put back, untimed, before each run, so that every run selects the same entries.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import measure
import numpy as np
import torch
from measure import Case
from torch import Tensor

from terngrad.codecs import Segment
from terngrad.kernels import Entries, Kernels, num_tiles
from terngrad.kernels.layout import Int64Array
from terngrad.methods import SDAGC, Coder, ParameterInfo, open_bucket

DENSITY = 0.001
NUM_PAYLOADS = 4
MOMENTUM = 0.9
TARGETS = {
    "accumulate + select": 2.5,
    "accumulate + select, clear": 2.5,
    "sam: accumulate + select, clear": 2.5,
    f"scatter mean {NUM_PAYLOADS}": 0.2,
    (WHOLE := f"unpack {NUM_PAYLOADS} whole messages"): 0.2,
}
GAP_DENSITIES = (1.0, 0.25, 0.05, 0.01, 0.001, 0.0001)


class SparseBench:
    """One segment of a gradient, with its velocity and residual, and the entries of several ranks."""

    def __init__(self, kernels: Kernels, gradient: Tensor, seed: int) -> None:
        self.kernels = kernels
        self.initial = [gradient, self._state(gradient, seed + 1), self._state(gradient, seed + 2)]
        self.buffer, self.velocity, self.residual = (tensor.clone() for tensor in self.initial)
        self.spans = np.array([[0, gradient.numel()]], dtype=np.int64)
        self.factors = torch.ones(1)
        self.maxima = torch.zeros(num_tiles(self.spans[:, 1]))
        self.thresholds = {sam: self._threshold(sam) for sam in (False, True)}
        self.payloads = [self._payload(seed + rank) for rank in range(NUM_PAYLOADS)]
        self.taken: Entries | None = None
        self.saved: Tensor | None = None
        self.mean = torch.zeros_like(gradient)

    def _state(self, gradient: Tensor, seed: int) -> Tensor:
        return torch.randn(gradient.numel(), generator=torch.Generator().manual_seed(seed)) * 1e-3

    def _threshold(self, sam: bool) -> Tensor:
        """What DENSITY of the elements are above once the gradient is added."""
        self._accumulate(sam, clear=False)
        largest = self.residual.abs().topk(self.num_entries + 1).values
        self.prepare()
        return largest[-1:].clone()

    def _payload(self, seed: int) -> Entries:
        random = np.random.default_rng(seed)
        numel = self.residual.numel()
        indices = np.unique(random.integers(0, numel, self.num_entries)).astype(np.uint32)
        values = torch.from_numpy(random.standard_normal(len(indices)).astype(np.float32))
        return Entries(np.array([len(indices)]), indices, values)

    @property
    def num_entries(self) -> int:
        return max(1, int(DENSITY * self.residual.numel()))

    def prepare(self) -> None:
        """Undoes what a run did."""
        for target, source in zip((self.buffer, self.velocity, self.residual), self.initial, strict=True):
            target.copy_(source)

    def _accumulate(self, sam: bool, clear: bool) -> None:
        self.kernels.accumulate(
            self.buffer, self.spans, None if sam else [self.velocity], [self.residual], self.factors, self.maxima,
            momentum=MOMENTUM, clear=clear,
        )  # fmt: skip

    def _select(self, sam: bool) -> None:
        self.taken, self.saved = self.kernels.select(
            [self.residual], None if sam else [self.velocity], self.maxima, self.thresholds[sam],
            MOMENTUM if sam else 0.0,
        )  # fmt: skip

    def _states(self) -> list[Tensor]:
        return [self.buffer, self.velocity, self.residual, self.maxima]

    def _taken(self) -> list[Tensor]:
        assert self.taken is not None
        found = [torch.from_numpy(self.taken.indices.astype(np.int64)), self.taken.values]
        return [*self._states(), *found, *([] if self.saved is None else [self.saved])]

    def cases(self) -> dict[str, Case]:
        """Every kernel of a step, alone and together."""
        cases = {}
        for name, sam, clear in (
            ("accumulate + select", False, False), ("accumulate + select, clear", False, True),
            ("sam: accumulate + select", True, False), ("sam: accumulate + select, clear", True, True),
        ):  # fmt: skip
            cases[name.replace(" + select", "")] = self._accumulate_case(sam, clear)
            cases[name] = self._step_case(sam, clear)
        cases["select"] = Case(lambda: self._select(False), self._taken, self._prepare_select)
        cases[f"scatter mean {NUM_PAYLOADS}"] = Case(
            lambda: self.kernels.scatter_mean(self.mean, self.spans, self.payloads, NUM_PAYLOADS), lambda: [self.mean]
        )
        merged: list[Tensor] = []
        cases[f"merge {NUM_PAYLOADS}"] = Case(lambda: self._merge(merged), lambda: merged)
        return cases

    def _accumulate_case(self, sam: bool, clear: bool) -> Case:
        return Case(lambda: self._accumulate(sam, clear), self._states, self.prepare)

    def _step_case(self, sam: bool, clear: bool) -> Case:
        def step() -> None:
            self._accumulate(sam, clear)
            self._select(sam)

        return Case(step, self._taken, self.prepare)

    def _prepare_select(self) -> None:
        self.prepare()
        self._accumulate(sam=False, clear=False)

    def _merge(self, merged: list[Tensor]) -> None:
        found = self.kernels.merge(self.spans[:, 1].copy(), self.payloads)
        assert found is not None
        merged[:] = [torch.from_numpy(found.indices.astype(np.int64)), found.values]


def whole_messages(numel: int, seed: int) -> dict[str, Case]:
    """A bucket's messages of signs, from headers to their mean: checked, decoded and scattered."""
    method = SDAGC(threshold=statistics.NormalDist().inv_cdf(1 - DENSITY / 2))
    segment = Segment(0, 0, numel)
    buckets = []
    for rank in range(NUM_PAYLOADS):
        coder = Coder(method, [ParameterInfo("weight", numel, False)], rank, NUM_PAYLOADS, seed)
        frame = coder.frame((segment,), torch.float32, False, 1)
        gradient = torch.randn(numel, generator=torch.Generator().manual_seed(seed + rank))
        bucket = open_bucket(coder, frame, gradient, 0, 0)
        assert bucket.varies
        buckets.append(bucket)
    messages = [bucket.pack_shard(0) for bucket in buckets]
    first = buckets[0]
    return {WHOLE: Case(lambda: first.unpack(messages), lambda: [first.buffer])}


def gap_results(kernels: Kernels, limit: int, repeats: int, seed: int) -> dict[str, Any]:
    """Bits for an index beside the entropy, and indices in a second each way, by density of uniform positions."""
    results = {}
    for density in GAP_DENSITIES:
        positions = np.flatnonzero(np.random.default_rng(seed).random(limit) < density)
        if len(positions) == 0:
            positions = np.array([limit // 2])
        results[f"{density:.2%}"] = _gap_result(kernels, positions, limit, repeats)
    return results


def _gap_result(kernels: Kernels, positions: Int64Array, limit: int, repeats: int) -> dict[str, Any]:
    stream = kernels.gaps_encode(positions, limit)
    decoded = kernels.gaps_decode(stream, len(positions), limit)
    assert decoded is not None
    assert np.array_equal(decoded, positions), "the gap code does not invert; nothing is timed"
    times = measure.interleave(
        {
            "encode": lambda: kernels.gaps_encode(positions, limit),
            "decode": lambda: kernels.gaps_decode(stream, len(positions), limit),
        },
        repeats,
    )
    count = len(positions)
    entropy = (math.lgamma(limit + 1) - math.lgamma(count + 1) - math.lgamma(limit - count + 1)) / math.log(2)
    return {
        "count": count,
        "bits": 8 * len(stream) / count,
        "entropy_bits": entropy / count,
        **{f"{name}_per_s": count / measure.spread(seconds)["median"] for name, seconds in times.items()},
    }


def print_gaps(title: str, results: dict[str, Any]) -> None:
    rows = [
        (
            density,
            f"{found['count']:,}",
            f"{found['bits']:.3f}",
            f"{found['entropy_bits']:.3f}",
            f"{100 * (found['bits'] / found['entropy_bits'] - 1):.2f} %" if found["entropy_bits"] > 0.01 else "",
            f"{found['encode_per_s'] / 1e6:.0f}",
            f"{found['decode_per_s'] / 1e6:.0f}",
        )
        for density, found in results.items()
    ]
    columns = ("density", "indices", "bits each", "entropy", "excess", "encode M/s", "decode M/s")
    measure.print_table(title, columns, rows)
