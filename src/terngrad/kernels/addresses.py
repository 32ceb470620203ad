"""Tensors as the native core sees them: addresses and sizes, of contiguous CPU tensors only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from terngrad.kernels.layout import Int64Array

_ELEMENTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def _check(tensor: Tensor) -> None:
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"native kernels need a contiguous CPU tensor, got {tensor.device} strides {tensor.stride()}")


def buffer_of(tensor: Tensor) -> tuple[int, int, int]:
    """Address, elements and element type."""
    _check(tensor)
    return tensor.data_ptr(), tensor.numel(), _ELEMENTS[tensor.dtype]


def bytes_of(tensor: Tensor) -> tuple[int, int]:
    """Address and bytes of a payload."""
    if tensor.dtype is not torch.uint8 or not tensor.is_contiguous():
        raise ValueError(f"a payload is a contiguous uint8 tensor, got {tensor.dtype} strides {tensor.stride()}")
    return tensor.data_ptr(), tensor.numel()


def payloads_of(payloads: Sequence[Tensor]) -> tuple[list[int], int]:
    """The address of each payload, and the bytes that all have."""
    found = [bytes_of(payload) for payload in payloads]
    return [address for address, _ in found], min(size for _, size in found)


def states_of(states: Sequence[Tensor] | None) -> Int64Array:
    """Address and elements of each float32 tensor; no rows for None."""
    for state in states or ():
        _check(state)
        if state.dtype is not torch.float32:
            raise ValueError(f"velocities and residuals are float32 tensors, got {state.dtype}")
    rows = [(state.data_ptr(), state.numel()) for state in states or ()]
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def writable(tensor: Tensor) -> npt.NDArray[np.float32]:
    """A float32 tensor as an array that shares its memory; anything else would be converted, and the results lost."""
    _check(tensor)
    if tensor.dtype is not torch.float32:
        raise ValueError(f"maxima are a float32 tensor, got {tensor.dtype}")
    found: npt.NDArray[np.float32] = tensor.numpy()
    return found
