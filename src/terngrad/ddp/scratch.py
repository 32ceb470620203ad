"""Buffers that are allocated once: they grow to the largest bucket and are used again by every other one."""

from __future__ import annotations

import torch
from torch import Tensor


class Scratch:
    """Named byte buffers of one of the two buckets that can be under way at a time."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.device], Tensor] = {}

    def take(self, device: torch.device, role: str, rows: int, row_bytes: int) -> Tensor:
        """A (rows, row_bytes) uint8 matrix; what it held before is gone."""
        size = rows * row_bytes
        held = self._buffers.get((role, device))
        if held is None or held.numel() < size:
            held = torch.zeros(size, dtype=torch.uint8, device=device)  # padding is sent
            self._buffers[role, device] = held
        return held[:size].view(rows, row_bytes)

    def clear(self) -> None:
        """Lets go of all buffers; those in use live on until their bucket is done."""
        self._buffers.clear()

    @property
    def nbytes(self) -> int:
        return sum(buffer.numel() for buffer in list(self._buffers.values()))
