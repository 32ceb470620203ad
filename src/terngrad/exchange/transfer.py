"""How a bucket's messages reach everyone: all-gather and two-shot.

An exchange moves bytes and never reads them; what they mean is the business of a `Reducible`. It works in three
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
    """Bytes of one rank's messages for a number of shards."""

    nbytes: int
    sum_nbytes: int


class Reducible(Protocol):
    """A bucket that can write its messages, add up a shard of everyone's, and read the result."""

    def encode(self, messages: Tensor) -> None: ...
    def decode(self, messages: Tensor) -> None: ...
    def sum_shard(self, messages: Tensor, target: Tensor) -> None: ...
    def decode_sums(self, messages: Tensor) -> None: ...


Scratch = Callable[[str, int, int], Tensor]  # (role, rows, bytes in a row) -> uint8 matrix, reused
Phase = Callable[[str], AbstractContextManager[None]]  # names and times what runs inside


class Transfer(ABC):
    """One bucket's messages, under way."""

    name: ClassVar[str]

    def __init__(self, channel: Channel, sizes: Sizes, scratch: Scratch, phase: Phase) -> None:
        self.channel = channel
        self.sizes = sizes
        self.scratch = scratch
        self.phase = phase

    @staticmethod
    @abstractmethod
    def num_shards(world_size: int) -> int:
        """How many shards the messages are cut into."""

    @staticmethod
    @abstractmethod
    def bytes_sent(sizes: Sizes, world_size: int) -> int:
        """What one rank sends for one bucket."""

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


class AllGather(Transfer):
    """Everyone sends its codes to everyone: one round, best for few workers."""

    name = "all-gather"

    @staticmethod
    def num_shards(world_size: int) -> int:
        return 1

    @staticmethod
    def bytes_sent(sizes: Sizes, world_size: int) -> int:
        return (world_size - 1) * sizes.nbytes

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


class TwoShot(Transfer):
    """Shards go to their owners, who add them up and send the sums to everyone: cost does not grow with workers."""

    name = "two-shot"

    @staticmethod
    def num_shards(world_size: int) -> int:
        return world_size

    @staticmethod
    def bytes_sent(sizes: Sizes, world_size: int) -> int:
        return (world_size - 1) * (sizes.nbytes + sizes.sum_nbytes)

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


EXCHANGES: dict[str, type[Transfer]] = {kind.name: kind for kind in (AllGather, TwoShot)}

LATENCY_S = 1e-4  # of one message on the networks this is for; only decides when both exchanges cost about the same
SECONDS_PER_BYTE = 8 / 1e9  # 1 Gb/s


def predicted_seconds(kind: type[Transfer], sizes: Sizes, world_size: int) -> float:
    """What one bucket costs on a slow network: rounds of N-1 messages, and the bytes they carry."""
    rounds = 1 if kind.num_shards(world_size) == 1 else 2
    return rounds * (world_size - 1) * LATENCY_S + kind.bytes_sent(sizes, world_size) * SECONDS_PER_BYTE
