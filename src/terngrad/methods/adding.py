"""Adding up all workers' messages of a shard, whatever their layout: what a parameter server does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from terngrad.codecs import AnyFrame, EntropyFrame, Envelope, SparseFrame
from terngrad.methods.sparse_sums import add_sparse
from terngrad.methods.sums import add_coded, add_shard


def add_messages(frame: AnyFrame, label: tuple[int, int], shard: int, messages: Sequence[Tensor]) -> Tensor:
    """The message of the sum. The label is the bucket's step and number."""
    step, bucket = label
    if isinstance(frame, SparseFrame):
        return add_sparse(Envelope(frame, bucket, step), shard, messages)
    if isinstance(frame, EntropyFrame):
        return add_coded(Envelope(frame.plain, bucket, step), frame, shard, messages)
    target = torch.zeros(frame.sum_nbytes, dtype=torch.uint8, device=messages[0].device)
    add_shard(Envelope(frame, bucket, step), shard, messages, target)
    return target
