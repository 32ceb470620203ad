"""How payloads reach everyone: all-gather, two-shot and parameter servers, with a count of the bytes."""

from terngrad.exchange.channel import Channel, own_group, timeout_of
from terngrad.exchange.server import Roster, Served, Server, ServerExchange
from terngrad.exchange.transfer import EXCHANGES, AllGather, Exchange, Sizes, Transfer, TwoShot, predicted_seconds

__all__ = [
    "EXCHANGES", "AllGather", "Channel", "Exchange", "Roster", "Served", "Server", "ServerExchange", "Sizes",
    "Transfer", "TwoShot", "own_group", "predicted_seconds", "timeout_of",
]  # fmt: skip
