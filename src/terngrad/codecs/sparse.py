"""Messages of sorted positions and values: the layout, and the bytes of one shard.

The sparse parameters of a bucket, one behind the other, are one space of positions, and a shard is a stretch of it. Its
message holds the gap-coded positions that were chosen there, their values, and its share of the dense parameters.
Where every position is chosen there are no gaps to code; that is also how a message is written that would be larger
otherwise, with zeros for what was not chosen.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from terngrad.codecs.header import HEADER_BYTES, Body, DenseType, Header
from terngrad.codecs.segments import DENSE_TYPES, WIRE_TYPES, DenseSpan, Segment, cut_dense, share
from terngrad.codecs.sparse_values import (
    SIGN,
    item_bytes,
    most_bytes,
    pack_values,
    round_values,
    sums_of,
    unpack_values,
)
from terngrad.errors import ConfigurationError, WireError
from terngrad.kernels import FloatArray, Int64Array, kernels_for

_COUNTS = struct.Struct("<II")  # chosen positions, bytes of their gaps
_LONGEST_GAP_BYTES = 12
_CPU = torch.device("cpu")  # where gaps are coded, wherever the gradient is


@dataclass(frozen=True)
class SparseShard:
    """Positions first .. last of the bucket's space, and dense values."""

    first: int
    last: int
    dense: tuple[DenseSpan, ...]

    @property
    def num_coded(self) -> int:
        return self.last - self.first

    @property
    def num_dense(self) -> int:
        return sum(span.numel for span in self.dense)


@dataclass(frozen=True)
class ExpectedSizes:
    """What messages that vary are expected to have, for predictions."""

    num_shards: int
    nbytes: int
    sum_nbytes: int
    description: bytes


class SparseFrame:
    """The layout of one bucket's messages, equal on every rank; only their lengths are not known beforehand."""

    def __init__(
        self,
        sparse: Sequence[Segment],
        dense: Sequence[Segment],
        *,
        values: str,
        density: float,
        whole: bool = False,
        dense_type: torch.dtype,
        num_shards: int,
        world_size: int,
    ) -> None:
        self.sparse = tuple(sparse)
        self.dense = tuple(dense)
        self.values = values
        self.density = density  # that is expected, for predictions only
        self.whole = whole  # everything is chosen
        self.dense_dtype = dense_type
        self.num_shards = num_shards
        self.world_size = world_size
        numel = sum(segment.numel for segment in sparse)
        if numel >= 2**32:
            raise ConfigurationError(
                f"a bucket of {numel:,} elements: sparse methods take fewer than 2^32; pass a smaller bucket_cap_mb to "
                "DistributedDataParallel"
            )
        self.starts: Int64Array = np.cumsum([0, *(segment.numel for segment in sparse)])  # of each segment, and the end
        self.shards = [
            SparseShard(*share(int(self.starts[-1]), i, num_shards), cut_dense(dense, i, num_shards))
            for i in range(num_shards)
        ]
        most = max(
            s.num_coded * _LONGEST_GAP_BYTES + most_bytes(s.num_coded, len(self.sparse)) + self.dense_bytes(s)
            for s in self.shards
        )
        self.nbytes = self.sum_nbytes = HEADER_BYTES + _COUNTS.size + most

    num_units = 0
    scalers_nbytes = 0

    @property
    def sum_values(self) -> str:
        """How sums are written."""
        return sums_of(self.values)

    @property
    def body(self) -> Body:
        return Body.SPARSE

    @property
    def sum_body(self) -> Body:
        return Body.SPARSE_SUMS

    @property
    def dense_wire_type(self) -> DenseType:
        return WIRE_TYPES[self.dense_dtype] if self.dense else DenseType.NONE

    def dense_bytes(self, shard: SparseShard) -> int:
        return shard.num_dense * self.dense_dtype.itemsize

    @cached_property
    def description(self) -> bytes:
        """Everything that `read_description` needs to make an equal frame elsewhere."""
        return json.dumps(
            {
                "kind": "sparse",
                "sparse": [astuple(segment) for segment in self.sparse],
                "dense": [astuple(segment) for segment in self.dense],
                "values": self.values,
                "density": self.density,
                "whole": self.whole,
                "dense_type": next(name for name, dtype in DENSE_TYPES.items() if dtype == self.dense_dtype),
                "num_shards": self.num_shards,
                "world_size": self.world_size,
            }
        ).encode()

    @cached_property
    def expected(self) -> ExpectedSizes:
        """Sizes at the density that is expected: of positions at random, and of the union of all ranks'."""
        union = 1 - (1 - self.density) ** self.world_size
        return ExpectedSizes(
            self.num_shards,
            self._expected_bytes(self.density, 1 if self.values == SIGN else 8 * DENSE_TYPES[self.values].itemsize),
            self._expected_bytes(union, self._expected_sum_bits(union)),
            self.description,
        )

    def _expected_sum_bits(self, union: float) -> float:
        """Of a sum of signs, where one rank has chosen: which, and its sign, with a bit for the code; elsewhere all."""
        if self.values != SIGN or not 0 < union < 1:
            return 32.0
        alone = self.world_size * self.density * (1 - self.density) ** (self.world_size - 1) / union
        return min(32.0, alone * (math.log2(2 * self.world_size) + 1) + (1 - alone) * 32)

    def _expected_bytes(self, density: float, value_bits: float) -> int:
        most = max(self.shards, key=lambda shard: shard.num_coded)
        entropy = -density * math.log2(density) - (1 - density) * math.log2(1 - density) if 0 < density < 1 else 0.0
        bits = most.num_coded * min(entropy + density * value_bits, max(value_bits, 2))
        return HEADER_BYTES + _COUNTS.size + math.ceil(bits / 8) + self.dense_bytes(most)

    def dense_part(self, message: Tensor, shard: SparseShard) -> Tensor:
        """The dense values at the end of a message, as bytes: they are not aligned to their type."""
        return message[message.numel() - self.dense_bytes(shard) :]


