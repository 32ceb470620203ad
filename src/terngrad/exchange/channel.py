"""The wire: the two collectives an exchange needs, with a count of the bytes they really send.

Both are made of direct sends and receives, straight from and into the caller's buffers: gloo's own all-gather takes a
second copy of everything it receives and passes messages on around a ring, which for megabytes costs several times as
much. For small messages the ring is quicker, since it needs no handshake.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

SMALL_BYTES = 1 << 15  # up to here an all-gather is left to torch; measured on gloo

# The newer name, where torch has it: 2.13 warns about the older one.
_torch_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Pending:
    """What has been posted. Any thread may wait for it, and more than one."""

    def __init__(self, works: Sequence[dist.Work | None]) -> None:
        self._works = works
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Returns when all of it is done; raises what went wrong, or when the group's timeout has passed."""
        with self._lock:
            works, self._works = self._works, ()  # torch's can be waited for only once
            try:
                for work in works:
                    assert work is not None  # None is for ranks outside the group, which never get a channel
                    work.wait()
            except BaseException as error:
                self._error = error
            if self._error is not None:
                raise self._error


class Channel:
    """Collectives on a process group that no one else uses. All ranks must post the same ones in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.bytes_sent = 0
        self.bytes_received = 0
        self._global_ranks = dist.get_process_group_ranks(group)
        self._on_tcp = "gloo" in dist.get_backend_config(group) and sys.platform == "linux"  # elsewhere gloo uses libuv

    def all_gather(self, rows: Tensor) -> Pending:
        """Row r becomes rank r's; this rank's own is there already and must stay until the end."""
        own = rows[self.rank]
        size = (self.world_size - 1) * own.numel()
        self.count(size, size)
        if own.numel() <= SMALL_BYTES:
            return Pending([_torch_all_gather(rows.view(-1), own, group=self.group, async_op=True)])
        return self._post(rows, [own] * self.world_size)

    def all_to_all(self, received: Tensor, messages: Tensor) -> Pending:
        """Row r of `messages` goes to rank r; row r of `received` comes from it."""
        size = (self.world_size - 1) * messages[0].numel()
        self.count(size, size)
        received[self.rank].copy_(messages[self.rank])
        return self._post(received, messages)

    def swap(self, received: Sequence[Tensor], messages: Sequence[Tensor]) -> Pending:
        """Message r goes to rank r, `received[r]` comes from it; they may differ in length. One's own do not move."""
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        self.count(sum(messages[rank].numel() for rank in others), sum(received[rank].numel() for rank in others))
        return self._post(received, messages)

    def may_be_shorter(self, tensor: Tensor) -> bool:
        """Whether what is sent may be shorter than what the other rank has room for, as gloo allows over TCP."""
        return self._on_tcp and tensor.device.type == "cpu"

    def swap_short(self, received: Tensor, messages: Sequence[Tensor]) -> Pending:
        """Message r goes to rank r, which does not know how long it is; row r of `received` begins with what comes from
        it. Where that `may_be_shorter` is not so, messages are whole rows. What comes is counted by the caller.
        """
        self.count(sum(message.numel() for rank, message in enumerate(messages) if rank != self.rank), 0)
        return self._post(received, messages)

    def all_reduce(self, tensor: Tensor, num_bytes: int) -> Pending:
        """Sums a tensor that is passed through as it is; the caller knows how many bytes that sends."""
        self.count(num_bytes, num_bytes)
        return Pending([dist.all_reduce(tensor, group=self.group, async_op=True)])

    def count(self, sent: int, received: int) -> None:
        """Adds to the bytes of this rank; exchanges that do not go through this channel call it themselves."""
        self.bytes_sent += sent
        self.bytes_received += received

    def _post(self, received: Sequence[Tensor] | Tensor, messages: Sequence[Tensor] | Tensor) -> Pending:
        """Sends message r to rank r and receives row r from it, if there is anything; each rank starts with another."""
        operations = []
        for distance in range(1, self.world_size):
            source = (self.rank - distance) % self.world_size
            target = (self.rank + distance) % self.world_size
            for operation, tensor, rank in (
                (dist.irecv, received[source], source),
                (dist.isend, messages[target], target),
            ):
                if tensor.numel():
                    operations.append(dist.P2POp(operation, tensor, self._global_ranks[rank], self.group))
        return Pending(dist.batch_isend_irecv(operations) if operations else [])
