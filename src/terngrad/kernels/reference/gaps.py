"""The gap code: strictly increasing positions as adaptive Golomb-Rice codes of the gaps between them.

docs/wire-formats.md describes the stream. Running means by context, and their halving by a shift, are in the manner of
LOCO-I (Weinberger, Seroussi, Sapiro 2000); the rule for k is the one that suits geometric gaps, which positions drawn
at random have. The context is how long the three gaps before were: in real gradients positions come in clusters.
"""

from __future__ import annotations

import numpy as np

from terngrad.kernels.layout import ByteArray, Int64Array

MEAN_SHIFT = 5  # the mean moves by 1/32 of each new gap
ESCAPE = 16  # quotients from here on are not written in unary
MAX_LOW_BITS = 32
MAX_POSITIONS = 2**48
NUM_CONTEXTS = 51  # the digits of a sum of three gaps


class GapModel:
    """What both sides know of the gaps so far; at first, what follows from `count` of `limit` positions."""

    def __init__(self, limit: int, count: int) -> None:
        self.scaled_means = [((limit - count) << MEAN_SHIFT) // count] * NUM_CONTEXTS
        self.raw_bits = (limit - count).bit_length()
        self._last = (0, 0, 0)
        self._context = 0

    def low(self) -> int:
        """How many low bits of the next gap are written as they are."""
        return min((self.scaled_means[self._context] >> MEAN_SHIFT + 1).bit_length(), MAX_LOW_BITS)

    def update(self, gap: int, low: int) -> None:
        mean = self.scaled_means[self._context]
        self.scaled_means[self._context] = mean + min(gap, ESCAPE << low) - (mean >> MEAN_SHIFT)
        self._last = (gap, *self._last[:2])
        self._context = sum(self._last).bit_length()


def _check_limit(limit: int) -> None:
    if not 0 <= limit <= MAX_POSITIONS:
        raise ValueError(f"gaps among {limit} positions: need 0..2^48")


def gaps_encode(positions: Int64Array, limit: int) -> ByteArray:
    """The stream of strictly increasing positions below `limit`."""
    _check_limit(limit)
    if len(positions) == 0:
        return np.zeros(0, np.uint8)
    if positions[0] < 0 or positions[-1] >= limit or (positions[1:] <= positions[:-1]).any():
        raise ValueError(f"positions must increase and be below the limit {limit}, and these do not")
    gaps = np.diff(positions, prepend=np.int64(-1)) - 1
    model, stream = GapModel(limit, len(gaps)), bytearray()
    waiting = num_bits = 0
    for gap in gaps.tolist():
        low = model.low()
        quotient = gap >> low
        if quotient < ESCAPE:
            code, size = (gap & (1 << low) - 1) << quotient + 1 | 1 << quotient, quotient + 1 + low
        else:
            code, size = gap << ESCAPE, ESCAPE + model.raw_bits
        waiting |= code << num_bits
        num_bits += size
        while num_bits >= 8:
            stream.append(waiting & 255)
            waiting, num_bits = waiting >> 8, num_bits - 8
        model.update(gap, low)
    if num_bits:
        stream.append(waiting)
    return np.frombuffer(stream, np.uint8)


def gaps_decode(stream: ByteArray, count: int, limit: int) -> Int64Array | None:
    """The `count` positions below `limit` of a stream; None if no encoder writes it."""
    _check_limit(limit)
    if count < 0:
        raise ValueError(f"{count} gaps: need 0 or more")
    if count > min(limit, 8 * len(stream)):
        return None
    if count == 0:
        return np.zeros(0, np.int64) if len(stream) == 0 else None
    bits = "".join(f"{byte:08b}"[::-1] for byte in stream.tolist())
    model, at, position = GapModel(limit, count), 0, -1
    positions = np.empty(count, np.int64)
    for i in range(count):
        low = model.low()
        quotient = bits.find("1", at, at + ESCAPE) - at
        if quotient >= 0:
            start, size = at + quotient + 1, low
            gap = quotient << low | _number(bits[start : start + low])
        else:
            start, size = at + ESCAPE, model.raw_bits
            gap = _number(bits[start : start + size])
            if gap >> low < ESCAPE:
                return None
        at = start + size
        position += gap + 1
        if at > len(bits) or position >= limit:
            return None
        positions[i] = position
        model.update(gap, low)
    return positions if len(bits) - at < 8 and "1" not in bits[at:] else None


def _number(bits: str) -> int:
    """The number with these bits, lowest first."""
    return int(bits[::-1], 2) if bits else 0
