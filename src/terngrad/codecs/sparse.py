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
import numpy.typing as npt
import torch
from torch import Tensor

from terngrad.codecs.header import HEADER_BYTES, Body, DenseType, Header
from terngrad.codecs.segments import DENSE_TYPES, WIRE_TYPES, DenseSpan, Segment, cut_dense, share
from terngrad.errors import ConfigurationError, WireError
from terngrad.kernels import kernels_for

SIGN = "sign"  # and one magnitude for all chosen values of a parameter
VALUES = (*DENSE_TYPES, SIGN)
_COUNTS = struct.Struct("<II")  # chosen positions, bytes of their gaps
_LONGEST_GAP_BYTES = 12
_NO_GROUPS: npt.NDArray[np.int64] = np.empty(0, np.int64)  # for values that need none
_CPU = torch.device("cpu")  # where gaps are coded, wherever the gradient is

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


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
        most = max(s.num_coded * (4 + _LONGEST_GAP_BYTES) + self.dense_bytes(s) for s in self.shards)
        self.nbytes = self.sum_nbytes = HEADER_BYTES + _COUNTS.size + most + 4 * len(self.sparse)

    num_units = 0
    scalers_nbytes = 0

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
            self._expected_bytes(union, 32),
            self.description,
        )

    def _expected_bytes(self, density: float, value_bits: int) -> int:
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


# Values


def _groups(frame: SparseFrame, positions: Int64Array) -> Int64Array:
    """For each position the number of its segment among those that have any."""
    counts = np.diff(np.searchsorted(positions, frame.starts))
    counts = counts[counts > 0]
    return np.repeat(np.arange(len(counts)), counts)


def as_read(frame: SparseFrame, picks: Picks) -> Picks:
    """Picks of the whole bucket, with the values that will be read of them: rounded to the type on the wire."""
    if frame.values == SIGN:
        groups = _groups(frame, picks.positions)
        scales = np.bincount(groups, np.abs(picks.values).astype(np.float64)) / np.bincount(groups)
        return Picks(picks.positions, np.copysign(scales.astype(np.float32)[groups], picks.values))
    values = torch.from_numpy(picks.values)
    most = torch.finfo(DENSE_TYPES[frame.values]).max  # what does not fit stays behind, as any rounding does
    values = torch.where(values.isfinite(), values.clamp(-most, most), values)
    return Picks(picks.positions, values.to(DENSE_TYPES[frame.values]).float().numpy())


def _pack_sign(values: FloatArray, groups: Int64Array) -> bytes:
    """A bit for each sign, then the magnitude of each group, which all of its values share."""
    _, firsts = np.unique(groups, return_index=True)
    return np.packbits(np.signbit(values), bitorder="little").tobytes() + np.abs(values[firsts]).astype("<f4").tobytes()


def _unpack_sign(data: bytes, groups: Int64Array) -> FloatArray:
    num_sign_bytes = -(-len(groups) // 8)
    negative = np.unpackbits(np.frombuffer(data[:num_sign_bytes], np.uint8), bitorder="little")[: len(groups)]
    scales = np.frombuffer(data[num_sign_bytes:], "<f4")[groups]
    return np.where(negative, -scales, scales).astype(np.float32)


def _pack_values(frame: SparseFrame, kind: str, picks: Picks) -> bytes:
    if kind == SIGN:
        return _pack_sign(picks.values, _groups(frame, picks.positions))
    if not len(picks.values):
        return b""
    return bytes(torch.from_numpy(picks.values).to(DENSE_TYPES[kind]).view(torch.uint8).numpy().tobytes())


def _value_bytes(kind: str, count: int, groups: Int64Array) -> int:
    if kind == SIGN:
        return -(-count // 8) + 4 * (int(groups.max()) + 1 if count else 0)
    return count * DENSE_TYPES[kind].itemsize


def _unpack_values(kind: str, data: bytes, groups: Int64Array) -> FloatArray:
    if kind == SIGN:
        return _unpack_sign(data, groups)
    values = torch.frombuffer(bytearray(data), dtype=DENSE_TYPES[kind]) if data else torch.empty(0)
    return np.asarray(values.float().numpy())


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
    values = _pack_values(frame, kind, picks)
    if kind != SIGN and len(gaps) + len(values) > room * DENSE_TYPES[kind].itemsize:
        everything = np.zeros(room, np.float32)
        everything[picks.positions - shard.first] = picks.values
        number, gaps = room, b""
        values = _pack_values(frame, kind, Picks(np.arange(shard.first, shard.last), everything))
    return _COUNTS.pack(number, len(gaps)) + gaps + values


def read_picks(frame: SparseFrame, shard: SparseShard, kind: str, message: Tensor, where: str) -> Picks:
    """The picks of a message whose header is right."""
    if message.numel() < HEADER_BYTES + _COUNTS.size + frame.dense_bytes(shard):
        raise WireError(f"{where}: {message.numel()} bytes do not hold its counts and dense values")
    data = message[HEADER_BYTES : message.numel() - frame.dense_bytes(shard)].cpu().numpy().tobytes()
    try:
        number, num_gap_bytes = _COUNTS.unpack_from(data)
        positions = _read_positions(shard, number, data[_COUNTS.size : _COUNTS.size + num_gap_bytes], num_gap_bytes)
        groups = _groups(frame, positions) if kind == SIGN else _NO_GROUPS
        data = data[_COUNTS.size + num_gap_bytes :]
        if len(data) != _value_bytes(kind, number, groups):
            raise ValueError(f"{len(data)} bytes of values, need {_value_bytes(kind, number, groups)}")
    except (ValueError, struct.error) as error:
        raise WireError(f"{where}: {error}; it was corrupted on its way") from error
    return Picks(positions, _unpack_values(kind, data, groups))


def _read_positions(shard: SparseShard, number: int, gaps: bytes, num_gap_bytes: int) -> Int64Array:
    room = shard.num_coded
    if number > room or len(gaps) != num_gap_bytes or (number == room and gaps):
        raise ValueError(f"{number} positions of {room} in {len(gaps)} of {num_gap_bytes} bytes")
    if number == room:
        return np.arange(shard.first, shard.last)
    found = kernels_for(_CPU).gaps_decode(np.frombuffer(gaps, np.uint8), number, room)
    if found is None:
        raise ValueError("holds gaps that no encoder writes")
    return found + shard.first
