"""The C++ kernels, with the signatures of `reference`. For contiguous CPU tensors only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from terngrad.kernels import _native
from terngrad.kernels.layout import Code, Int64Array, Runs, Uint32Array
from terngrad.kernels.reference import Statistics

_ELEMENTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}

available: list[str] = _native.available()


def _buffer(tensor: Tensor) -> tuple[int, int, int]:
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"native kernels need a contiguous CPU tensor, got {tensor.device} strides {tensor.stride()}")
    return tensor.data_ptr(), tensor.numel(), _ELEMENTS[tensor.dtype]


def _bytes(tensor: Tensor) -> tuple[int, int]:
    if tensor.dtype is not torch.uint8 or not tensor.is_contiguous():
        raise ValueError(f"a payload is a contiguous uint8 tensor, got {tensor.dtype} strides {tensor.stride()}")
    return tensor.data_ptr(), tensor.numel()


def _payloads(payloads: Sequence[Tensor]) -> tuple[list[int], int]:
    found = [_bytes(payload) for payload in payloads]
    return [address for address, _ in found], min(size for _, size in found)


class Native:
    """The kernels of one instruction set, run on `threads` threads."""

    def __init__(self, isa: str, threads: int = 1) -> None:
        self.isa = isa
        self.threads = threads
        self.name = f"native:{isa}"

    def statistics(self, buffer: Tensor, spans: Int64Array) -> Statistics:
        count = len(spans)
        largest, total, squares = np.empty(count, np.float32), np.empty(count), np.empty(count)
        _native.statistics(self.isa, *_buffer(buffer), spans, largest, total, squares, self.threads)
        return Statistics(torch.from_numpy(largest), torch.from_numpy(total), torch.from_numpy(squares))

    def ternarize(
        self, buffer: Tensor, runs: Runs, keys: Uint32Array, limit: Tensor, step: Tensor, code: Code, packed: Tensor
    ) -> None:
        _native.ternarize(
            self.isa, *_buffer(buffer), int(code), runs.table, runs.block, keys, limit.numpy(), step.numpy(),
            *_bytes(packed), self.threads,
        )  # fmt: skip

    def mean_shared(self, buffer: Tensor, runs: Runs, payloads: Sequence[Tensor], scale: Tensor, code: Code) -> bool:
        return _native.mean_shared(
            self.isa, *_buffer(buffer), int(code), runs.table, runs.block, *_payloads(payloads), scale.numpy(),
            self.threads,
        )  # fmt: skip

    def mean_own(self, buffer: Tensor, runs: Runs, payloads: Sequence[Tensor], scale: Tensor, code: Code) -> bool:
        return _native.mean_own(
            self.isa, *_buffer(buffer), int(code), runs.table, runs.block, *_payloads(payloads),
            scale.flatten().numpy(), self.threads,
        )  # fmt: skip

    def sum_levels(self, runs: Runs, payloads: Sequence[Tensor], code: Code, levels: Tensor) -> bool:
        return _native.sum_levels(self.isa, int(code), runs.table, *_payloads(payloads), *_bytes(levels), self.threads)

    def mean_levels(self, buffer: Tensor, runs: Runs, levels: Tensor, num_payloads: int, scale: Tensor) -> bool:
        return _native.mean_levels(
            self.isa, *_buffer(buffer), runs.table, runs.block, num_payloads, *_bytes(levels), scale.numpy(),
            self.threads,
        )  # fmt: skip

    def error(
        self, buffer: Tensor, runs: Runs, packed: Tensor, scale: Tensor, code: Code
    ) -> tuple[Tensor, Tensor, bool]:
        nonzero, squared = np.empty(len(runs), np.int64), np.empty(len(runs))
        good = _native.error(
            self.isa, *_buffer(buffer), int(code), runs.table, runs.block, *_bytes(packed), scale.numpy(), nonzero,
            squared, self.threads,
        )  # fmt: skip
        return torch.from_numpy(nonzero), torch.from_numpy(squared), good
