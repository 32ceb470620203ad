"""From a method's layout of a bucket to the object that takes the bucket through a step."""

from __future__ import annotations

from torch import Tensor

from terngrad.codecs import AnyFrame, EntropyFrame, SparseFrame
from terngrad.methods.bucket import BucketCode, EntropyBucket
from terngrad.methods.coder import Coder
from terngrad.methods.sparse_bucket import SparseBucket

AnyBucket = BucketCode | EntropyBucket | SparseBucket


def open_bucket(coder: Coder, frame: AnyFrame, buffer: Tensor, bucket: int, step: int) -> AnyBucket:
    """The bucket, whose buffer is its own until the average is written to it."""
    if isinstance(frame, SparseFrame):
        return SparseBucket(coder, frame, buffer, bucket, step)
    if isinstance(frame, EntropyFrame):
        return EntropyBucket(BucketCode(coder, frame.plain, buffer, bucket, step), frame)
    return BucketCode(coder, frame, buffer, bucket, step)
