"""The exchanges among workers alone, and what they cost."""

from __future__ import annotations

from terngrad.exchange.base import AnyCode, Exchange, Phase, Scratch, Sizes, Transfer
from terngrad.exchange.channel import Channel
from terngrad.exchange.fixed import FixedAllGather, FixedTwoShot
from terngrad.exchange.varying import VaryingAllGather, VaryingTwoShot


class AllGather(Exchange):
    """Everyone sends its codes to everyone: one round, best for few workers.

    A large bucket goes in parts, so that one is encoded and another decoded while a third is on the wire.
    """

    name = "all-gather"
    num_rounds = 1

    def num_shards(self, world_size: int, num_parts: int) -> int:
        return num_parts

    def bytes_sent(self, sizes: Sizes, world_size: int) -> int:
        return (world_size - 1) * sizes.num_shards * sizes.nbytes

    def open(self, code: AnyCode, channel: Channel, scratch: Scratch, phase: Phase) -> Transfer:
        if code.varies:
            return VaryingAllGather(code, channel, scratch, phase)
        return FixedAllGather(code, channel, scratch, phase)


class TwoShot(Exchange):
    """Shards go to their owners, who add them up and send the sums to everyone: cost does not grow with workers."""

    name = "two-shot"
    num_rounds = 2

    def num_shards(self, world_size: int, num_parts: int) -> int:
        return world_size

    def bytes_sent(self, sizes: Sizes, world_size: int) -> int:
        return (world_size - 1) * (sizes.nbytes + sizes.sum_nbytes)

    def open(self, code: AnyCode, channel: Channel, scratch: Scratch, phase: Phase) -> Transfer:
        if code.varies:
            return VaryingTwoShot(code, channel, scratch, phase)
        return FixedTwoShot(code, channel, scratch, phase)


EXCHANGES: dict[str, Exchange] = {kind.name: kind for kind in (AllGather(), TwoShot())}

LATENCY_S = 1e-4  # of one message on the networks this is for; only decides when both exchanges cost about the same
SECONDS_PER_BYTE = 8 / 1e9  # 1 Gb/s


def predicted_seconds(exchange: Exchange, sizes: Sizes, world_size: int) -> float:
    """What one bucket costs on a slow network: rounds of N-1 messages, and the bytes they carry."""
    messages = exchange.num_rounds * (world_size - 1)
    return messages * LATENCY_S + exchange.bytes_sent(sizes, world_size) * SECONDS_PER_BYTE
