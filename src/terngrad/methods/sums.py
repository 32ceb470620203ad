"""Adding up messages without decoding them: integer sums of codes, means of dense values.

This needs no gradient and no method, only the frame: a worker does it for its own shard, a parameter server for others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from terngrad.codecs import DenseSpan, EntropyFrame, Envelope, Frame
from terngrad.errors import WireError
from terngrad.kernels import Runs, kernels_for

_PIECE = 1 << 18  # elements of a dense mean taken at once


def add_shard(envelope: Envelope[Frame], shard: int, messages: Sequence[Tensor] | Tensor, target: Tensor) -> None:
    """Adds up all workers' messages of one shard and writes the message of the sum."""
    for sender, message in enumerate(messages):
        envelope.codes(sender, shard).check(message)
    envelope.sums(shard).write(target)
    add_payloads(envelope, shard, list(messages), target)


def add_payloads(envelope: Envelope[Frame], shard: int, payloads: Sequence[Tensor], target: Tensor) -> None:
    """Likewise, without the headers."""
    frame = envelope.frame
    part = frame.shards[shard]
    if not _sum_into(frame, part.runs, payloads, target):
        raise bad_codes(envelope, [are_codes(frame, part.runs, payload) for payload in payloads])
    mean_into(frame.dense_part(target, part, sums=True), [frame.dense_part(payload, part) for payload in payloads])


def _sum_into(frame: Frame, runs: Runs, payloads: Sequence[Tensor], target: Tensor) -> bool:
    kernels = kernels_for(target.device)
    if frame.sum_digits:
        return kernels.sum_symbols(runs, payloads, frame.code, target)
    return kernels.sum_levels(runs, payloads, frame.code, target)


def add_coded(envelope: Envelope[Frame], frame: EntropyFrame, shard: int, messages: Sequence[Tensor]) -> Tensor:
    """Adds up all workers' coded messages of one shard and gives the coded message of the sum."""
    plain = torch.empty(len(messages), frame.plain.nbytes, dtype=torch.uint8, device=messages[0].device)
    for sender, (message, row) in enumerate(zip(messages, plain, strict=True)):
        frame.read_codes(envelope, sender, shard, message, row)
    target = torch.empty(frame.plain.sum_nbytes, dtype=torch.uint8, device=plain.device)
    add_payloads(envelope, shard, list(plain), target)
    return frame.write_sums(envelope, shard, target)


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


def write_dense_mean(buffer: Tensor, spans: Sequence[DenseSpan], parts: Sequence[Tensor]) -> None:
    """Writes the mean of all workers' dense values to the bucket."""
    if len(spans) > 1 and parts[0].numel() <= _PIECE:  # many small ones: all means at once
        means = torch.empty_like(parts[0])
        mean_into(means, parts)
        write_dense(buffer, spans, means)
        return
    for span in spans:
        where = slice(span.target, span.target + span.numel)
        mean_into(buffer[span.source : span.source + span.numel], [part[where] for part in parts])


def write_dense(buffer: Tensor, spans: Sequence[DenseSpan], values: Tensor) -> None:
    """Writes dense values to the bucket."""
    for span in spans:
        buffer[span.source : span.source + span.numel] = values[span.target : span.target + span.numel]


def are_codes(frame: Frame, runs: Runs, payload: Tensor) -> bool:
    """Whether an encoder could have written one message's codes."""
    room = torch.empty(frame.sum_nbytes, dtype=torch.uint8, device=payload.device)
    return _sum_into(frame, runs, [payload], room)


def bad_codes(envelope: Envelope[Frame], are_good: Sequence[bool]) -> WireError:
    """The error for codes that no encoder writes, naming the first sender whose message is not good."""
    sender = list(are_good).index(False)
    return WireError(
        f"message from rank {sender}, {envelope.where}: holds codes that no encoder writes; it was corrupted on its way"
    )
