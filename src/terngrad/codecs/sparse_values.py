"""The values of sparse messages: rounded to a type, as signs with one magnitude, or as one of few sums.

Values are grouped by parameter; `counts` says how many each has that has any.
"""

from __future__ import annotations

import struct

import numpy as np
import torch

from terngrad.codecs.segments import DENSE_TYPES
from terngrad.kernels import FloatArray, Int64Array, Palettes, kernels_for

SIGN = "sign"  # and one magnitude for all chosen values of a parameter
VALUES = (*DENSE_TYPES, SIGN)
SIGN_SUMS = "sums of signs"  # exact, as those in fp32 are, but in fewer bytes
_SPAN = struct.Struct("<Q")  # of the ranks, as positions
_CPU = torch.device("cpu")  # where bytes are written, wherever the gradient is


def sums_of(kind: str) -> str:
    """How the sums of such values are written: nothing is rounded twice, so that all exchanges give the same."""
    return SIGN_SUMS if kind == SIGN else "fp32"


def round_values(kind: str, values: FloatArray, counts: Int64Array, limits: FloatArray) -> FloatArray:
    """What a reader will find. With signs it is the mean magnitude of a parameter, at most that parameter's limit."""
    if kind == SIGN:
        if not len(values):
            return values
        means = np.add.reduceat(np.abs(values), np.cumsum(counts) - counts, dtype=np.float64) / counts
        magnitudes: FloatArray = np.repeat(np.minimum(means.astype(np.float32), limits), counts)
        return np.copysign(magnitudes, values)
    found = torch.from_numpy(values)
    most = torch.finfo(DENSE_TYPES[kind]).max  # what does not fit stays behind, as any rounding does
    found = torch.where(found.isfinite(), found.clamp(-most, most), found)
    return np.asarray(found.to(DENSE_TYPES[kind]).float().numpy())


def pack_values(kind: str, values: FloatArray, counts: Int64Array) -> bytes:
    if not len(values):
        return b""
    if kind == SIGN:
        return _pack_signs(values, counts)
    if kind == SIGN_SUMS:
        return _pack_palettes(kernels_for(_CPU).palettes(values, counts))
    return bytes(torch.from_numpy(values).to(DENSE_TYPES[kind]).view(torch.uint8).numpy().tobytes())


def unpack_values(kind: str, data: bytes, counts: Int64Array) -> FloatArray:
    """ValueError: these are not the bytes of so many values."""
    if not int(counts.sum()):
        _require(len(data), 0)
        return np.empty(0, np.float32)
    if kind == SIGN:
        return _unpack_signs(data, counts)
    if kind == SIGN_SUMS:
        return _unpack_palettes(data, counts)
    _require(len(data), int(counts.sum()) * DENSE_TYPES[kind].itemsize)
    return np.asarray(torch.frombuffer(bytearray(data), dtype=DENSE_TYPES[kind]).float().numpy())


def item_bytes(kind: str) -> int:
    """Of a value that is written as it is."""
    return 4 if kind == SIGN_SUMS else DENSE_TYPES[kind].itemsize


def most_bytes(num_values: int, num_parameters: int) -> int:
    """Of values of any kind: fp32, and with signs or their sums a few more for each parameter."""
    return 4 * num_values + 4 * num_parameters + _SPAN.size


def _require(got: int, need: int) -> None:
    if got != need:
        raise ValueError(f"{got} bytes of values, need {need}")


# Signs


def _pack_signs(values: FloatArray, counts: Int64Array) -> bytes:
    """A bit for each sign, then the magnitude of each parameter, which all of its values share."""
    scales = np.abs(values[np.cumsum(counts) - counts])
    return bytes(np.packbits(np.signbit(values), bitorder="little").tobytes() + scales.astype("<f4").tobytes())


def _unpack_signs(data: bytes, counts: Int64Array) -> FloatArray:
    number = int(counts.sum())
    num_sign_bytes = -(-number // 8)
    _require(len(data), num_sign_bytes + 4 * len(counts))
    negative = np.unpackbits(np.frombuffer(data[:num_sign_bytes], np.uint8), bitorder="little")[:number]
    values = np.repeat(np.frombuffer(data[num_sign_bytes:], "<f4"), counts).astype(np.float32, copy=False)
    words = values.view(np.uint32)  # a sign is its highest bit; quicker than to choose between two
    words ^= negative.astype(np.uint32) << np.uint32(31)
    return values


# Sums of signs. Most positions were chosen by one rank or two, so the values of a parameter are few: plus or minus a
# rank's magnitude, or the sum of two. Each is written once, and which of them a position has as a small number.


def _pack_palettes(found: Palettes) -> bytes:
    head = found.sizes.astype("<u2").tobytes() + found.table.astype("<f4").tobytes()
    if not len(found.ranks):
        return head
    positions = np.cumsum(found.ranks.astype(np.int64) + 1) - 1  # ranks are the gaps between them
    span = int(positions[-1]) + 1
    return head + _SPAN.pack(span) + kernels_for(_CPU).gaps_encode(positions, span).tobytes()


def _unpack_palettes(data: bytes, counts: Int64Array) -> FloatArray:
    start = 2 * len(counts)
    if len(data) < start:
        raise ValueError(f"{len(data)} bytes of values of {len(counts)} parameters")
    sizes = np.frombuffer(data[:start], "<u2").astype(np.int64)
    lengths = np.where(sizes > 0, sizes, counts)
    end = start + 4 * int(lengths.sum())
    _require(min(len(data), end), end)
    table = np.frombuffer(data[start:end], "<f4")
    ranked = np.repeat(sizes > 0, counts)
    places = np.arange(len(ranked)) - np.repeat(np.cumsum(counts) - counts, counts)  # within the parameter
    places[ranked] = _unpack_ranks(data[end:], int(ranked.sum()))
    if (places >= np.repeat(lengths, counts)).any():
        raise ValueError("a rank behind the last value of its parameter")
    return np.asarray(table[places + np.repeat(np.cumsum(lengths) - lengths, counts)])


def _unpack_ranks(data: bytes, number: int) -> Int64Array:
    if not number:
        _require(len(data), 0)
        return np.empty(0, np.int64)
    if len(data) < _SPAN.size:
        raise ValueError(f"{len(data)} bytes of ranks")
    (span,) = _SPAN.unpack_from(data)
    if span > 2**16 * number:
        raise ValueError(f"{number} ranks that span {span}")
    positions = kernels_for(_CPU).gaps_decode(np.frombuffer(data[_SPAN.size :], np.uint8), number, span)
    if positions is None or positions[-1] != span - 1:
        raise ValueError("holds ranks that no encoder writes")
    return np.diff(positions, prepend=-1) - 1
