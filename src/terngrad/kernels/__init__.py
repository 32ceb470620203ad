"""Kernels at memory speed: a plain-torch reference for every device, and C++ for the CPU that equals it bit for bit.

`kernels_for(device)` is how the rest of the package gets them; `backend()` and `set_backend()` are for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch
from torch import Tensor

from terngrad.errors import ConfigurationError
from terngrad.kernels import reference
from terngrad.kernels.layout import (
    MOST_SYMBOL_PAYLOADS,
    ByteArray,
    Code,
    FloatArray,
    Int64Array,
    Run,
    Runs,
    Uint32Array,
    cut_streams,
    draw_keys,
    entropy_bound,
    level_rows,
    num_tiles,
    packed_bytes,
    symbol_bytes,
    symbol_digits,
)
from terngrad.kernels.reference import Accumulated, Entries, Palettes, Statistics

__all__ = [
    "MOST_SYMBOL_PAYLOADS", "Accumulated", "Code", "Entries", "FloatArray", "Int64Array", "Kernels", "Palettes", "Run",
    "Runs", "Statistics", "backend", "backends", "cut_streams", "draw_keys", "entropy_bound", "kernels_for",
    "level_rows", "num_tiles", "packed_bytes", "set_backend", "symbol_bytes", "symbol_digits",
]  # fmt: skip


class Kernels(Protocol):
    """What every backend offers; `reference` documents each."""

    @property
    def name(self) -> str: ...
    def statistics(self, buffer: Tensor, spans: Int64Array) -> Statistics: ...
    def ternarize(
        self, buffer: Tensor, runs: Runs, keys: Uint32Array, limit: Tensor, step: Tensor, code: Code, packed: Tensor
    ) -> None: ...
    def mean_shared(
        self, buffer: Tensor, runs: Runs, payloads: Sequence[Tensor], scale: Tensor, code: Code
    ) -> bool: ...
    def mean_own(self, buffer: Tensor, runs: Runs, payloads: Sequence[Tensor], scale: Tensor, code: Code) -> bool: ...
    def sum_levels(self, runs: Runs, payloads: Sequence[Tensor], code: Code, levels: Tensor) -> bool: ...
    def mean_levels(self, buffer: Tensor, runs: Runs, levels: Tensor, num_payloads: int, scale: Tensor) -> bool: ...
    def sum_symbols(self, runs: Runs, payloads: Sequence[Tensor], code: Code, symbols: Tensor) -> bool: ...
    def mean_symbols(self, buffer: Tensor, runs: Runs, symbols: Tensor, num_payloads: int, scale: Tensor) -> bool: ...
    def entropy_encode(
        self, symbols: Tensor, spans: Int64Array, radix: int, digits: int, target: Tensor
    ) -> Int64Array: ...
    def entropy_decode(
        self, payload: Tensor, lengths: Int64Array, spans: Int64Array, radix: int, digits: int, symbols: Tensor
    ) -> bool: ...
    def error(
        self, buffer: Tensor, runs: Runs, packed: Tensor, scale: Tensor, code: Code
    ) -> tuple[Tensor, Tensor, bool]: ...

    # Sparse gradients
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
    ) -> Accumulated: ...
    def select(
        self,
        residuals: Sequence[Tensor],
        velocities: Sequence[Tensor] | None,
        maxima: Tensor,
        thresholds: Tensor,
        factor: float = 0.0,
    ) -> tuple[Entries, Tensor | None]: ...
    def restore(
        self, residuals: Sequence[Tensor], velocities: Sequence[Tensor] | None, entries: Entries, saved: Tensor | None
    ) -> None: ...
    def add_back(self, residuals: Sequence[Tensor], entries: Entries) -> None: ...
    def scatter_mean(self, buffer: Tensor, spans: Int64Array, payloads: Sequence[Entries], num_ranks: int) -> bool: ...
    def merge(self, lengths: Int64Array, payloads: Sequence[Entries]) -> Entries | None: ...
    def gaps_encode(self, positions: Int64Array, limit: int) -> ByteArray: ...
    def gaps_decode(self, stream: ByteArray, count: int, limit: int) -> Int64Array | None: ...
    def palettes(self, values: FloatArray, counts: Int64Array) -> Palettes: ...


_REFERENCE = cast(Kernels, reference)


def _native_names() -> list[str]:
    try:
        from terngrad.kernels import native
    except ImportError:
        return []
    return [f"native:{isa}" for isa in native.available]


def backends() -> list[str]:
    """The kernels that this machine can run, best first: "native:<instruction set>", and last "reference"."""
    return [*_native_names(), "reference"]


def _make(name: str, threads: int) -> Kernels:
    if name not in backends():
        raise ConfigurationError(f"set_backend({name!r}): this machine has {', '.join(backends())}; pass one of these")
    if threads < 1:
        raise ConfigurationError(f"set_backend(threads={threads}): threads must be at least 1")
    if name == "reference":
        return _REFERENCE
    from terngrad.kernels.native import Native

    return Native(name.removeprefix("native:"), threads)


_cpu: Kernels = _make(backends()[0], threads=1)


def backend() -> str:
    """Which kernels serve CPU tensors: "native:avx2", "native:portable", ... or "reference"."""
    return _cpu.name


def set_backend(name: str, threads: int = 1) -> None:
    """Chooses the kernels for CPU tensors by a name from `backends()`, and how many threads they use.

    Every backend gives the same bits, so this changes speed and nothing else.
    """
    global _cpu  # noqa: PLW0603 - one choice for the process is what this function is for
    _cpu = _make(name, threads)


def kernels_for(device: torch.device) -> Kernels:
    """The kernels for tensors on `device`."""
    return _cpu if device.type == "cpu" else _REFERENCE
