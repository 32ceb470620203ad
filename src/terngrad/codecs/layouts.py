"""A bucket's layout from its description, whatever kind it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from terngrad.codecs.entropy import EntropyFrame
from terngrad.codecs.frame import ENTROPY, Frame
from terngrad.codecs.segments import DENSE_TYPES, Segment
from terngrad.codecs.sparse import SparseFrame
from terngrad.errors import WireError

AnyFrame = Frame | EntropyFrame | SparseFrame


def coded(frame: Frame) -> Frame | EntropyFrame:
    """The layout of what is sent: of coded messages, where there are codes to shrink."""
    return EntropyFrame(frame) if frame.codec == ENTROPY and frame.ternary else frame


_KINDS: dict[str, Callable[..., AnyFrame]] = {
    "ternary": lambda **fields: coded(Frame(**fields)),
    "sparse": SparseFrame,
}


def read_description(description: bytes) -> AnyFrame:
    """The frame that was described; WireError if this is no description."""
    try:
        found: dict[str, Any] = json.loads(description)
        kind = found.pop("kind")
        for key in ("dense", "ternary", "sparse"):
            if key in found:
                found[key] = [Segment(*segment) for segment in found[key]]
        found["dense_type"] = DENSE_TYPES[found["dense_type"]]
        return _KINDS[kind](**found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(
            f"the description of a bucket cannot be read ({error!r}); it was corrupted on its way"
        ) from error
