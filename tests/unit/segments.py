"""Made-up buckets with velocities and residuals, and entries, for the tests of sparse kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from layouts import gradient, same_bits
from torch import Tensor

from terngrad.kernels import Accumulated, Entries, Kernels, num_tiles
from terngrad.kernels.layout import Int64Array

# Nothing, one element, whole and broken rows, tiles, chunks of 3840 and windows of 16384.
LENGTHS = (
    0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 0, 127, 128, 129, 640, 3839, 3840, 3841, 16_383, 16_384, 16_385, 20_001,
)  # fmt: skip
LARGE = (120_000, 5, 200_003, 0, 90_001)  # enough for three threads in every kernel
UNTOUCHED = 7.0  # what a buffer holds between its segments


@dataclass
class Bucket:
    """A flat buffer, its spans, and the state of each segment."""

    buffer: Tensor
    spans: Int64Array
    velocities: list[Tensor] | None
    residuals: list[Tensor]
    factors: Tensor
    maxima: Tensor

    @property
    def lengths(self) -> list[int]:
        return [int(length) for length in self.spans[:, 1]]

    @property
    def num_segments(self) -> int:
        return len(self.spans)

    def segment(self, i: int) -> Tensor:
        source, length = self.spans[i].tolist()
        return self.buffer[source : source + length]

    def copy(self) -> Bucket:
        velocities = None if self.velocities is None else [tensor.clone() for tensor in self.velocities]
        residuals = [tensor.clone() for tensor in self.residuals]
        return Bucket(self.buffer.clone(), self.spans, velocities, residuals, self.factors.clone(), self.maxima.clone())

    def accumulate(
        self, kernels: Kernels, *, momentum: float = 0.9, nesterov: bool = False, clear: bool = False
    ) -> Accumulated:
        return kernels.accumulate(
            self.buffer, self.spans, self.velocities, self.residuals, self.factors, self.maxima,
            momentum=momentum, nesterov=nesterov, clear=clear,
        )  # fmt: skip

    def assert_equals(self, other: Bucket) -> None:
        assert same_bits(self.buffer, other.buffer)
        assert same_bits(self.maxima, other.maxima)
        for mine, theirs in zip(self.residuals, other.residuals, strict=True):
            assert same_bits(mine, theirs)
        for mine, theirs in zip(self.velocities or [], other.velocities or [], strict=True):
            assert same_bits(mine, theirs)


def make_bucket(
    dtype: torch.dtype = torch.float32, lengths: Sequence[int] = LENGTHS, *, velocities: bool = True, seed: int = 0
) -> Bucket:
    """Segments three elements apart, with states of widely different sizes and factors near one."""
    spans, source = [], 3
    for length in lengths:
        spans.append((source, length))
        source += length + 3
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)
    buffer = gradient(source, dtype, seed)
    inside = torch.zeros(source, dtype=torch.bool)
    for first, length in spans:
        inside[first : first + length] = True
    buffer[~inside] = UNTOUCHED
    states = [[gradient(n, torch.float32, 100 * kind + i + seed) for i, n in enumerate(lengths)] for kind in (1, 2)]
    factors = torch.linspace(0.5, 1.5, len(lengths))
    factors[::2] = 1.0
    maxima = torch.full((num_tiles(table[:, 1]),), torch.nan)
    return Bucket(buffer, table, states[0] if velocities else None, states[1], factors, maxima)


def make_entries(lengths: Sequence[int], density: float, seed: int) -> Entries:
    """Random elements of each segment; some values are zeros of either sign."""
    random = np.random.default_rng(seed)
    chosen = [np.flatnonzero(random.random(length) < density) for length in lengths]
    counts = np.array([len(indices) for indices in chosen], dtype=np.int64)
    values = gradient(int(counts.sum()), torch.float32, seed)
    values[::13] = -0.0
    return Entries(counts, np.concatenate([np.zeros(0, np.int64), *chosen]).astype(np.uint32), values)


def same_entries(a: Entries, b: Entries) -> bool:
    return (
        a.counts.dtype == b.counts.dtype == np.int64
        and a.indices.dtype == b.indices.dtype == np.uint32
        and np.array_equal(a.counts, b.counts)
        and np.array_equal(a.indices, b.indices)
        and same_bits(a.values, b.values)
    )
