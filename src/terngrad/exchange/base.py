"""What an exchange is: bytes that are moved and never read.

What the bytes mean is the business of a *code*, a bucket that can write its messages, add up a shard of everyone's and
read the result. There are two kinds: messages of a size that all ranks know, and messages that vary. A transfer works
in three stages, so that the caller can put other work between them: send() posts the first collective, forward() the
second where there is one, receive() waits and decodes. All ranks must call them in the same order. A large bucket may
go in parts; each takes all three stages, and the next one may be sent before this one is received, but no other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Literal, Protocol

from torch import Tensor

from terngrad.exchange.channel import Channel, Pending


class Sizes(Protocol):
    """Bytes of one rank's messages for a number of shards, and a text from which another rank can tell the same.

    Where messages vary, these are the most that a message can have.
    """

    @property
    def num_shards(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def sum_nbytes(self) -> int: ...
    @property
    def description(self) -> bytes: ...


class Code(Protocol):
    """A bucket on its way."""

    @property
    def label(self) -> tuple[int, int]:
        """Its step and number in the step."""

    @property
    def sizes(self) -> Sizes: ...


class Fixed(Code, Protocol):
    """A bucket whose messages all have the size that all ranks know; they are rows of a matrix."""

    @property
    def varies(self) -> Literal[False]: ...
    def encode(self, messages: Tensor) -> None: ...
    def encode_shard(self, shard: int, message: Tensor) -> None: ...
    def decode(self, messages: Tensor, shard: int = 0) -> None: ...
    def sum_shard(self, messages: Tensor, target: Tensor) -> None: ...
    def decode_sums(self, messages: Tensor) -> None: ...


class Varying(Code, Protocol):
    """A bucket whose messages are as long as they happen to be."""

    @property
    def varies(self) -> Literal[True]: ...
    def pack(self) -> list[Tensor]:
        """This rank's messages, one for each shard."""

    def pack_shard(self, shard: int) -> Tensor:
        """One of them alone."""

    def unpack(self, messages: Sequence[Tensor], shard: int = 0) -> None: ...
    def add(self, messages: Sequence[Tensor]) -> Tensor:
        """The message of the sum of all ranks' messages of this rank's shard."""

    def unpack_sums(self, messages: Sequence[Tensor]) -> None: ...


AnyCode = Fixed | Varying
Scratch = Callable[[str, int, int], Tensor]  # (role, rows, bytes in a row) -> uint8 matrix, reused
Phase = Callable[[str], AbstractContextManager[None]]  # names and times what runs inside


class Transfer(ABC):
    """One bucket's messages, under way. Its stages are for one part after the other."""

    num_parts = 1

    def __init__(self, channel: Channel, scratch: Scratch, phase: Phase) -> None:
        self.channel = channel
        self.scratch = scratch
        self.phase = phase

    @abstractmethod
    def send(self) -> None:
        """Encodes and posts the first collective."""

    def forward(self) -> None:
        """Posts the second collective, where there is one."""
        return

    @property
    @abstractmethod
    def arriving(self) -> Pending:
        """What receive() waits for. Whoever else waits for it takes nothing away."""

    @abstractmethod
    def receive(self) -> None:
        """Waits for the last collective and decodes."""

    def _wait(self, pending: Pending) -> None:
        with self.phase("exchange"):
            pending.wait()


class Exchange(ABC):
    """A way to exchange: how messages are cut, what that sends, and the start of one bucket's transfer."""

    name: ClassVar[str]
    num_rounds: ClassVar[int]  # of messages that wait for each other

    @abstractmethod
    def num_shards(self, world_size: int, num_parts: int) -> int:
        """How many shards the messages are cut into, of a bucket that the method lets go in so many parts."""

    @abstractmethod
    def bytes_sent(self, sizes: Sizes, world_size: int) -> int:
        """What one rank sends for one bucket; at most, where messages vary."""

    @abstractmethod
    def open(self, code: AnyCode, channel: Channel, scratch: Scratch, phase: Phase) -> Transfer:
        """One bucket's transfer; nothing is sent yet."""
