"""How numbers become bytes and back: headers, layouts, and codes: `two-bit`, `base3`, `entropy`, `levels`, `sparse`."""

from terngrad.codecs.entropy import EntropyFrame, bits_of
from terngrad.codecs.envelope import Envelope
from terngrad.codecs.frame import CODES, Frame, Shard
from terngrad.codecs.header import HEADER_BYTES, Body, DenseType, Header
from terngrad.codecs.layouts import AnyFrame, coded, read_description
from terngrad.codecs.segments import DENSE_TYPES, DenseSpan, Segment
from terngrad.codecs.sparse import (
    Picks,
    SparseFrame,
    SparseShard,
    as_read,
    dense_values,
    read_picks,
    whole_message,
    write_picks,
)
from terngrad.codecs.sparse_values import SIGN
from terngrad.codecs.sparse_values import VALUES as SPARSE_VALUES

__all__ = [
    "CODES", "DENSE_TYPES", "HEADER_BYTES", "SIGN", "SPARSE_VALUES", "AnyFrame", "Body", "DenseSpan", "DenseType",
    "EntropyFrame", "Envelope", "Frame", "Header", "Picks", "Segment", "Shard", "SparseFrame", "SparseShard", "as_read",
    "bits_of", "coded", "dense_values", "read_description", "read_picks", "whole_message", "write_picks",
]  # fmt: skip
