"""What a kernel works on: runs of elements in a flat buffer, and the groups their codes are packed in.

The layout of a group is described in docs/wire-formats.md and csrc/digits.h; the numbers here are that description's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

LANES = 8  # elements of a row
GROUP_BYTES = 32  # eight 32-bit words
STREAM_SYMBOLS = 1 << 18  # of an entropy-coded stream, at most
MOST_SYMBOL_PAYLOADS = 127  # whose sum has levels that fit a byte
CHUNK = 3840  # elements whose sums are kept in single precision
TILE = 64  # elements of a segment whose largest |v| is kept

Int64Array = npt.NDArray[np.int64]
Uint32Array = npt.NDArray[np.uint32]
Uint16Array = npt.NDArray[np.uint16]
ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]


def num_tiles(lengths: Int64Array) -> int:
    """Tiles of segments of these lengths, each segment beginning a new one."""
    return int((-(-lengths // TILE)).sum())


class Code(IntEnum):
    """The two ways a ternary value is packed."""

    TWO_BIT = 0
    BASE3 = 1

    @property
    def rows(self) -> int:
        return 16 if self is Code.TWO_BIT else 20


def level_rows(num_payloads: int) -> int:
    """How many digits of radix 2N+1 fit a 32-bit word."""
    base, rows, power = 2 * num_payloads + 1, 0, 1
    while power * base <= 2**32:
        rows, power = rows + 1, power * base
    return rows


def packed_bytes(numel: int, rows: int) -> int:
    """Bytes of `numel` digits in groups of `rows` rows."""
    return -(-numel // (rows * LANES)) * GROUP_BYTES


def symbol_digits(num_payloads: int) -> int:
    """How many digits of radix 2N+1, the levels of a sum, fit a symbol of the entropy coder, which is a byte."""
    if not 1 <= num_payloads <= MOST_SYMBOL_PAYLOADS:
        raise ValueError(f"symbols of {num_payloads} payloads: need 1..{MOST_SYMBOL_PAYLOADS}")
    return max(digits for digits in range(1, 6) if (2 * num_payloads + 1) ** digits <= 256)


def symbol_bytes(numel: int, digits: int) -> int:
    """Symbols of `numel` levels, `digits` to each: eight, one for each lane, to every `digits` rows."""
    return -(-numel // (digits * LANES)) * LANES


def cut_streams(first: int, num_symbols: int) -> Int64Array:
    """(first, length) of the streams, about equally long, that symbols are cut into to be entropy coded."""
    count = -(-num_symbols // STREAM_SYMBOLS)
    cuts = np.array([first + num_symbols * i // max(count, 1) for i in range(count + 1)], dtype=np.int64)
    return np.stack([cuts[:-1], np.diff(cuts)], axis=1)


def entropy_bound(spans: Int64Array) -> int:
    """The most bytes that streams of these (first, length) spans take: a stream never takes more than its symbols."""
    return int(spans[:, 1].sum())


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive elements of one parameter that are packed together.

    `source` is where they lie in the buffer, `offset` where in their parameter (a multiple of LANES), `unit` the first
    scaler of that parameter, `packed` and `levels` the bytes where their codes and the levels (or symbols) of their sum
    begin.
    """

    source: int
    length: int
    offset: int
    unit: int
    packed: int
    levels: int


class Runs:
    """A table of runs with scalers that serve `block` elements each (0: the whole parameter)."""

    def __init__(self, rows: list[Run], block: int = 0) -> None:
        self.rows = rows
        self.block = block
        self.table: Int64Array = np.array(
            [(r.source, r.length, r.offset, r.unit, r.packed, r.levels) for r in rows], dtype=np.int64
        ).reshape(-1, 6)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def numel(self) -> int:
        return sum(row.length for row in self.rows)


def scaler_index(run: Run, block: int) -> slice:
    """The scalers that serve a run."""
    if block == 0:
        return slice(run.unit, run.unit + 1)
    return slice(run.unit + run.offset // block, run.unit + (run.offset + max(run.length, 1) - 1) // block + 1)


# The finaliser of splitmix64 and its increment (Steele, Lea, Flood 2014).
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _mix(x: int) -> int:
    """Of one number."""
    x = (x ^ x >> 30) * _FACTORS[0] & _MASK
    x = (x ^ x >> 27) * _FACTORS[1] & _MASK
    return x ^ x >> 31


def _mix_all(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Of many at once."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FACTORS[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_FACTORS[1])
    x ^= x >> np.uint64(31)
    return x


def draw_keys(seed: int, step: int, rank: int, parameters: npt.NDArray[np.uint64]) -> Uint32Array:
    """The 64-bit key of each parameter's draws in this step on this rank, as two columns of 32 bits."""
    shared = 0
    for word in (seed, step, rank):
        shared = _mix(((shared ^ int(word) & _MASK) + _GOLDEN) & _MASK)
    keys = _mix_all((np.uint64(shared) ^ parameters) + np.uint64(_GOLDEN))
    return np.stack([keys & np.uint64(0xFFFFFFFF), keys >> np.uint64(32)], axis=1).astype(np.uint32)
