"""Palettes: the few different values of a segment, and for each value which of them it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from terngrad.kernels.layout import FloatArray, Int64Array, Uint16Array

MOST_RANKS = 2**16 - 1  # so that the size of a palette has two bytes, and 0 is left for none


class Palettes(NamedTuple):
    """Values of segments, of which each has few different ones: `sizes` says how many, 0 where they are too many.

    `table` has them segment by segment, the most frequent first, and of equally frequent ones that with the smaller
    bits; or all values of the segment. `ranks` has the place of each value among them, where they are few.
    """

    sizes: Uint16Array
    table: FloatArray
    ranks: Uint16Array


def palettes(values: FloatArray, counts: Int64Array) -> Palettes:
    """Of the values of segments, so many each; they are told apart by their bits.

    They are few if each occurs twice in the mean, and there are no more than 2^16 - 1.
    """
    if (counts < 0).any() or int(counts.sum()) != len(values):
        raise ValueError(f"{len(values)} values for counts of {counts.tolist()}")
    sizes = np.zeros(len(counts), np.uint16)
    table, ranks = [np.empty(0, np.uint32)], [np.empty(0, np.uint16)]
    ends = np.cumsum(counts)
    for i, mine in enumerate(np.split(values.view(np.uint32), ends[:-1]) if len(counts) else []):
        different, place, times = np.unique(mine, return_inverse=True, return_counts=True)
        if not 0 < len(different) <= min(MOST_RANKS, len(mine) // 2):
            table.append(mine)
            continue
        order = np.argsort(-times, kind="stable")
        rank = np.empty(len(order), np.uint16)
        rank[order] = np.arange(len(order))
        sizes[i] = len(different)
        table.append(different[order])
        ranks.append(rank[place])
    return Palettes(sizes, np.concatenate(table).view(np.float32), np.concatenate(ranks))
