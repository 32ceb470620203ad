"""The C++ kernels, with the signatures of `reference`. For contiguous CPU tensors only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from terngrad.kernels import _native
from terngrad.kernels.addresses import buffer_of, bytes_of, payloads_of
from terngrad.kernels.layout import Code, Int64Array, Runs, Uint32Array
from terngrad.kernels.native_sparse import NativeSparse
from terngrad.kernels.reference import Statistics

available: list[str] = _native.available()


class Native(NativeSparse):
    """The kernels of one instruction set, run on `threads` threads."""

    def __init__(self, isa: str, threads: int = 1) -> None:
        super().__init__(isa, threads)
        self.name = f"native:{isa}"

    def statistics(self, buffer: Tensor, spans: Int64Array) -> Statistics:
        count = len(spans)
        largest, total, squares = np.empty(count, np.float32), np.empty(count), np.empty(count)
        _native.statistics(self.isa, *buffer_of(buffer), spans, largest, total, squares, self.threads)
        return Statistics(torch.from_numpy(largest), torch.from_numpy(total), torch.from_numpy(squares))

    def ternarize(
        self, buffer: Tensor, runs: Runs, keys: Uint32Array, limit: Tensor, step: Tensor, code: Code, packed: Tensor
    ) -> None:
        _native.ternarize(
            self.isa, *buffer_of(buffer), int(code), runs.table, runs.block, keys, limit.numpy(), step.numpy(),
            *bytes_of(packed), self.threads,
        )  # fmt: skip

    def mean_shared(self, buffer: Tensor, runs: Runs, payloads: Sequence[Tensor], scale: Tensor, code: Code) -> bool:
        return _native.mean_shared(
            self.isa, *buffer_of(buffer), int(code), runs.table, runs.block, *payloads_of(payloads), scale.numpy(),
            self.threads,
        )  # fmt: skip

    def mean_own(self, buffer: Tensor, runs: Runs, payloads: Sequence[Tensor], scale: Tensor, code: Code) -> bool:
        return _native.mean_own(
            self.isa, *buffer_of(buffer), int(code), runs.table, runs.block, *payloads_of(payloads),
            scale.flatten().numpy(), self.threads,
        )  # fmt: skip

    def sum_levels(self, runs: Runs, payloads: Sequence[Tensor], code: Code, levels: Tensor) -> bool:
        return _native.sum_levels(
            self.isa, int(code), runs.table, *payloads_of(payloads), *bytes_of(levels), self.threads
        )

    def mean_levels(self, buffer: Tensor, runs: Runs, levels: Tensor, num_payloads: int, scale: Tensor) -> bool:
        return _native.mean_levels(
            self.isa, *buffer_of(buffer), runs.table, runs.block, num_payloads, *bytes_of(levels), scale.numpy(),
            self.threads,
        )  # fmt: skip

    def sum_symbols(self, runs: Runs, payloads: Sequence[Tensor], code: Code, symbols: Tensor) -> bool:
        return _native.sum_symbols(
            self.isa, int(code), runs.table, *payloads_of(payloads), *bytes_of(symbols), self.threads
        )  # fmt: skip

    def mean_symbols(self, buffer: Tensor, runs: Runs, symbols: Tensor, num_payloads: int, scale: Tensor) -> bool:
        return _native.mean_symbols(
            self.isa, *buffer_of(buffer), runs.table, runs.block, num_payloads, *bytes_of(symbols), scale.numpy(),
            self.threads,
        )  # fmt: skip

    def entropy_encode(self, symbols: Tensor, spans: Int64Array, radix: int, digits: int, target: Tensor) -> Int64Array:
        lengths = np.empty(len(spans), np.int64)
        _native.entropy_encode(
            self.isa, radix, digits, *bytes_of(symbols), spans, *bytes_of(target), lengths, self.threads
        )  # fmt: skip
        return lengths

    def entropy_decode(
        self, payload: Tensor, lengths: Int64Array, spans: Int64Array, radix: int, digits: int, symbols: Tensor
    ) -> bool:
        return _native.entropy_decode(
            self.isa, radix, digits, *bytes_of(payload), lengths, spans, *bytes_of(symbols), self.threads
        )  # fmt: skip

    def error(
        self, buffer: Tensor, runs: Runs, packed: Tensor, scale: Tensor, code: Code
    ) -> tuple[Tensor, Tensor, bool]:
        nonzero, squared = np.empty(len(runs), np.int64), np.empty(len(runs))
        good = _native.error(
            self.isa, *buffer_of(buffer), int(code), runs.table, runs.block, *bytes_of(packed), scale.numpy(), nonzero,
            squared, self.threads,
        )  # fmt: skip
        return torch.from_numpy(nonzero), torch.from_numpy(squared), good
