"""Transfers among workers of messages that vary: first the length of each with its beginning, then what is left.

Most messages of small models, and of small buckets, are no longer than that, and take a single round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from terngrad.errors import WireError
from terngrad.exchange.base import Phase, Scratch, Sizes, Transfer, Varying
from terngrad.exchange.channel import Channel, Pending

LENGTH_BYTES = 8  # of an int64
HEAD_BYTES = 4096  # of a message's first part, with the length; a third of a millisecond at 100 Mb/s


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

    def _swap(self, role: str, own: Sequence[Tensor], most: int) -> tuple[list[Tensor], Pending]:
        """Message r goes to rank r; everyone's messages to this rank, once what is pending has come."""
        rank, count = self.channel.rank, self.channel.world_size
        room = HEAD_BYTES - LENGTH_BYTES
        sent, heads = (self.scratch(f"{role}, {which}", count, HEAD_BYTES) for which in ("sent", "heads"))
        for row, message in zip(sent, own, strict=True):
            row[:LENGTH_BYTES] = torch.tensor([message.numel()]).view(torch.uint8).to(row.device)
            row[LENGTH_BYTES : LENGTH_BYTES + message.numel()] = message[:room]
        exact = self.channel.may_be_shorter(sent)

        def head_bytes(length: int) -> int:
            return LENGTH_BYTES + min(room, length) if exact else HEAD_BYTES

        beginnings = [row[: head_bytes(message.numel())] for row, message in zip(sent, own, strict=True)]
        self.channel.swap_short(heads, beginnings).wait()
        heads[rank] = sent[rank]
        announced = heads[:, :LENGTH_BYTES].cpu().contiguous().view(torch.int64).flatten().tolist()
        lengths = [check_length(length, most, sender) for sender, length in enumerate(announced)]
        self.channel.count(0, sum(head_bytes(length) for other, length in enumerate(lengths) if other != rank))
        received = self._room(role, lengths)
        for message, head in zip(received, heads, strict=True):
            message[:room] = head[LENGTH_BYTES : LENGTH_BYTES + message.numel()]
        received[rank] = own[rank]
        return received, self.channel.swap([message[room:] for message in received], [one[room:] for one in own])

    def _room(self, role: str, lengths: Sequence[int]) -> list[Tensor]:
        """Buffers of these lengths, one behind the other."""
        return list(torch.split(self.scratch(role, 1, sum(lengths))[0], list(lengths)))


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
            messages = [own] * self.channel.world_size
            received, pending = self._swap(f"received {shard % 2}", messages, self.sizes.nbytes)
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
        with self.phase("exchange"):
            self._received, self._pending = self._swap("received", own, self.sizes.nbytes)

    def forward(self) -> None:
        self._wait(self._pending)
        with self.phase("decode"):
            own = self.code.add(self._received)
        with self.phase("exchange"):
            messages = [own] * self.channel.world_size
            self._sums, self._pending = self._swap("sums", messages, self.sizes.sum_nbytes)

    @property
    def arriving(self) -> Pending:
        return self._pending

    def receive(self) -> None:
        self._wait(self._pending)
        with self.phase("decode"):
            self.code.unpack_sums(self._sums)
