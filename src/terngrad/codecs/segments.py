"""The parameters of a bucket, and how those that are not coded are cut into shards: what all layouts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from terngrad.codecs.header import DenseType

DENSE_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WIRE_TYPES = {torch.float32: DenseType.FP32, torch.float16: DenseType.FP16, torch.bfloat16: DenseType.BF16}


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


def share(total: int, shard: int, num_shards: int) -> tuple[int, int]:
    """Which of `total` things, from and to, belong to a shard."""
    return total * shard // num_shards, total * (shard + 1) // num_shards


def cut_dense(segments: Sequence[Segment], shard: int, num_shards: int) -> tuple[DenseSpan, ...]:
    """A shard's part of the dense values."""
    begin, end = share(sum(segment.numel for segment in segments), shard, num_shards)
    spans: list[DenseSpan] = []
    start = 0
    for segment in segments:
        first, last = max(begin - start, 0), min(end - start, segment.numel)
        if first < last:
            spans.append(DenseSpan(segment.source + first, last - first, start + first - begin))
        start += segment.numel
    return tuple(spans)
