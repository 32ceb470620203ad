"""Sparse gradients: momentum and residuals of segments, the entries taken from them, and sums of entries.

What DGC (Lin et al. 2018) and SDAGC (Chen et al. 2020) do to every element. A segment is a parameter, or as much of it
as lies in the bucket; its velocity u and residual v are float32 tensors of its own. Thresholds and what is done with
the entries are the method's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from terngrad.kernels.layout import TILE, Int64Array, Uint32Array
from terngrad.kernels.reference.statistics import Statistics, statistics


class Accumulated(NamedTuple):
    """Of each segment: the statistics of v, and whether all of its gradient was finite (bool)."""

    statistics: Statistics
    finite: Tensor


class Entries(NamedTuple):
    """Elements of the segments of a bucket: `counts[i]` of segment i, by increasing index within it.

    `counts` and `indices` are numpy arrays, `values` is a float32 tensor on the device of the bucket.
    """

    counts: Int64Array
    indices: Uint32Array
    values: Tensor


def _tiles_of(lengths: Sequence[int], maxima: Tensor) -> list[Tensor]:
    """The maxima of each segment."""
    counts = [-(-length // TILE) for length in lengths]
    if maxima.shape != (sum(counts),):
        raise ValueError(f"maxima: {list(maxima.shape)} given, need {sum(counts)}")
    return list(maxima.split_with_sizes(counts)) if counts else []


def _check_states(what: str, states: Sequence[Tensor], lengths: Sequence[int]) -> None:
    found = [state.numel() for state in states]
    if found != list(lengths):
        raise ValueError(f"{what}: tensors of {found} elements for segments of {list(lengths)}")


def _largest_of_tiles(values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values.abs(), (0, -len(values) % TILE)).view(-1, TILE).amax(dim=1)


def _update(gradient: Tensor, velocity: Tensor | None, residual: Tensor, momentum: float, nesterov: bool) -> bool:
    """Adds a gradient of one segment, but for what is not finite of it; returns whether all was."""
    finite = torch.isfinite(gradient)
    change = gradient
    if velocity is not None:
        after = momentum * (velocity + gradient) if nesterov else momentum * velocity + gradient
        change = after + gradient if nesterov else after
        velocity.copy_(torch.where(finite, after, velocity))
    residual.copy_(torch.where(finite, residual + change, residual))
    return bool(finite.all())


def accumulate(
    buffer: Tensor,
    spans: Int64Array,
    velocities: Sequence[Tensor] | None,
    residuals: Sequence[Tensor],
    factors: Tensor,
    maxima: Tensor,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    clear: bool = False,
) -> Accumulated:
    """Adds the gradient of each (source, length) span, times its factor, to velocity and residual.

    u <- m u + g and v <- v + u; with `nesterov` u <- m (u + g) and v <- v + (u + g); without velocities v <- v + g. An
    element whose g is not finite keeps its u and v. `maxima` gets the largest |v| of every TILE elements of a segment,
    segment after segment. `clear` sets the gradient to zero, for `scatter_mean` to write into.
    """
    lengths = spans[:, 1].tolist()
    _check_states("residuals", residuals, lengths)
    if velocities is not None:
        _check_states("velocities", velocities, lengths)
    tiles = _tiles_of(lengths, maxima)
    momentum = float(np.float32(momentum))
    finite = torch.zeros(len(spans), dtype=torch.bool, device=buffer.device)
    found = statistics(buffer, np.zeros_like(spans))
    for i, (source, length) in enumerate(spans.tolist()):
        gradient, residual = buffer[source : source + length], residuals[i].view(-1)
        velocity = None if velocities is None else velocities[i].view(-1)
        finite[i] = _update(gradient.float() * factors[i], velocity, residual, momentum, nesterov)
        for of_all, mine in zip(found, statistics(residual, np.array([[0, length]])), strict=True):
            of_all[i] = mine[0]
        tiles[i].copy_(_largest_of_tiles(residual))
        if clear:
            gradient.zero_()
    return Accumulated(found, finite)


def _above(residuals: Sequence[Tensor], maxima: Tensor, thresholds: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each segment v, flat, and the indices of the elements to be taken."""
    tiles = _tiles_of([residual.numel() for residual in residuals], maxima)
    if thresholds.shape != (len(residuals),):
        raise ValueError(f"thresholds: {list(thresholds.shape)} given, need {len(residuals)}")
    for residual, largest, threshold in zip(residuals, tiles, thresholds, strict=True):
        values = residual.view(-1)
        read = ~(largest <= threshold)  # a maximum that is NaN hides the others of its tile
        above = (values.abs() > threshold) & read.repeat_interleave(TILE)[: len(values)]
        yield values, above.nonzero().flatten()


