"""Messages of any length between real processes: what comes, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from terngrad.ddp.scratch import Scratch
from terngrad.exchange import HEAD_BYTES, LENGTH_BYTES, Channel, own_group
from terngrad.exchange.varying import VaryingAllGather

from .workloads import Stage

pytestmark = pytest.mark.distributed

stage = Stage()

ROOM = HEAD_BYTES - LENGTH_BYTES
MOST = 1 << 20
LENGTHS = (
    (1, 1, 1), (ROOM - 1, ROOM, ROOM + 1), (ROOM, ROOM, ROOM), (ROOM + 1,) * 3, (1, MOST, ROOM), (MOST, 5, 5),
)  # fmt: skip


@dataclass(frozen=True)
class Most:
    num_shards: int = 1
    nbytes: int = MOST
    sum_nbytes: int = MOST
    description: bytes = b""


def content(rank: int, length: int) -> Tensor:
    return (torch.arange(length) * (2 * rank + 3)).to(torch.uint8)


@dataclass
class Message:
    """A code whose one message is known to all."""

    own: Tensor
    sizes: Most = field(default_factory=Most)
    label: tuple[int, int] = (0, 0)
    varies: Literal[True] = True
    read: list[Tensor] = field(default_factory=list)

    def pack(self) -> list[Tensor]:
        return [self.own]

    def pack_shard(self, shard: int) -> Tensor:
        return self.own

    def unpack(self, messages: Sequence[Tensor], shard: int = 0) -> None:
        self.read = [message.clone() for message in messages]

    def add(self, messages: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError

    def unpack_sums(self, messages: Sequence[Tensor]) -> None:
        raise NotImplementedError


@stage.scenario(3)
def swapped(rank: int, world_size: int) -> dict[tuple[str, Sequence[int]], Any]:
    """As gloo does over TCP, and with whole beginnings, as other backends need them."""
    channel = Channel(own_group(dist.group.WORLD))
    scratch, cpu = Scratch(), torch.device("cpu")
    found = {}
    for kind in ("short", "whole"):
        with pytest.MonkeyPatch.context() as patch:
            if kind == "whole":
                patch.setattr(channel, "may_be_shorter", lambda _: False)
            for lengths in LENGTHS:
                before = channel.bytes_sent, channel.bytes_received
                code = Message(content(rank, lengths[rank]))
                transfer = VaryingAllGather(code, channel, partial(scratch.take, cpu), lambda _: nullcontext())
                transfer.send()
                transfer.receive()
                right = [
                    torch.equal(got, content(i, n)) for i, (got, n) in enumerate(zip(code.read, lengths, strict=True))
                ]
                counted = channel.bytes_sent - before[0], channel.bytes_received - before[1]
                found[kind, lengths] = right, counted
    return found


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kind", ["short", "whole"])
def test_messages_of_any_length_come_whole_and_are_counted_as_they_are_sent(
    kind: str, lengths: tuple[int, ...]
) -> None:
    heads = [LENGTH_BYTES + min(ROOM, n) if kind == "short" else HEAD_BYTES for n in lengths]
    sizes = [head + max(n - ROOM, 0) for head, n in zip(heads, lengths, strict=True)]
    for rank, found in enumerate(stage.play(swapped, 3)):
        right, counted = found[kind, lengths]
        assert right == [True] * 3
        assert counted == (2 * sizes[rank], sum(sizes) - sizes[rank])
