"""How a bucket's messages reach everyone: what every exchange is, and the two among workers alone.

An exchange moves bytes and never reads them; what they mean is the business of a `Reducible`. A transfer works in three
stages, so that the caller can put other work between them: send() posts the first collective, forward() the second
where there is one, receive() waits and decodes. All ranks must call them in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

from torch import Tensor

from terngrad.exchange.channel import Channel, Pending


class Sizes(Protocol):
    """Bytes of one rank's messages for a number of shards, and a text from which another rank can tell the same."""

    nbytes: int
    sum_nbytes: int

    @property
    def description(self) -> bytes: ...


class Reducible(Protocol):
    """A bucket that can write its messages, add up a shard of everyone's, and read the result."""

    @property
    def label(self) -> tuple[int, int]:
        """Its step and number in the step."""

    def encode(self, messages: Tensor) -> None: ...
    def decode(self, messages: Tensor) -> None: ...
    def sum_shard(self, messages: Tensor, target: Tensor) -> None: ...
    def decode_sums(self, messages: Tensor) -> None: ...


Scratch = Callable[[str, int, int], Tensor]  # (role, rows, bytes in a row) -> uint8 matrix, reused
Phase = Callable[[str], AbstractContextManager[None]]  # names and times what runs inside


class Transfer(ABC):
    """One bucket's messages, under way."""

    def __init__(self, channel: Channel, sizes: Sizes, scratch: Scratch, phase: Phase) -> None:
        self.channel = channel
        self.sizes = sizes
        self.scratch = scratch
        self.phase = phase

    @abstractmethod
    def send(self, code: Reducible) -> Tensor:
        """Encodes and posts the first collective; returns this rank's own messages."""

    def forward(self, code: Reducible) -> None:
        """Posts the second collective, where there is one."""
        return

    @abstractmethod
    def receive(self, code: Reducible) -> None:
        """Waits for the last collective and decodes."""

    def _wait(self, pending: Pending) -> None:
        with self.phase("exchange"):
            pending.wait()

    def _own(self, rows: Tensor) -> Tensor:
        """This rank's row, as a matrix."""
        return rows[self.channel.rank : self.channel.rank + 1]


class Exchange(ABC):
    """A way to exchange: how messages are cut, what that sends, and the start of one bucket's transfer."""

    name: ClassVar[str]
    num_rounds: ClassVar[int]  # of messages that wait for each other

    @abstractmethod
    def num_shards(self, world_size: int) -> int:
        """How many shards the messages are cut into."""

    @abstractmethod
    def bytes_sent(self, sizes: Sizes, world_size: int) -> int:
        """What one rank sends for one bucket."""

    @abstractmethod
    def open(self, channel: Channel, sizes: Sizes, scratch: Scratch, phase: Phase) -> Transfer:
        """One bucket's transfer; nothing is sent yet."""


class _AllGatherTransfer(Transfer):
    def send(self, code: Reducible) -> Tensor:
        self._received = self.scratch("received", self.channel.world_size, self.sizes.nbytes)
        messages = self._own(self._received)
        with self.phase("encode"):
            code.encode(messages)
        with self.phase("exchange"):
            self._pending = self.channel.all_gather(self._received)
        return messages

    def receive(self, code: Reducible) -> None:
        self._wait(self._pending)
        with self.phase("decode"):
            code.decode(self._received)


class AllGather(Exchange):
    """Everyone sends its codes to everyone: one round, best for few workers."""

    name = "all-gather"
    num_rounds = 1

    def num_shards(self, world_size: int) -> int:
        return 1

    def bytes_sent(self, sizes: Sizes, world_size: int) -> int:
        return (world_size - 1) * sizes.nbytes

    def open(self, channel: Channel, sizes: Sizes, scratch: Scratch, phase: Phase) -> Transfer:
        return _AllGatherTransfer(channel, sizes, scratch, phase)


class _TwoShotTransfer(Transfer):
    def send(self, code: Reducible) -> Tensor:
        count = self.channel.world_size
        messages = self.scratch("codes", count, self.sizes.nbytes)
        with self.phase("encode"):
            code.encode(messages)
        self._received = self.scratch("received", count, self.sizes.nbytes)
        with self.phase("exchange"):
            self._pending = self.channel.all_to_all(self._received, messages)
        return messages

    def forward(self, code: Reducible) -> None:
        self._wait(self._pending)
        self._sums = self.scratch("sums", self.channel.world_size, self.sizes.sum_nbytes)
        with self.phase("decode"):
            code.sum_shard(self._received, self._own(self._sums)[0])
        with self.phase("exchange"):
            self._pending = self.channel.all_gather(self._sums)

    def receive(self, code: Reducible) -> None:
        self._wait(self._pending)
        with self.phase("decode"):
            code.decode_sums(self._sums)


class TwoShot(Exchange):
    """Shards go to their owners, who add them up and send the sums to everyone: cost does not grow with workers."""

    name = "two-shot"
    num_rounds = 2

    def num_shards(self, world_size: int) -> int:
        return world_size

    def bytes_sent(self, sizes: Sizes, world_size: int) -> int:
        return (world_size - 1) * (sizes.nbytes + sizes.sum_nbytes)

    def open(self, channel: Channel, sizes: Sizes, scratch: Scratch, phase: Phase) -> Transfer:
        return _TwoShotTransfer(channel, sizes, scratch, phase)


EXCHANGES: dict[str, Exchange] = {kind.name: kind for kind in (AllGather(), TwoShot())}

LATENCY_S = 1e-4  # of one message on the networks this is for; only decides when both exchanges cost about the same
SECONDS_PER_BYTE = 8 / 1e9  # 1 Gb/s


def predicted_seconds(exchange: Exchange, sizes: Sizes, world_size: int) -> float:
    """What one bucket costs on a slow network: rounds of N-1 messages, and the bytes they carry."""
    messages = exchange.num_rounds * (world_size - 1)
    return messages * LATENCY_S + exchange.bytes_sent(sizes, world_size) * SECONDS_PER_BYTE
