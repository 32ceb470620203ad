"""Where parameters lie in DDP's buckets, which it may build anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from terngrad.codecs import Segment
from terngrad.ddp.scratch import Scratch


class Layouts:
    """The segments of each bucket."""

    def __init__(self, parameters: Mapping[str, Tensor], scratch: Sequence[Scratch]) -> None:
        self._index = {id(p): i for i, p in enumerate(parameters.values())}
        self._scratch = scratch  # of messages of the buckets
        self._segments: dict[tuple[int, ...], tuple[Segment, ...]] = {}

    def indices(self, parameters: Sequence[Tensor]) -> tuple[int, ...]:
        """Those of a bucket's parameters."""
        return tuple(self._index[id(p)] for p in parameters)

    def segments(self, parameters: Sequence[Tensor], number: int) -> tuple[Segment, ...]:
        """Of the bucket with this number in the step."""
        key = self.indices(parameters)
        if key not in self._segments:
            if number == 0:  # buckets built anew: the old ones' layouts and buffers are of no more use
                self._segments.clear()
                for scratch in self._scratch:
                    scratch.clear()
            found = []
            source = 0
            for index, parameter in zip(key, parameters, strict=True):
                found.append(Segment(index, source, parameter.numel()))
                source += parameter.numel()
            self._segments[key] = tuple(found)
        return self._segments[key]
