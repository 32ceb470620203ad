"""The headers of one bucket's messages in one step: what each kind of message must start with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from terngrad.codecs.header import Body, DenseType, Header


class Part(Protocol):
    """One shard's message, as its header describes it."""

    @property
    def num_coded(self) -> int: ...
    @property
    def num_dense(self) -> int: ...


class Layout(Protocol):
    """A layout of messages, as their headers describe it. Sizes are the most where messages vary."""

    nbytes: int
    sum_nbytes: int

    @property
    def body(self) -> Body: ...
    @property
    def sum_body(self) -> Body: ...
    @property
    def dense_wire_type(self) -> DenseType: ...
    @property
    def num_units(self) -> int: ...
    @property
    def scalers_nbytes(self) -> int: ...
    @property
    def shards(self) -> Sequence[Part]: ...


FrameT = TypeVar("FrameT", bound=Layout)


@dataclass(frozen=True)
class Envelope(Generic[FrameT]):
    """Everything that sender and receiver know about a bucket's messages before they are written; of those that vary,
    all but the length, which is told ahead.
    """

    frame: FrameT
    bucket: int
    step: int

    def scalers(self, sender: int) -> Header:
        frame = self.frame
        return Header(
            Body.SCALERS, DenseType.NONE, sender, 0, self.bucket, self.step, frame.num_units, 0, frame.scalers_nbytes
        )

    def codes(self, sender: int, shard: int, num_bytes: int | None = None) -> Header:
        """Of one rank's message of a shard, which has `frame.nbytes` unless it varies."""
        frame, part = self.frame, self.frame.shards[shard]
        return Header(
            frame.body, frame.dense_wire_type, sender, shard, self.bucket, self.step, part.num_coded, part.num_dense,
            frame.nbytes if num_bytes is None else num_bytes,
        )  # fmt: skip

    def sums(self, shard: int, num_bytes: int | None = None) -> Header:
        """Of the message that holds a shard's sum; its sender is whoever owns the shard."""
        frame, part = self.frame, self.frame.shards[shard]
        return Header(
            frame.sum_body, frame.dense_wire_type, shard, shard, self.bucket, self.step, part.num_coded,
            part.num_dense, frame.sum_nbytes if num_bytes is None else num_bytes,
        )  # fmt: skip

    @property
    def where(self) -> str:
        return f"step {self.step}, bucket {self.bucket}"
