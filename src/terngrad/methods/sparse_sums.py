"""Adding up sparse messages: the union of their positions, with sums. Needs no gradient and no method."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from terngrad.codecs import Envelope, Picks, SparseFrame, dense_values, read_picks, whole_message, write_picks
from terngrad.errors import WireError
from terngrad.kernels import Entries, kernels_for
from terngrad.methods.sums import mean_into


def entries_of(frame: SparseFrame, picks: Picks, device: torch.device) -> Entries:
    """Picks, by segment."""
    bounds = np.searchsorted(picks.positions, frame.starts)
    indices = np.empty(len(picks.positions), np.uint32)
    for start, first, last in zip(frame.starts, bounds, bounds[1:], strict=False):
        np.subtract(picks.positions[first:last], start, out=indices[first:last], casting="unsafe")
    return Entries(np.diff(bounds).astype(np.int64), indices, torch.from_numpy(picks.values).to(device))


def picks_of(frame: SparseFrame, entries: Entries) -> Picks:
    """The inverse: entries of segments, in the one space of positions."""
    positions = np.empty(len(entries.indices), np.int64)
    bounds = np.concatenate([[0], np.cumsum(entries.counts)])
    for start, first, last in zip(frame.starts, bounds, bounds[1:], strict=False):
        np.add(entries.indices[first:last], start, out=positions[first:last])
    return Picks(positions, entries.values.cpu().numpy())


def add_sparse(envelope: Envelope[SparseFrame], number: int, messages: Sequence[Tensor]) -> Tensor:
    """Adds up all workers' messages of one shard and gives the message of the sum."""
    frame, shard = envelope.frame, envelope.frame.shards[number]
    device = messages[0].device
    for sender, message in enumerate(messages):
        envelope.codes(sender, number, message.numel()).check(message)
    found = [
        entries_of(
            frame, read_picks(frame, shard, frame.values, message, f"message from rank {i}, {envelope.where}"), device
        )
        for i, message in enumerate(messages)
    ]
    merged = kernels_for(device).merge(np.diff(frame.starts), found)
    if merged is None:
        raise WireError(f"{envelope.where}: positions out of order; a message was corrupted on its way")
    body = write_picks(frame, shard, frame.sum_values, picks_of(frame, merged))
    parts = [dense_values(frame, shard, message) for message in messages]
    dense = torch.empty_like(parts[0])
    mean_into(dense, parts)
    return whole_message(frame, shard, body, [dense] if shard.dense else [], partial(envelope.sums, number), device)
