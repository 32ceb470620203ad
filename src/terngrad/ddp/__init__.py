"""Buckets, futures, order, statistics and checkpoints: the glue to DistributedDataParallel."""

from terngrad.ddp.attach import attach, hook
from terngrad.ddp.handle import Handle
from terngrad.ddp.servers import ParameterServers

__all__ = ["Handle", "ParameterServers", "attach", "hook"]
