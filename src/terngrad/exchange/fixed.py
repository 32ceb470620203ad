"""Transfers among workers of messages whose size all ranks know: straight from and into matrices, a row each."""

from __future__ import annotations

from collections import deque

from torch import Tensor

from terngrad.exchange.base import Fixed, Phase, Scratch, Transfer
from terngrad.exchange.channel import Channel, Pending


class FixedTransfer(Transfer):
    """Of a bucket with messages of one size."""

    def __init__(self, code: Fixed, channel: Channel, scratch: Scratch, phase: Phase) -> None:
        super().__init__(channel, scratch, phase)
        self.code = code
        self.sizes = code.sizes

    def _own(self, rows: Tensor) -> Tensor:
        """This rank's row, as a matrix."""
        return rows[self.channel.rank : self.channel.rank + 1]


class FixedAllGather(FixedTransfer):
    """Everyone's codes to everyone, a shard in each part."""

    def __init__(self, code: Fixed, channel: Channel, scratch: Scratch, phase: Phase) -> None:
        super().__init__(code, channel, scratch, phase)
        self.num_parts = self.sizes.num_shards
        self._num_sent = 0
        self._under_way: deque[tuple[int, Tensor, Pending]] = deque()

    def send(self) -> None:
        shard, self._num_sent = self._num_sent, self._num_sent + 1
        received = self.scratch(f"received {shard % 2}", self.channel.world_size, self.sizes.nbytes)
        with self.phase("encode"):
            self.code.encode_shard(shard, received[self.channel.rank])
        with self.phase("exchange"):
            self._under_way.append((shard, received, self.channel.all_gather(received)))

    @property
    def arriving(self) -> Pending:
        return self._under_way[0][-1]

    def receive(self) -> None:
        shard, received, pending = self._under_way.popleft()
        self._wait(pending)
        with self.phase("decode"):
            self.code.decode(received, shard)


class FixedTwoShot(FixedTransfer):
    """Shards to their owners, and the owners' sums to everyone."""

    def send(self) -> None:
        count = self.channel.world_size
        messages = self.scratch("codes", count, self.sizes.nbytes)
        with self.phase("encode"):
            self.code.encode(messages)
        self._received = self.scratch("received", count, self.sizes.nbytes)
        with self.phase("exchange"):
            self._pending = self.channel.all_to_all(self._received, messages)

    def forward(self) -> None:
        self._wait(self._pending)
        self._sums = self.scratch("sums", self.channel.world_size, self.sizes.sum_nbytes)
        with self.phase("decode"):
            self.code.sum_shard(self._received, self._own(self._sums)[0])
        with self.phase("exchange"):
            self._pending = self.channel.all_gather(self._sums)

    @property
    def arriving(self) -> Pending:
        return self._pending

    def receive(self) -> None:
        self._wait(self._pending)
        with self.phase("decode"):
            self.code.decode_sums(self._sums)
