"""How payloads reach everyone: all-gather, two-shot and parameter servers, with a count of the bytes."""

from terngrad.exchange.base import AnyCode, Exchange, Sizes, Transfer
from terngrad.exchange.channel import SMALL_BYTES, Channel, Pending
from terngrad.exchange.groups import own_group, timeout_of
from terngrad.exchange.server import Layout, Roster, Served, Server, ServerExchange
from terngrad.exchange.varying import HEAD_BYTES, LENGTH_BYTES
from terngrad.exchange.workers import EXCHANGES, AllGather, TwoShot, predicted_seconds

__all__ = [
    "EXCHANGES", "HEAD_BYTES", "LENGTH_BYTES", "SMALL_BYTES", "AllGather", "AnyCode", "Channel", "Exchange", "Layout",
    "Pending", "Roster", "Served", "Server", "ServerExchange", "Sizes", "Transfer", "TwoShot", "own_group",
    "predicted_seconds", "timeout_of",
]  # fmt: skip
