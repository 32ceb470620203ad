"""The function that DDP calls for every bucket.

DDP inspects its signature, so this module has no postponed annotations.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from terngrad.ddp.handle import Handle


@dataclass
class Slot:
    """A model's only hook slot, which DDP never gives back: after detach() the next handle takes the same one."""

    handle: Handle


def terngrad_hook(state: Slot, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Averages a bucket by the handle's method. Equivalent to allreduce_hook up to what the method loses."""
    return state.handle.reduce(bucket)
