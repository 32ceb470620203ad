"""The wire: the two collectives an exchange needs, with a count of the bytes they really send.

all-gather forwards every message to every other rank: each rank sends and receives (N-1) messages. all-to-all sends one
message to each other rank. Both work on uint8 tensors on gloo and NCCL.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

# The newer name, where torch has it: 2.13 warns about the older one.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Channel:
    """Collectives on a process group that no one else uses. All ranks must issue the same ones in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.bytes_sent = 0
        self.bytes_received = 0

    def count(self, num_bytes: int) -> None:
        """Books the same number of bytes in both directions."""
        self.bytes_sent += num_bytes
        self.bytes_received += num_bytes

    def all_gather(self, received: Tensor, message: Tensor) -> dist.Work:
        """Row r of `received` becomes rank r's message."""
        self.count((self.world_size - 1) * message.numel())
        return _started(_all_gather(received.view(-1), message, group=self.group, async_op=True))

    def all_to_all(self, received: Tensor, messages: Tensor) -> dist.Work:
        """Row r of `messages` goes to rank r; row r of `received` comes from it."""
        self.count((self.world_size - 1) * messages[0].numel())
        return _started(dist.all_to_all_single(received.view(-1), messages.view(-1), group=self.group, async_op=True))

    def all_reduce(self, tensor: Tensor, num_bytes: int) -> dist.Work:
        """Sums a tensor that is passed through as it is; the caller knows how many bytes that sends."""
        self.count(num_bytes)
        return _started(dist.all_reduce(tensor, group=self.group, async_op=True))


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None  # None is for ranks outside the group, which never get a channel
    return work
