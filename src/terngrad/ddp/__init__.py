"""Buckets, futures, order, statistics and checkpoints: the glue to DistributedDataParallel."""

from terngrad.ddp.attach import attach, hook
from terngrad.ddp.handle import Handle

__all__ = ["Handle", "attach", "hook"]
