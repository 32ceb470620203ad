"""How payloads reach everyone: all-gather and two-shot, over a channel that counts bytes."""

from terngrad.exchange.channel import Channel, own_group
from terngrad.exchange.transfer import EXCHANGES, AllGather, Transfer, TwoShot, predicted_seconds

__all__ = ["EXCHANGES", "AllGather", "Channel", "Transfer", "TwoShot", "own_group", "predicted_seconds"]