def select(
    residuals: Sequence[Tensor],
    velocities: Sequence[Tensor] | None,
    maxima: Tensor,
    thresholds: Tensor,
    factor: float = 0.0,
) -> tuple[Entries, Tensor | None]:
    """Takes the elements with |v| > threshold; what stays of them is factor * v (0 if factor is 0), and u is 0.

    Returns the entries and their velocities as they were. `maxima` are those of `accumulate`; tiles whose maximum is at
    most the threshold are not read. So maxima may be too large, as they are once elements were taken, never too small.

    With factor 0 this is DGC's momentum factor masking. With factor m, and no velocities here nor in `accumulate`, it
    is SAMomentum (u <- m u + g; send where |u| > t; u <- u / m where not sent), stored as v = m u: then g is simply
    added, v <- m u is due where u was sent, and m (u / m) elsewhere is what is there already. They differ by the
    rounding of that division and product.
    """
    lengths = [residual.numel() for residual in residuals]
    if velocities is not None:
        _check_states("velocities", velocities, lengths)
    factor = float(np.float32(factor))
    counts, indices, values, saved = [], [np.zeros(0, np.uint32)], [maxima[:0]], [maxima[:0]]
    for i, (residual, where) in enumerate(_above(residuals, maxima, thresholds)):
        taken = residual[where]
        counts.append(len(where))
        indices.append(where.cpu().numpy().astype(np.uint32))
        values.append(taken)
        residual[where] = factor * taken if factor else torch.zeros_like(taken)
        if velocities is not None:
            velocity = velocities[i].view(-1)
            saved.append(velocity[where])
            velocity[where] = 0.0
    entries = Entries(np.array(counts, dtype=np.int64), np.concatenate(indices), torch.cat(values))
    return entries, None if velocities is None else torch.cat(saved)


def _by_segment(entries: Entries, num_segments: int) -> list[Tensor]:
    """The indices of each segment, on the device of the values."""
    if len(entries.counts) != num_segments or (entries.counts < 0).any():
        raise ValueError(f"counts of entries: {entries.counts.tolist()} for {num_segments} segments")
    if not int(entries.counts.sum()) == len(entries.indices) == len(entries.values):
        raise ValueError(
            f"{len(entries.indices)} indices and {len(entries.values)} values, need {int(entries.counts.sum())} of each"
        )
    indices = torch.from_numpy(entries.indices.astype(np.int64)).to(entries.values.device)
    return list(indices.split_with_sizes(entries.counts.tolist())) if num_segments else []


def _values_by_segment(entries: Entries, values: Tensor) -> list[Tensor]:
    return list(values.split_with_sizes(entries.counts.tolist())) if len(entries.counts) else []


def _check_indices(states: Sequence[Tensor], where: Sequence[Tensor]) -> None:
    for i, (state, indices) in enumerate(zip(states, where, strict=True)):
        if len(indices) and int(indices.max()) >= state.numel():
            raise ValueError(f"index {int(indices.max())} in segment {i} of {state.numel()} elements")


