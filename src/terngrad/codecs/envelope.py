"""The headers of one bucket's messages in one step: what each kind of message must start with."""

from __future__ import annotations

from dataclasses import dataclass

from terngrad.codecs.frame import Frame
from terngrad.codecs.header import Body, DenseType, Header


@dataclass(frozen=True)
class Envelope:
    """Everything that sender and receiver know about a bucket's messages before they are written."""

    frame: Frame
    bucket: int
    step: int

    def scalers(self, sender: int) -> Header:
        frame = self.frame
        return Header(
            Body.SCALERS, DenseType.NONE, sender, 0, self.bucket, self.step, frame.num_units, 0, frame.scalers_nbytes
        )

    def codes(self, sender: int, shard: int) -> Header:
        frame, part = self.frame, self.frame.shards[shard]
        return Header(
            frame.body, frame.dense_wire_type, sender, shard, self.bucket, self.step, part.num_coded, part.num_dense,
            frame.nbytes,
        )  # fmt: skip

    def sums(self, shard: int) -> Header:
        """Of the message that holds a shard's sum; its sender is whoever owns the shard."""
        frame, part = self.frame, self.frame.shards[shard]
        return Header(
            frame.sum_body, frame.dense_wire_type, shard, shard, self.bucket, self.step, part.num_coded,
            part.num_dense, frame.sum_nbytes,
        )  # fmt: skip

    @property
    def where(self) -> str:
        return f"step {self.step}, bucket {self.bucket}"
