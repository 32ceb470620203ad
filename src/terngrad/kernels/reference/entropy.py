"""The entropy coder: the range variant of asymmetric numeral systems (Duda 2013), eight interleaved states to a stream.

A symbol is a byte: `digits` digits of a radix. The model of a stream, its table, is of order zero, and takes symbols
with the same digits in another order (a class) to be equally likely. That is exact for independent digits; others come
back as well, but might have been coded in fewer bytes. docs/wire-formats.md has every byte.

States and streams are worked on abreast, in numpy; symbols on another device are copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from terngrad.kernels.layout import STREAM_SYMBOLS, Int64Array, entropy_bound

STATES = 8
STATE_BYTES = 4 * STATES
LOWEST = 1 << 15  # a state is in [LOWEST, 2^31)
TOTAL_BITS = 15  # frequencies sum to 2^15
_TOTAL = 1 << TOTAL_BITS
_BATCH = 1 << 22  # symbols of streams that are worked on together, to bound scratch memory

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Alphabet:
    """The symbols of `digits` digits of a radix, and the classes they fall into."""

    class_of: Int64Array  # by symbol
    class_sizes: Int64Array

    @property
    def size(self) -> int:
        return len(self.class_of)

    @property
    def bitmap_bytes(self) -> int:
        return -(-len(self.class_sizes) // 8)


@lru_cache(maxsize=16)
def make_alphabet(radix: int, digits: int) -> Alphabet:
    """A class is named by the symbol whose digits ascend, and numbered in the order of these."""
    if radix < 2 or digits < 1 or digits > 8 or radix**digits > 256:
        raise ValueError(f"symbols of {digits} digits of radix {radix}: need 2..256 of them")
    weights = radix ** np.arange(digits - 1, -1, -1)
    columns = np.arange(radix**digits)[:, None] // weights % radix
    _, class_of, sizes = np.unique(np.sort(columns, axis=1) @ weights, return_inverse=True, return_counts=True)
    return Alphabet(class_of.astype(np.int64), sizes.astype(np.int64))


# The table


def _weight(byte: int) -> int:
    return (16 + byte % 16) << (byte // 16)


def _nearest_weight(wanted: int) -> int:
    """The byte whose weight is nearest, the larger of two."""
    if wanted < 16:
        return 0
    exponent = wanted.bit_length() - 5
    return 16 * exponent + ((wanted + (1 << exponent >> 1)) >> exponent) - 16


def write_table(alphabet: Alphabet, counts: Int64Array) -> bytes:
    """The table for a stream with these counts of symbols.

    A symbol that has the stream to itself gets company, because a frequency of 2^15 would leave a state as it is.
    """
    sizes: list[int] = alphabet.class_sizes.tolist()
    totals: list[int] = np.bincount(alphabet.class_of, counts, len(sizes)).astype(np.int64).tolist()
    best = 0
    for c, total in enumerate(totals):
        if total * sizes[best] > totals[best] * sizes[c]:
            best = c
    present = [total > 0 for total in totals]
    if totals[best] == sum(totals) and sizes[best] == 1:
        present[int(best == 0)] = True
    bitmap = np.packbits(np.array(present, dtype=np.uint8), bitorder="little").tobytes()
    unit = max(totals[best], 1)
    weights = [totals[c] * 2**19 * sizes[best] // (sizes[c] * unit) for c, there in enumerate(present) if there]
    return bitmap + bytes(map(_nearest_weight, weights))


def read_table(alphabet: Alphabet, data: Bytes) -> tuple[Int64Array, int] | None:
    """The frequency of every symbol and the length of the table that `data` begins with; None: no encoder writes it."""
    bits = np.unpackbits(data[: alphabet.bitmap_bytes], bitorder="little")
    sizes, length = alphabet.class_sizes, alphabet.bitmap_bytes + int(bits.sum())
    present = np.flatnonzero(bits)
    if len(data) < length or (len(present) and present[-1] >= len(sizes)) or sizes[present].sum() < 2:
        return None
    weights = np.zeros(len(sizes), dtype=np.int64)
    weights[present] = [_weight(byte) for byte in data[alphabet.bitmap_bytes : length].tolist()]
    return _frequencies(weights[alphabet.class_of]), length


def _frequencies(weights: Int64Array) -> Int64Array:
    """2^15 in proportion to the weights of the symbols, rounded, but at least 1 for each that has a weight.

    What rounding left over goes to the symbols in their order, no more to any than a 32nd of what it has.
    """
    total = int(weights.sum())
    found: list[int] = np.maximum((weights * 2 * _TOTAL + total) // (2 * total), weights > 0).tolist()
    rest = _TOTAL - sum(found)
    for symbol, frequency in enumerate(found):
        step = max(min(rest, frequency // 32), -(frequency // 32))
        found[symbol] += step
        rest -= step
    assert rest == 0
    return np.array(found, dtype=np.int64)


# Encoding


def _batches(lengths: Int64Array) -> Iterator[Int64Array]:
    """Streams, by length, as many together as their longest allows."""
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        count = max(1, _BATCH // max(int(lengths[order[0]]), 1))
        yield order[:count]
        order = order[count:]


def _push_all(streams: list[Bytes], frequencies: Int64Array) -> tuple[list[Bytes], npt.NDArray[np.uint32]]:
    """The words and the last states of streams with these frequencies (stream, symbol)."""
    num_groups = max(-(-len(stream) // STATES) for stream in streams)
    # A missing symbol has all frequencies, which leaves its state as it is.
    frequency = np.full((len(streams), num_groups * STATES), _TOTAL, dtype=np.uint16)
    start = np.zeros((len(streams), num_groups * STATES), dtype=np.uint16)
    first = np.cumsum(frequencies, axis=1) - frequencies
    for i, stream in enumerate(streams):
        frequency[i, : len(stream)] = frequencies[i, stream]
        start[i, : len(stream)] = first[i, stream]
    words = np.empty((len(streams), num_groups, STATES), dtype="<u2")
    pushed = np.empty((len(streams), num_groups, STATES), dtype=np.bool_)
    state = np.full((len(streams), STATES), LOWEST, dtype=np.int64)
    for group in range(num_groups - 1, -1, -1):
        here = slice(group * STATES, (group + 1) * STATES)
        mine = frequency[:, here].astype(np.int64)
        high = state >> 16
        full = high >= mine
        pushed[:, group] = full
        words[:, group] = state & 0xFFFF
        state = np.where(full, high, state)
        quotient = state // mine
        state += quotient * (_TOTAL - mine) + start[:, here]
    found = [words[i][pushed[i]].view(np.uint8) for i in range(len(streams))]
    return found, state.astype("<u4")


def _encode_batch(alphabet: Alphabet, streams: list[Bytes]) -> list[Bytes]:
    counts = [np.bincount(stream, minlength=256) for stream in streams]
    if any(count[alphabet.size :].any() for count in counts):
        raise ValueError(f"a symbol is outside 0..{alphabet.size - 1}")
    tables = [np.frombuffer(write_table(alphabet, count[: alphabet.size]), np.uint8) for count in counts]
    frequencies = [read_table(alphabet, table) for table in tables]
    words, states = _push_all(streams, np.stack([found[0] for found in frequencies if found is not None]))
    coded = [np.concatenate([a, b.view(np.uint8), c]) for a, b, c in zip(tables, states, words, strict=True)]
    return [a if len(a) < len(b) else b for a, b in zip(coded, streams, strict=True)]


def _check(spans: Int64Array, num_symbols: int) -> None:
    for i, (first, length) in enumerate(spans.tolist()):
        if first < 0 or not 0 <= length <= min(STREAM_SYMBOLS, num_symbols - first):
            raise ValueError(f"stream {i} of {length} symbols from {first} on: there are {num_symbols}")


def entropy_encode(symbols: Tensor, spans: Int64Array, radix: int, digits: int, target: Tensor) -> Int64Array:
    """Codes each (first, length) span of `symbols` as a stream, one behind the other in `target`; returns the lengths.

    `target` has room for `entropy_bound(spans)` bytes, and none in common with `symbols`. A stream that is as long as
    its span is the symbols themselves.
    """
    _check(spans, symbols.numel())
    if target.numel() < entropy_bound(spans):
        raise ValueError(f"the target has room for {target.numel()} bytes, need {entropy_bound(spans)}")
    alphabet, source = make_alphabet(radix, digits), symbols.cpu().numpy()
    streams = [source[first : first + length] for first, length in spans.tolist()]
    coded = list(streams)
    for batch in _batches(spans[:, 1]):
        some = [i for i in batch.tolist() if len(streams[i])]
        for i, found in zip(some, _encode_batch(alphabet, [streams[i] for i in some]) if some else [], strict=True):
            coded[i] = found
    at = 0
    for stream in coded:
        target[at : at + len(stream)] = torch.from_numpy(stream.copy())
        at += len(stream)
    return np.array([len(stream) for stream in coded], dtype=np.int64)


# Decoding


@dataclass
class _Coded:
    """A coded stream, taken apart."""

    length: int  # of its symbols
    frequencies: Int64Array
    states: npt.NDArray[np.uint32]
    words: npt.NDArray[np.uint16]


def _take_apart(alphabet: Alphabet, data: Bytes, length: int) -> _Coded | None:
    table = read_table(alphabet, data)
    if table is None:
        return None
    frequencies, at = table
    rest = len(data) - at - STATE_BYTES
    if rest < 0 or rest % 2:
        return None
    states = np.frombuffer(data[at : at + STATE_BYTES].tobytes(), "<u4")
    if (states < LOWEST).any() or (states >= 2**31).any():
        return None
    return _Coded(length, frequencies, states, np.frombuffer(data[at + STATE_BYTES :].tobytes(), "<u2"))


def _pop_all(streams: list[_Coded]) -> tuple[list[Bytes], bool]:
    """The symbols of coded streams, and whether all states came back to where they began, with no word left."""
    rows = np.arange(len(streams))[:, None]
    frequencies = np.stack([stream.frequencies for stream in streams])
    start = np.cumsum(frequencies, axis=1) - frequencies
    symbols = np.arange(frequencies.shape[1])
    slots = np.stack([np.repeat(symbols, stream.frequencies) for stream in streams]).astype(np.uint8)
    length = np.array([[stream.length] for stream in streams])
    num_words = [len(stream.words) for stream in streams]
    words = np.concatenate([*(stream.words for stream in streams), np.zeros(1, np.uint16)]).astype(np.int64)
    end = np.cumsum(num_words)
    at = end - num_words
    state = np.stack([stream.states for stream in streams]).astype(np.int64)
    num_groups = -(-int(length.max()) // STATES)
    found = np.zeros((len(streams), num_groups * STATES), dtype=np.uint8)
    for group in range(num_groups):
        here = np.arange(group * STATES, (group + 1) * STATES)
        slot = state & (_TOTAL - 1)
        symbol = slots[rows, slot]
        found[:, here] = symbol
        popped = frequencies[rows, symbol] * (state >> TOTAL_BITS) + slot - start[rows, symbol]
        low = popped < LOWEST
        there = here < length
        low &= there
        place = at[:, None] + np.cumsum(low, axis=1) - low
        word = words[np.minimum(place, len(words) - 1)]
        state = np.where(there, np.where(low, popped << 16 | word, popped), state)
        at = at + low.sum(axis=1)
    good = bool((at == end).all() and (state == LOWEST).all())
    return [found[i, : stream.length] for i, stream in enumerate(streams)], good


def _cut_payload(payload: Bytes, lengths: Int64Array, spans: Int64Array) -> list[Bytes] | None:
    found, at = [], 0
    for length, most in zip(lengths.tolist(), spans[:, 1].tolist(), strict=True):
        if not 0 <= length <= min(most, len(payload) - at):
            return None
        found.append(payload[at : at + length])
        at += length
    return found


def entropy_decode(
    payload: Tensor, lengths: Int64Array, spans: Int64Array, radix: int, digits: int, symbols: Tensor
) -> bool:
    """Decodes the streams that `payload` begins with into the (first, length) spans of `symbols`, which do not overlap.

    False where lengths or bytes are none that an encoder writes; the spans then hold anything.
    """
    _check(spans, symbols.numel())
    alphabet = make_alphabet(radix, digits)
    streams = _cut_payload(payload.cpu().numpy(), lengths, spans)
    if streams is None:
        return False
    for batch in _batches(spans[:, 1]):
        coded = []
        for i in batch.tolist():
            first, length = spans[i].tolist()
            if len(streams[i]) == length:
                if (streams[i] >= alphabet.size).any():
                    return False
                symbols[first : first + length] = torch.from_numpy(streams[i].copy())
            else:
                coded.append((first, _take_apart(alphabet, streams[i], length)))
        if not _decode_batch(coded, symbols):
            return False
    return True


def _decode_batch(coded: list[tuple[int, _Coded | None]], symbols: Tensor) -> bool:
    parts = [stream for _, stream in coded if stream is not None]
    if len(parts) < len(coded):
        return False
    if not parts:
        return True
    found, good = _pop_all(parts)
    for (first, _), stream in zip(coded, found, strict=True):
        symbols[first : first + len(stream)] = torch.from_numpy(stream)
    return good