def restore(
    residuals: Sequence[Tensor], velocities: Sequence[Tensor] | None, entries: Entries, saved: Tensor | None
) -> None:
    """Puts entries and their velocities back where `select` took them, or as many of them as are given."""
    where = _by_segment(entries, len(residuals))
    _check_indices(residuals, where)
    todo = [(residuals, entries.values)]
    if velocities is not None:
        if saved is None or saved.shape != entries.values.shape:
            raise ValueError(f"saved velocities: need {len(entries.values)}, one for each entry")
        _check_states("velocities", velocities, [residual.numel() for residual in residuals])
        todo.append((velocities, saved))
    for states, values in todo:
        for state, indices, mine in zip(states, where, _values_by_segment(entries, values), strict=True):
            state.view(-1)[indices] = mine


def add_back(residuals: Sequence[Tensor], entries: Entries) -> None:
    """v <- v + value at each entry: keeps what a value lost when it was rounded. An index occurs once in a segment."""
    where = _by_segment(entries, len(residuals))
    _check_indices(residuals, where)
    for residual, indices, values in zip(residuals, where, _values_by_segment(entries, entries.values), strict=True):
        flat = residual.view(-1)
        flat[indices] = flat[indices] + values


def _sums(
    lengths: Sequence[int], payloads: Sequence[Entries], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]] | None:
    """Of each segment the indices in any payload and the sums there, payloads added in order to 0.

    None if indices do not increase, or are not below their segment's length.
    """
    if not payloads:
        raise ValueError("no payloads: need at least one")
    where = [_by_segment(entries, len(lengths)) for entries in payloads]
    for mine in where:
        for length, indices in zip(lengths, mine, strict=True):
            if len(indices) and (int(indices[-1]) >= length or bool((indices.diff() <= 0).any())):
                return None
    values = [_values_by_segment(entries, entries.values) for entries in payloads]

    def segments() -> Iterator[tuple[Tensor, Tensor]]:
        for i in range(len(lengths)):
            union = torch.unique(torch.cat([mine[i] for mine in where]), sorted=True).to(device)
            total = torch.zeros(len(union), dtype=torch.float32, device=device)
            for mine, mine_values in zip(where, values, strict=True):
                at = torch.searchsorted(union, mine[i])
                total[at] = total[at] + mine_values[i]
            yield union, total

    return segments()


def scatter_mean(buffer: Tensor, spans: Int64Array, payloads: Sequence[Entries], num_ranks: int) -> bool:
    """buffer = (sum over payloads, in order, from 0) * (1 / num_ranks) wherever there is an entry, rounded once.

    The rest of the buffer stays as it is. False, and nothing is written, if the indices of a segment do not increase or
    are not below its length. `num_ranks` is the number of payloads, unless these are sums already.
    """
    if num_ranks < 1:
        raise ValueError(f"mean of {num_ranks} ranks: need at least 1")
    share = float(np.float32(1) / np.float32(num_ranks))
    sums = _sums(spans[:, 1].tolist(), payloads, buffer.device)
    if sums is None:
        return False
    for source, (indices, total) in zip(spans[:, 0].tolist(), sums, strict=True):
        buffer[source + indices] = (total * share).to(buffer.dtype)
    return True


def merge(lengths: Int64Array, payloads: Sequence[Entries]) -> Entries | None:
    """The sum of payloads as entries: every index that occurs, values added in order from 0. None as `scatter_mean`."""
    sums = _sums(lengths.tolist(), payloads, payloads[0].values.device if payloads else torch.device("cpu"))
    if sums is None:
        return None
    found = list(sums)
    return Entries(
        np.array([len(indices) for indices, _ in found], dtype=np.int64),
        np.concatenate([np.zeros(0, np.int64), *(indices.cpu().numpy() for indices, _ in found)]).astype(np.uint32),
        torch.cat([payloads[0].values[:0], *(total for _, total in found)]),
    )
