"""The C++ kernels of sparse gradients, with the signatures of `reference`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from terngrad.kernels import _native
from terngrad.kernels.addresses import buffer_of, states_of, writable
from terngrad.kernels.layout import ByteArray, FloatArray, Int64Array, Uint32Array
from terngrad.kernels.reference import Accumulated, Entries, Palettes, Statistics

_Columns = tuple[list[Int64Array], list[Uint32Array], list[FloatArray]]


def _columns(payloads: Sequence[Entries]) -> _Columns:
    return (
        [entries.counts for entries in payloads],
        [entries.indices for entries in payloads],
        [entries.values.numpy() for entries in payloads],
    )


class NativeSparse:
    """The part of `Native` for sparse gradients."""

    def __init__(self, isa: str, threads: int) -> None:
        self.isa = isa
        self.threads = threads

    def accumulate(
        self,
        buffer: Tensor,
        spans: Int64Array,
        velocities: Sequence[Tensor] | None,
        residuals: Sequence[Tensor],
        factors: Tensor,
        maxima: Tensor,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        clear: bool = False,
    ) -> Accumulated:
        count = len(spans)
        largest, total, squares = np.empty(count, np.float32), np.empty(count), np.empty(count)
        finite = np.empty(count, np.bool_)
        _native.accumulate(
            self.isa, *buffer_of(buffer), spans, states_of(velocities), states_of(residuals), factors.numpy(),
            momentum, nesterov, clear, writable(maxima), largest, total, squares, finite, self.threads,
        )  # fmt: skip
        found = Statistics(torch.from_numpy(largest), torch.from_numpy(total), torch.from_numpy(squares))
        return Accumulated(found, torch.from_numpy(finite))

    def select(
        self,
        residuals: Sequence[Tensor],
        velocities: Sequence[Tensor] | None,
        maxima: Tensor,
        thresholds: Tensor,
        factor: float = 0.0,
    ) -> tuple[Entries, Tensor | None]:
        counts, indices, values, saved = _native.select(
            self.isa, states_of(residuals), states_of(velocities), maxima.numpy(), thresholds.numpy(), factor,
            self.threads,
        )  # fmt: skip
        entries = Entries(counts, indices, torch.from_numpy(values))
        return entries, None if velocities is None else torch.from_numpy(saved)

    def restore(
        self, residuals: Sequence[Tensor], velocities: Sequence[Tensor] | None, entries: Entries, saved: Tensor | None
    ) -> None:
        kept = np.zeros(0, np.float32) if saved is None else saved.numpy()
        _native.restore(
            states_of(residuals), states_of(velocities), entries.counts, entries.indices, entries.values.numpy(), kept
        )

    def add_back(self, residuals: Sequence[Tensor], entries: Entries) -> None:
        _native.add_back(states_of(residuals), entries.counts, entries.indices, entries.values.numpy())

    def scatter_mean(self, buffer: Tensor, spans: Int64Array, payloads: Sequence[Entries], num_ranks: int) -> bool:
        return _native.scatter_mean(*buffer_of(buffer), spans, *_columns(payloads), num_ranks, self.threads)

    def merge(self, lengths: Int64Array, payloads: Sequence[Entries]) -> Entries | None:
        found = _native.merge(lengths, *_columns(payloads), self.threads)
        return None if found is None else Entries(found[0], found[1], torch.from_numpy(found[2]))

    def gaps_encode(self, positions: Int64Array, limit: int) -> ByteArray:
        return _native.gaps_encode(positions, limit)

    def gaps_decode(self, stream: ByteArray, count: int, limit: int) -> Int64Array | None:
        return _native.gaps_decode(stream, count, limit)

    def palettes(self, values: FloatArray, counts: Int64Array) -> Palettes:
        return Palettes(*_native.palettes(values, counts))
