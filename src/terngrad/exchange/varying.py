"""Transfers among workers of messages that vary: lengths first, in a small round of their own, then the messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from terngrad.errors import WireError
from terngrad.exchange.base import Phase, Scratch, Sizes, Transfer, Varying
from terngrad.exchange.channel import Channel, Pending

LENGTH_BYTES = 8  # of an int64


def check_length(length: int, most: int, sender: int) -> int:
    """The length, if a message of these sizes can have it."""
    if not 0 < length <= most:
        raise WireError(
            f"rank {sender} announces a message of {length} bytes, which can have 1 to {most}; the announcement was "
            "corrupted on its way, or ranks run different settings"
        )
    return length


class VaryingTransfer(Transfer):
    """Of a bucket with messages of any length."""

    def __init__(self, code: Varying, channel: Channel, scratch: Scratch, phase: Phase) -> None:
        super().__init__(channel, scratch, phase)
        self.code = code
        self.sizes: Sizes = code.sizes

    def _lengths(self, own: Sequence[Tensor], most: int) -> list[list[int]]:
        """How long everyone's messages are: by sender, then by shard."""
        rows = self.scratch("lengths", self.channel.world_size, LENGTH_BYTES * len(own))
        mine = torch.tensor([message.numel() for message in own])
        rows[self.channel.rank] = mine.view(torch.uint8).to(rows.device)
        self.channel.all_gather(rows).wait()
        found: list[list[int]] = rows.cpu().view(torch.int64).tolist()
        return [[check_length(length, most, rank) for length in row] for rank, row in enumerate(found)]

    def _room(self, role: str, lengths: Sequence[int]) -> list[Tensor]:
        """Buffers of these lengths, one behind the other."""
        whole = self.scratch(role, 1, sum(lengths))[0]
        return [whole[first:last] for first, last in pairwise(accumulate(lengths, initial=0))]

    def _gather(self, role: str, own: Tensor, most: int) -> tuple[list[Tensor], Pending]:
        """Everyone's messages, once the collective that this posts has ended; one's own is there already."""
        lengths = [row[0] for row in self._lengths([own], most)]
        received = self._room(role, lengths)
        received[self.channel.rank] = own
        return received, self.channel.swap(received, [own] * self.channel.world_size)


class VaryingAllGather(VaryingTransfer):
    """Everyone's codes to everyone, a shard in each part."""

    def __init__(self, code: Varying, channel: Channel, scratch: Scratch, phase: Phase) -> None:
        super().__init__(code, channel, scratch, phase)
        self.num_parts = self.sizes.num_shards
        self._num_sent = 0
        self._under_way: deque[tuple[int, list[Tensor], Pending]] = deque()

    def send(self) -> None:
        shard, self._num_sent = self._num_sent, self._num_sent + 1
        with self.phase("encode"):
            own = self.code.pack_shard(shard)
        with self.phase("exchange"):
            received, pending = self._gather(f"received {shard % 2}", own, self.sizes.nbytes)
            self._under_way.append((shard, received, pending))

    @property
    def arriving(self) -> Pending:
        return self._under_way[0][-1]

    def receive(self) -> None:
        shard, received, pending = self._under_way.popleft()
        self._wait(pending)
        with self.phase("decode"):
            self.code.unpack(received, shard)


class VaryingTwoShot(VaryingTransfer):
    """Shards to their owners, and the owners' sums to everyone."""

    def send(self) -> None:
        with self.phase("encode"):
            own = self.code.pack()
        rank = self.channel.rank
        with self.phase("exchange"):
            lengths = self._lengths(own, self.sizes.nbytes)
            self._received = self._room("received", [row[rank] for row in lengths])
            self._received[rank] = own[rank]
            self._pending = self.channel.swap(self._received, own)

    def forward(self) -> None:
        self._wait(self._pending)
        with self.phase("decode"):
            own = self.code.add(self._received)
        with self.phase("exchange"):
            self._sums, self._pending = self._gather("sums", own, self.sizes.sum_nbytes)

    @property
    def arriving(self) -> Pending:
        return self._pending

    def receive(self) -> None:
        self._wait(self._pending)
        with self.phase("decode"):
            self.code.unpack_sums(self._sums)
