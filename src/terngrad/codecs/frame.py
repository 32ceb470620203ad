"""The messages of one bucket: where every header, code and dense value lies, and how many bytes that makes.

A bucket's segments are ternary or dense. Its messages are cut into `num_shards` shards of about equal size (one for
all-gather, or several if the bucket is large; one per rank for two-shot); each holds a header, the codes of its runs
and its share of the dense values.
`nbytes` and `sum_nbytes` are the single truth about size: buffers, counters and predictions all come from here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from terngrad.codecs.header import HEADER_BYTES, Body, DenseType
from terngrad.codecs.segments import DENSE_TYPES, WIRE_TYPES, DenseSpan, Segment, cut_dense, share
from terngrad.kernels import (
    MOST_SYMBOL_PAYLOADS,
    Code,
    Run,
    Runs,
    level_rows,
    packed_bytes,
    symbol_bytes,
    symbol_digits,
)
from terngrad.kernels.layout import GROUP_BYTES, LANES, Int64Array

ALIGNMENT = 16

ENTROPY = "entropy"  # base3, and then an entropy coder
CODES = {"two-bit": Code.TWO_BIT, "base3": Code.BASE3, ENTROPY: Code.BASE3}
_BODIES = {"two-bit": Body.TWO_BIT, "base3": Body.BASE3, ENTROPY: Body.ENTROPY}


@dataclass(frozen=True)
class Shard:
    """One message: its runs, with offsets from the message's start, and its dense spans."""

    runs: Runs
    dense: tuple[DenseSpan, ...]
    dense_at: int  # byte where the dense part begins in the codes' message
    sum_dense_at: int  # and in the message of the sums

    @property
    def num_coded(self) -> int:
        return self.runs.numel

    @property
    def num_dense(self) -> int:
        return sum(span.numel for span in self.dense)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def units_of(numel: int, block: int) -> int:
    """How many scalers serve a segment."""
    return 1 if block == 0 else max(1, -(-numel // block))


def _unit_spans(segments: Sequence[Segment], block: int) -> Int64Array:
    spans: list[tuple[int, int]] = []
    for segment in segments:
        size = block or max(segment.numel, 1)
        starts = range(0, max(segment.numel, 1), size)
        spans.extend((segment.source + first, min(size, segment.numel - first)) for first in starts)
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def _unit_slices(segments: Sequence[Segment], block: int) -> list[slice]:
    ends = list(accumulate((units_of(segment.numel, block) for segment in segments), initial=0))
    return [slice(first, last) for first, last in pairwise(ends)]


class Frame:
    """The layout of one bucket's messages, equal on every rank."""

    def __init__(
        self,
        ternary: Sequence[Segment],
        dense: Sequence[Segment],
        *,
        codec: str,
        block: int,
        dense_type: torch.dtype,
        num_shards: int,
        world_size: int,
    ) -> None:
        self.ternary = tuple(ternary)
        self.dense = tuple(dense)
        self.codec = codec
        self.code = CODES[codec]
        self.block = block
        self.dense_dtype = dense_type
        self.num_shards = num_shards
        self.world_size = world_size
        self.indices = np.array([segment.index for segment in ternary], dtype=np.uint64)
        # The (source, length) that each scaler serves, and for each segment the scalers that serve it.
        self.spans = _unit_spans(ternary, block)
        self.units = _unit_slices(ternary, block)
        self.shards = [self._cut(shard) for shard in range(num_shards)]
        # Shards differ by a group at most; all take the room of the largest, so that one collective moves them.
        self.nbytes = max(_aligned(s.dense_at + self.dense_bytes(s)) for s in self.shards)
        self.sum_nbytes = max(_aligned(s.sum_dense_at + self.dense_bytes(s)) for s in self.shards)
        self.runs = self._all_runs()
        self._starts = np.array([segment.source for segment in ternary], dtype=np.int64)

    @cached_property
    def description(self) -> bytes:
        """Everything that `read_description` needs to make an equal frame elsewhere."""
        return json.dumps(
            {
                "kind": "ternary",
                "ternary": [astuple(segment) for segment in self.ternary],
                "dense": [astuple(segment) for segment in self.dense],
                "codec": self.codec,
                "block": self.block,
                "dense_type": next(name for name, dtype in DENSE_TYPES.items() if dtype == self.dense_dtype),
                "num_shards": self.num_shards,
                "world_size": self.world_size,
            }
        ).encode()

    def segments_of(self, runs: Runs) -> Int64Array:
        """For each run, the position of its segment among the ternary ones."""
        return np.searchsorted(self._starts, runs.table[:, 0], side="right") - 1

    @property
    def expected(self) -> Frame:
        """The sizes that predictions go by."""
        return self

    @property
    def num_units(self) -> int:
        return len(self.spans)

    @property
    def scalers_nbytes(self) -> int:
        """Bytes of the message that carries one rank's scalers; 0 where there are none."""
        return HEADER_BYTES + 4 * self.num_units if self.num_units else 0

    @property
    def body(self) -> Body:
        return _BODIES[self.codec] if self.ternary else Body.DENSE

    @property
    def sum_body(self) -> Body:
        if not self.ternary:
            return Body.DENSE
        return Body.ENTROPY_SUMS if self.codec == ENTROPY else Body.LEVELS

    @property
    def sum_digits(self) -> int:
        """How many levels of a sum make a symbol for the entropy coder; 0 where sums are packed as levels."""
        coded = self.codec == ENTROPY and self.world_size <= MOST_SYMBOL_PAYLOADS
        return symbol_digits(self.world_size) if coded else 0

    def sum_bytes(self, length: int) -> int:
        """Of the sum of a run, in a plain message."""
        if self.sum_digits:
            return symbol_bytes(length, self.sum_digits)
        return packed_bytes(length, level_rows(self.world_size))

    @property
    def dense_wire_type(self) -> DenseType:
        return WIRE_TYPES[self.dense_dtype] if self.dense else DenseType.NONE

    def dense_bytes(self, shard: Shard) -> int:
        return shard.num_dense * self.dense_dtype.itemsize

    def _all_runs(self) -> Runs:
        """The runs of all shards, with offsets into the shards' messages laid one behind the other."""
        return Runs(
            [
                replace(run, packed=run.packed + i * self.nbytes, levels=run.levels + i * self.sum_nbytes)
                for i, shard in enumerate(self.shards)
                for run in shard.runs.rows
            ],
            self.block,
        )

    def _cut(self, shard: int) -> Shard:
        runs = self._cut_runs(shard)
        codes = sum(packed_bytes(run.length, self.code.rows) for run in runs)
        levels = sum(self.sum_bytes(run.length) for run in runs)
        dense = cut_dense(self.dense, shard, self.num_shards)
        return Shard(Runs(runs, self.block), dense, HEADER_BYTES + codes, HEADER_BYTES + levels)

    def _cut_runs(self, shard: int) -> list[Run]:
        """This shard's part of every ternary segment, cut at whole groups."""
        group = self.code.rows * LANES
        counts = [-(-segment.numel // group) for segment in self.ternary]
        begin, end = share(sum(counts), shard, self.num_shards)
        runs: list[Run] = []
        start = unit = 0
        packed = levels = HEADER_BYTES
        for segment, count in zip(self.ternary, counts, strict=True):
            first, last = max(begin - start, 0), min(end - start, count)
            if first < last:
                offset, stop = first * group, min(last * group, segment.numel)
                runs.append(Run(segment.source + offset, stop - offset, offset, unit, packed, levels))
                packed += (last - first) * GROUP_BYTES
                levels += self.sum_bytes(stop - offset)
            start += count
            unit += units_of(segment.numel, self.block)
        return runs

    def dense_part(self, message: Tensor, shard: Shard, sums: bool = False) -> Tensor:
        """The dense values of a message, as a view of their type."""
        start = shard.sum_dense_at if sums else shard.dense_at
        return message[start : start + self.dense_bytes(shard)].view(self.dense_dtype)
