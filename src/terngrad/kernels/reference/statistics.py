"""Sums of spans in a fixed order.

Single-precision sums are taken in a fixed order (sixteen lanes over chunks of CHUNK elements, then pairwise in double
precision), because floating-point addition is not associative and the order is part of the result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from terngrad.kernels.layout import CHUNK, LANES, Int64Array

_STATISTICS_LANES = 2 * LANES
_BATCH = 1 << 22  # elements of equal spans taken at once, to bound scratch memory


class Statistics(NamedTuple):
    """Of each span: max |g| (float32), sum and sum of squares (float64). All NaN where an element is not finite."""

    largest: Tensor
    sum: Tensor
    squares: Tensor


def _pairwise_sum(values: Tensor) -> Tensor:
    """Sums the last dimension as a tree of adjacent pairs, an odd one out passed up."""
    while values.shape[-1] > 1:
        if values.shape[-1] % 2:
            values = torch.nn.functional.pad(values, (0, 1))
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0]


def sum_chunks(values: Tensor) -> Tensor:
    """Sums each row of a (spans, elements) float32 tensor in the defined order, giving float64."""
    spans, length = values.shape
    chunk = min(CHUNK, -(-length // _STATISTICS_LANES) * _STATISTICS_LANES)
    padded = torch.nn.functional.pad(values, (0, -length % chunk)).view(spans, -1, chunk // 16, 16)
    lanes = torch.zeros_like(padded[:, :, 0])
    for row in range(padded.shape[2]):
        lanes = lanes + padded[:, :, row]
    total = lanes.double()
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return _pairwise_sum(total[..., 0])


def statistics(buffer: Tensor, spans: Int64Array) -> Statistics:
    """max |g|, sum and sum of squares of each (source, length) span of a flat buffer."""
    device = buffer.device
    largest = torch.zeros(len(spans), dtype=torch.float32, device=device)
    total = torch.zeros(len(spans), dtype=torch.float64, device=device)
    squares = torch.zeros(len(spans), dtype=torch.float64, device=device)
    for length in np.unique(spans[:, 1][spans[:, 1] > 0]).tolist():
        same = np.flatnonzero(spans[:, 1] == length)
        for part in np.array_split(same, -(-len(same) * length // _BATCH)):
            where = torch.from_numpy(part).to(device)
            first = torch.from_numpy(spans[part, 0]).to(device)
            values = buffer[first[:, None] + torch.arange(length, device=device)].float()
            largest[where] = values.abs().amax(dim=1)
            total[where] = sum_chunks(values)
            squares[where] = sum_chunks(values * values)
    broken = ~torch.isfinite(largest)
    for result in (largest, total, squares):
        result[broken] = torch.nan
    return Statistics(largest, total, squares)
