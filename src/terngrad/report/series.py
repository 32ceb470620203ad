"""Fewer points than were logged, without hiding what was: extremes and gaps stay."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from terngrad.report.records import Point


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """At most about `limit` points: of each stretch the first, the lowest, the highest and the first that is a gap."""
    if len(points) <= limit:
        return list(points)
    num_stretches = max(1, limit // 4)
    bounds = [len(points) * index // num_stretches for index in range(num_stretches + 1)]
    kept = {0, len(points) - 1}
    for begin, end in itertools.pairwise(bounds):
        finite = [index for index in range(begin, end) if points[index].finite()]
        kept.add(begin)
        kept.update(sorted(set(range(begin, end)) - set(finite))[:1])
        if finite:
            kept.add(min(finite, key=lambda index: points[index].value))
            kept.add(max(finite, key=lambda index: points[index].value))
    return [points[index] for index in sorted(kept)]


def running_mean(points: Sequence[Point], width: int) -> list[Point]:
    """Each value replaced by the mean of the `width` finite ones around it; fewer at the ends. Gaps stay gaps.

    At the start, where losses fall steeply, no later values than earlier ones are taken in: the first stays as it is.
    """
    finite = [point for point in points if point.finite()]
    sums = [0.0, *itertools.accumulate(point.value for point in finite)]
    smooth, rank = [], 0
    for point in points:
        if not point.finite():
            smooth.append(point)
            continue
        before = min(width // 2, rank)
        after = min(before, len(finite) - 1 - rank)
        total = sums[rank + after + 1] - sums[rank - before]
        smooth.append(point._replace(value=total / (before + 1 + after)))
        rank += 1
    return smooth
