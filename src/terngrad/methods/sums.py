"""Adding up messages without decoding them: integer sums of codes, means of dense values.

This needs no gradient and no method, only the frame: a worker does it for its own shard, a parameter server for others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from terngrad.codecs import Envelope, Frame
from terngrad.errors import WireError
from terngrad.kernels import Runs, kernels_for

_PIECE = 1 << 18  # elements of a dense mean taken at once


def add_shard(envelope: Envelope, shard: int, messages: Tensor, target: Tensor) -> None:
    """Adds up all workers' messages of one shard, a row each, and writes the message of the sum."""
    frame = envelope.frame
    part = frame.shards[shard]
    for sender, message in enumerate(messages):
        envelope.codes(sender, shard).check(message)
    payloads = list(messages)
    envelope.sums(shard).write(target)
    if not kernels_for(messages.device).sum_levels(part.runs, payloads, frame.code, target):
        raise bad_codes(envelope, [are_codes(frame, part.runs, payload) for payload in payloads])
    mean_into(frame.dense_part(target, part, sums=True), [frame.dense_part(payload, part) for payload in payloads])


def mean_into(target: Tensor, parts: Sequence[Tensor]) -> None:
    """The mean of dense values, in single precision over the ranks in order, rounded to the wire's type.

    Piece by piece, so that all but the first read of a value is from cache.
    """
    room = torch.empty(min(_PIECE, target.numel()), dtype=torch.float32, device=target.device)
    for first in range(0, target.numel(), _PIECE):
        piece = slice(first, min(first + _PIECE, target.numel()))
        total = room[: piece.stop - first]
        total.copy_(parts[0][piece])
        for part in parts[1:]:
            total += part[piece]
        total /= len(parts)
        target[piece] = total.to(parts[0].dtype)


def are_codes(frame: Frame, runs: Runs, payload: Tensor) -> bool:
    """Whether an encoder could have written one message's codes."""
    room = torch.empty(frame.sum_nbytes, dtype=torch.uint8, device=payload.device)
    return kernels_for(payload.device).sum_levels(runs, [payload], frame.code, room)


def bad_codes(envelope: Envelope, are_good: Sequence[bool]) -> WireError:
    """The error for codes that no encoder writes, naming the first sender whose message is not good."""
    sender = list(are_good).index(False)
    return WireError(
        f"message from rank {sender}, {envelope.where}: holds codes that no encoder writes; it was corrupted on its way"
    )
