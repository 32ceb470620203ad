"""The function that DDP calls for every bucket.

DDP inspects its signature, so this module has no postponed annotations.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from terngrad.ddp.handle import Handle


@dataclass
class Slot:
    """A model's only hook slot, which DDP never gives back: after detach() the next handle takes the same one.

    A copy of the model (deepcopy, pickle) gets no hook from DDP, and an empty slot.
    """

    handle: Handle | None

    def __reduce__(self) -> tuple[type["Slot"], tuple[None]]:
        return Slot, (None,)


def terngrad_hook(state: Slot, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Averages a bucket by the handle's method. Equivalent to allreduce_hook up to what the method loses."""
    assert state.handle is not None  # an empty slot is never registered
    return state.handle.reduce(bucket)
