"""Made-up parameters and gradients for the tests of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from terngrad.kernels import Code, Run, Runs, draw_keys, level_rows, packed_bytes
from terngrad.kernels.layout import Int64Array, Uint32Array

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS = (0, 8, 64, 512)
UNTOUCHED = 0xA5  # what bytes hold that no kernel may write

# Each parameter as the lengths of the runs it is cut into: nothing, one element, whole and broken rows and groups, more
# than a chunk of 3840, and cuts in the middle. Runs start at multiples of eight elements.
PIECES: tuple[tuple[int, ...], ...] = (
    (1,), (0,), (7,), (8,), (9,), (127,), (128,), (160,), (161,), (8, 120, 33), (16, 0, 5), (640, 1000, 1), (3840,),
    (24, 4001), (8005,), (3,),
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """A table of runs, and how large everything is that it refers to."""

    runs: Runs
    spans: Int64Array  # the elements of each scaler
    keys: Uint32Array  # of each run
    numel: int
    packed_nbytes: int
    levels_nbytes: int

    @property
    def num_units(self) -> int:
        return len(self.spans)

    def packed(self) -> Tensor:
        return torch.full((self.packed_nbytes,), UNTOUCHED, dtype=torch.uint8)

    def levels(self) -> Tensor:
        return torch.full((self.levels_nbytes,), UNTOUCHED, dtype=torch.uint8)


def lay_out(
    code: Code, block: int, num_payloads: int = 1, pieces: Sequence[Sequence[int]] = PIECES, rank: int = 0
) -> Layout:
    """Runs of these lengths, with three elements or bytes between parameters that belong to none."""
    rows: list[Run] = []
    spans: list[tuple[int, int]] = []
    owners: list[int] = []
    source = packed = levels = 3
    for parameter, lengths in enumerate(pieces):
        offset, unit, numel = 0, len(spans), sum(lengths)
        for length in lengths:
            rows.append(Run(source + offset, length, offset, unit, packed, levels))
            owners.append(parameter)
            offset += length
            packed += packed_bytes(length, code.rows)
            levels += packed_bytes(length, level_rows(num_payloads))
        size = block or max(numel, 1)
        spans.extend((source + first, min(size, numel - first)) for first in range(0, max(numel, 1), size))
        source, packed, levels = source + numel + 3, packed + 3, levels + 3
    keys = draw_keys(1, 2, rank, np.array(owners, dtype=np.uint64))
    return Layout(Runs(rows, block), np.array(spans, dtype=np.int64), keys, source, packed, levels)


def gradient(numel: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Normal values of widely different sizes, some exactly zero."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (-4 * torch.rand(numel, generator=generator))
    kept = torch.rand(numel, generator=generator) < 0.95
    return (torch.randn(numel, generator=generator) * sizes * kept).to(dtype)


def random_codes(code: Code, layout: Layout, seed: int) -> Tensor:
    """A payload of arbitrary codes that an encoder could write: the padding behind each run is zeros."""
    generator = torch.Generator().manual_seed(seed)
    payload = layout.packed()
    for run in layout.runs.rows:
        digits = torch.randint(0, 3, (run.length,), generator=generator)
        codes = pack_digits(digits, code)
        payload[run.packed : run.packed + len(codes)] = codes
    return payload


def pack_digits(digits: Tensor, code: Code) -> Tensor:
    """The layout of csrc/digits.h, written down once more."""
    rows = torch.nn.functional.pad(digits, (0, -len(digits) % (code.rows * 8)), value=1).view(-1, code.rows, 8)
    per_byte = code.rows // 4
    weights = torch.tensor([(4 if code is Code.TWO_BIT else 3) ** (per_byte - 1 - k) for k in range(per_byte)])
    quarters = (rows.view(-1, 4, per_byte, 8) * weights[:, None]).sum(dim=2)  # (groups, byte by rows, lanes)
    if code is Code.TWO_BIT:
        quarters = quarters.flip(1)  # its first rows are in the highest byte
    return quarters.transpose(1, 2).to(torch.uint8).flatten()


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the last bit, -0.0 unlike 0.0; but one NaN is as good as another."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    number = ~a.isnan()
    return torch.equal(number, ~b.isnan()) and torch.equal(a.view(integer)[number], b.view(integer)[number])
