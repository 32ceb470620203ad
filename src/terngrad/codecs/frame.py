"""The messages of one bucket: where every header, code and dense value lies, and how many bytes that makes.

A bucket's segments are ternary or dense. Its messages are cut into `num_shards` shards of about equal size (one for
all-gather, one per rank for two-shot); each holds a header, the codes of its runs and its share of the dense values.
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
from terngrad.errors import WireError
from terngrad.kernels import Code, Run, Runs, level_rows, packed_bytes
from terngrad.kernels.layout import GROUP_BYTES, LANES, Int64Array

ALIGNMENT = 16

CODES = {"two-bit": Code.TWO_BIT, "base3": Code.BASE3}
DENSE_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_WIRE_TYPES = {torch.float32: DenseType.FP32, torch.float16: DenseType.FP16, torch.bfloat16: DenseType.BF16}


@dataclass(frozen=True)
class Segment:
    """One parameter's place in a bucket: elements source .. source + numel are parameter number `index`."""

    index: int
    source: int
    numel: int


@dataclass(frozen=True)
class DenseSpan:
    """Elements source .. source + numel of the bucket, at element `target` of a shard's dense part."""

    source: int
    numel: int
    target: int


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
        code: Code,
        block: int,
        dense_type: torch.dtype,
        num_shards: int,
        world_size: int,
    ) -> None:
        self.ternary = tuple(ternary)
        self.dense = tuple(dense)
        self.code = code
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
        self.nbytes = max(_aligned(s.dense_at + self._dense_bytes(s)) for s in self.shards)
        self.sum_nbytes = max(_aligned(s.sum_dense_at + self._dense_bytes(s)) for s in self.shards)
        self.runs = self._all_runs()
        # For each run, the position of its segment among the ternary ones.
        starts = np.array([segment.source for segment in ternary], dtype=np.int64)
        self.run_segments = np.searchsorted(starts, self.runs.table[:, 0], side="right") - 1

    @cached_property
    def description(self) -> bytes:
        """Everything that `from_description` needs to make an equal frame elsewhere."""
        return json.dumps(
            {
                "ternary": [astuple(segment) for segment in self.ternary],
                "dense": [astuple(segment) for segment in self.dense],
                "code": next(name for name, code in CODES.items() if code is self.code),
                "block": self.block,
                "dense_type": next(name for name, dtype in DENSE_TYPES.items() if dtype == self.dense_dtype),
                "num_shards": self.num_shards,
                "world_size": self.world_size,
            }
        ).encode()

    @classmethod
    def from_description(cls, description: bytes) -> Frame:
        """The frame that was described; WireError if this is no description."""
        try:
            found = json.loads(description)
            ternary, dense = ([Segment(*segment) for segment in found[key]] for key in ("ternary", "dense"))
            return cls(
                ternary,
                dense,
                code=CODES[found["code"]],
                block=found["block"],
                dense_type=DENSE_TYPES[found["dense_type"]],
                num_shards=found["num_shards"],
                world_size=found["world_size"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise WireError(
                f"the description of a bucket cannot be read ({error!r}); it was corrupted on its way"
            ) from error

    @property
    def num_units(self) -> int:
        return len(self.spans)

    @property
    def scalers_nbytes(self) -> int:
        """Bytes of the message that carries one rank's scalers; 0 where there are none."""
        return HEADER_BYTES + 4 * self.num_units if self.num_units else 0

    @property
    def body(self) -> Body:
        if not self.ternary:
            return Body.DENSE
        return Body.TWO_BIT if self.code is Code.TWO_BIT else Body.BASE3

    @property
    def sum_body(self) -> Body:
        return Body.LEVELS if self.ternary else Body.DENSE

    @property
    def dense_wire_type(self) -> DenseType:
        return _WIRE_TYPES[self.dense_dtype] if self.dense else DenseType.NONE

    def _dense_bytes(self, shard: Shard) -> int:
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
        levels = sum(packed_bytes(run.length, level_rows(self.world_size)) for run in runs)
        return Shard(Runs(runs, self.block), self._cut_dense(shard), HEADER_BYTES + codes, HEADER_BYTES + levels)

    def _share(self, total: int, shard: int) -> tuple[int, int]:
        return total * shard // self.num_shards, total * (shard + 1) // self.num_shards

    def _cut_runs(self, shard: int) -> list[Run]:
        """This shard's part of every ternary segment, cut at whole groups."""
        group = self.code.rows * LANES
        counts = [-(-segment.numel // group) for segment in self.ternary]
        begin, end = self._share(sum(counts), shard)
        runs: list[Run] = []
        start = unit = 0
        packed = levels = HEADER_BYTES
        for segment, count in zip(self.ternary, counts, strict=True):
            first, last = max(begin - start, 0), min(end - start, count)
            if first < last:
                offset, stop = first * group, min(last * group, segment.numel)
                runs.append(Run(segment.source + offset, stop - offset, offset, unit, packed, levels))
                packed += (last - first) * GROUP_BYTES
                levels += packed_bytes(stop - offset, level_rows(self.world_size))
            start += count
            unit += units_of(segment.numel, self.block)
        return runs

    def _cut_dense(self, shard: int) -> tuple[DenseSpan, ...]:
        begin, end = self._share(sum(segment.numel for segment in self.dense), shard)
        spans: list[DenseSpan] = []
        start = 0
        for segment in self.dense:
            first, last = max(begin - start, 0), min(end - start, segment.numel)
            if first < last:
                spans.append(DenseSpan(segment.source + first, last - first, start + first - begin))
            start += segment.numel
        return tuple(spans)

    def dense_part(self, message: Tensor, shard: Shard, sums: bool = False) -> Tensor:
        """The dense values of a message, as a view of their type."""
        start = shard.sum_dense_at if sums else shard.dense_at
        return message[start : start + self._dense_bytes(shard)].view(self.dense_dtype)