@dataclass(frozen=True)
class Picks:
    """Chosen positions of a bucket, strictly increasing, and their values."""

    positions: Int64Array
    values: FloatArray

    def between(self, first: int, last: int) -> Picks:
        begin, end = np.searchsorted(self.positions, (first, last))
        return Picks(self.positions[begin:end], self.values[begin:end])


def _all_counts(frame: SparseFrame, positions: Int64Array) -> Int64Array:
    """How many positions each segment has."""
    return np.diff(np.searchsorted(positions, frame.starts))


def _counts(frame: SparseFrame, positions: Int64Array) -> Int64Array:
    """How many positions each segment has that has any."""
    counts = _all_counts(frame, positions)
    return counts[counts > 0]


def as_read(frame: SparseFrame, picks: Picks, limits: FloatArray) -> Picks:
    """Picks of the whole bucket, with the values that will be read of them; of signs at most their segment's limit."""
    counts = _all_counts(frame, picks.positions)
    chosen = counts > 0
    return Picks(picks.positions, round_values(frame.values, picks.values, counts[chosen], limits[chosen]))


# Messages


def whole_message(
    frame: SparseFrame,
    shard: SparseShard,
    body: bytes,
    dense: Sequence[Tensor],
    header: Callable[[int], Header],
    device: torch.device,
) -> Tensor:
    """A message of a body and dense values."""
    size = HEADER_BYTES + len(body) + frame.dense_bytes(shard)
    message = torch.empty(size, dtype=torch.uint8, device=device)
    header(size).write(message)
    message[HEADER_BYTES : HEADER_BYTES + len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
    if dense:
        frame.dense_part(message, shard).copy_(torch.cat(list(dense)).to(frame.dense_dtype).view(torch.uint8))
    return message


def dense_values(frame: SparseFrame, shard: SparseShard, message: Tensor) -> Tensor:
    """The dense values of a message; a copy, since in the message they are not aligned."""
    return frame.dense_part(message, shard).clone().view(frame.dense_dtype)


def write_picks(frame: SparseFrame, shard: SparseShard, kind: str, picks: Picks) -> bytes:
    """What a message holds between its header and its dense values: counts, gaps, values."""
    number, room = len(picks.positions), shard.num_coded
    gaps = kernels_for(_CPU).gaps_encode(picks.positions - shard.first, room).tobytes() if number < room else b""
    values = pack_values(kind, picks.values, _counts(frame, picks.positions))
    if kind != SIGN and len(gaps) + len(values) > room * item_bytes(kind):
        everything = np.zeros(room, np.float32)
        everything[picks.positions - shard.first] = picks.values
        number, gaps = room, b""
        values = pack_values(kind, everything, _counts(frame, np.arange(shard.first, shard.last)))
    return _COUNTS.pack(number, len(gaps)) + gaps + values


def read_picks(frame: SparseFrame, shard: SparseShard, kind: str, message: Tensor, where: str) -> Picks:
    """The picks of a message whose header is right."""
    if message.numel() < HEADER_BYTES + _COUNTS.size + frame.dense_bytes(shard):
        raise WireError(f"{where}: {message.numel()} bytes do not hold its counts and dense values")
    data = message[HEADER_BYTES : message.numel() - frame.dense_bytes(shard)].cpu().numpy().tobytes()
    try:
        number, num_gap_bytes = _COUNTS.unpack_from(data)
        positions = _read_positions(shard, number, data[_COUNTS.size : _COUNTS.size + num_gap_bytes], num_gap_bytes)
        values = unpack_values(kind, data[_COUNTS.size + num_gap_bytes :], _counts(frame, positions))
    except (ValueError, struct.error) as error:
        raise WireError(f"{where}: {error}; it was corrupted on its way") from error
    return Picks(positions, values)


def _read_positions(shard: SparseShard, number: int, gaps: bytes, num_gap_bytes: int) -> Int64Array:
    room = shard.num_coded
    if number > room or len(gaps) != num_gap_bytes or (number == room and gaps):
        raise ValueError(f"{number} positions of {room} in {len(gaps)} of {num_gap_bytes} bytes")
    if number == room:
        return np.arange(shard.first, shard.last)
    found = kernels_for(_CPU).gaps_decode(np.frombuffer(gaps, np.uint8), number, room)
    if found is None:
        raise ValueError("holds gaps that no encoder writes")
    return found + shard.first if shard.first else found
