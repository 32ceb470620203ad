"""Buckets, futures, order, statistics and checkpoints: the glue to DistributedDataParallel."""

from terngrad.ddp.attach import attach, hook
from terngrad.ddp.auto import Auto, Decision
from terngrad.ddp.handle import Handle
from terngrad.ddp.servers import ParameterServers

__all__ = ["Auto", "Decision", "Handle", "ParameterServers", "attach", "hook"]
