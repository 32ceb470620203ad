"""The 52 bytes in front of every message, and their check.

Sizes are fixed by what all ranks agreed on, so the receiver knows every field before the message arrives; a header that
differs in any bit is refused, and the error says which field it was. docs/wire-formats.md has the layout.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from terngrad.errors import WireError

MAGIC = b"TGRD"
VERSION = 1
_FIELDS = struct.Struct("<4sBBBBHHIQQQQ")
HEADER_BYTES = _FIELDS.size + 4  # and a CRC-32 of the fields


class Body(IntEnum):
    """What the coded part of a message is."""

    SCALERS = 1
    TWO_BIT = 2
    BASE3 = 3
    LEVELS = 4
    DENSE = 5
    ENTROPY = 6
    ENTROPY_SUMS = 7
    SPARSE = 8
    SPARSE_SUMS = 9


class DenseType(IntEnum):
    """The element type of the dense part; NONE where there is none."""

    NONE = 0
    FP32 = 1
    FP16 = 2
    BF16 = 3


@dataclass(frozen=True)
class Header:
    """Who sent what: every field is known to the receiver beforehand."""

    body: Body
    dense_type: DenseType
    sender: int
    shard: int
    bucket: int
    step: int
    num_coded: int
    num_dense: int
    num_bytes: int  # of the whole message

    def pack(self) -> bytes:
        fields = _FIELDS.pack(
            MAGIC, VERSION, self.body, self.dense_type, 0, self.sender, self.shard, self.bucket, self.step,
            self.num_coded, self.num_dense, self.num_bytes,
        )  # fmt: skip
        return fields + struct.pack("<I", zlib.crc32(fields))

    def write(self, message: Tensor) -> None:
        message[:HEADER_BYTES] = torch.frombuffer(bytearray(self.pack()), dtype=torch.uint8)

    def check(self, message: Tensor) -> None:
        """Raises WireError unless `message` is as long as this header says and starts with exactly this header."""
        where = f"message from rank {self.sender}, step {self.step}, bucket {self.bucket}"
        if message.numel() != self.num_bytes or message.numel() < HEADER_BYTES:
            raise WireError(f"{where}: {message.numel()} bytes long, need {max(self.num_bytes, HEADER_BYTES)}")
        got = bytes(message[:HEADER_BYTES].tolist())
        if got != self.pack():
            raise WireError(f"{where}: {self._difference(got)}")

    def _difference(self, got: bytes) -> str:
        """In words, how `got` differs from this header."""
        fields = _FIELDS.unpack(got[:-4])
        if fields[0] != MAGIC:
            return f"starts with {fields[0]!r}, not {MAGIC!r}: this is no terngrad message"
        if struct.unpack("<I", got[-4:])[0] != zlib.crc32(got[:-4]):
            return "its header is corrupt (checksum)"
        if fields[1] != VERSION:
            return f"wire version {fields[1]}, need {VERSION}: run the same terngrad on every rank"
        values = (*fields[2:4], *fields[5:])
        names = [field.name for field in dataclasses.fields(self)]
        differing = [
            f"{name} is {value}, need {int(getattr(self, name))}"
            for name, value in zip(names, values, strict=True)
            if value != getattr(self, name)
        ]
        return ", ".join(differing) or "a reserved byte of its header is set"
