"""How numbers become bytes and back: headers, frames, and the codes `two-bit`, `base3`, `levels` and dense values."""

from terngrad.codecs.envelope import Envelope
from terngrad.codecs.frame import CODES, DENSE_TYPES, Frame, Segment, Shard
from terngrad.codecs.header import HEADER_BYTES, Body, DenseType, Header

__all__ = [
    "CODES", "DENSE_TYPES", "HEADER_BYTES", "Body", "DenseType", "Envelope", "Frame", "Header", "Segment", "Shard",
]  # fmt: skip
