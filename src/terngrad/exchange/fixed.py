"""Transfers among workers of messages whose size all ranks know: straight from and into matrices, a row each."""

from __future__ import annotations

from torch import Tensor

from terngrad.exchange.base import Fixed, Phase, Scratch, Transfer
from terngrad.exchange.channel import Channel


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
    """Everyone's codes to everyone."""

    def send(self) -> None:
        self._received = self.scratch("received", self.channel.world_size, self.sizes.nbytes)
        with self.phase("encode"):
            self.code.encode(self._own(self._received))
        with self.phase("exchange"):
            self._pending = self.channel.all_gather(self._received)

    def receive(self) -> None:
        self._wait(self._pending)
        with self.phase("decode"):
            self.code.decode(self._received)


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

    def receive(self) -> None:
        self._wait(self._pending)
        with self.phase("decode"):
            self.code.decode_sums(self._sums)
