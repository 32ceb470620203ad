"""Messages of codes that went through the entropy coder: smaller, and of a length that is not known beforehand.

    header | length of stream 0 (uint32) | length of stream 1 | ... | streams | dense values

The codes of a shard are cut into streams at what both sides know: the lengths of its runs. A large run is cut into
several, so that each has a table that fits it; small ones share one, so that tables cost little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from terngrad.codecs.envelope import Envelope
from terngrad.codecs.frame import ENTROPY, Frame, Shard
from terngrad.codecs.header import HEADER_BYTES, Header
from terngrad.errors import WireError
from terngrad.kernels import Int64Array, Run, cut_streams, entropy_bound, kernels_for, packed_bytes

SMALLEST_STREAM = 1 << 13  # symbols; a run with fewer shares a stream with the next
LENGTH_BYTES = 4
RADIX, DIGITS = 3, 5  # of a symbol, which is a byte of base3
_ZERO = 1  # the digit of a value that is not sent
# How often each digit is in each symbol.
_DIGITS_IN = np.array(
    [[(s // RADIX ** np.arange(DIGITS) % RADIX == d).sum() for d in range(RADIX)] for s in range(RADIX**DIGITS)]
)


def streams_of(sizes: Sequence[int], first: int) -> Int64Array:
    """The (first, length) of streams over consecutive runs of these many symbols, which begin at byte `first`."""
    spans = [np.empty((0, 2), dtype=np.int64)]
    waiting = 0
    for size in sizes:
        waiting += size
        if waiting >= SMALLEST_STREAM:
            spans.append(cut_streams(first, waiting))
            first, waiting = first + waiting, 0
    return np.concatenate([*spans, cut_streams(first, waiting)])


@dataclass(frozen=True)
class Coding:
    """How one shard's plain message (a row of the fixed layout) and its coded one belong together."""

    spans: Int64Array  # streams, in the plain message
    radix: int
    digits: int  # 0: stored as they are
    dense_at: int  # in the plain message
    dense_bytes: int

    @property
    def most_bytes(self) -> int:
        return HEADER_BYTES + LENGTH_BYTES * len(self.spans) + entropy_bound(self.spans) + self.dense_bytes

    def shrink(self, plain: Tensor) -> Tensor:
        """The coded message, with room for its header."""
        source = plain.cpu()
        coded = torch.empty(self.most_bytes, dtype=torch.uint8)
        at = HEADER_BYTES + LENGTH_BYTES * len(self.spans)
        lengths = self._encode(source, coded[at:])
        coded[HEADER_BYTES:at] = torch.from_numpy(lengths.astype("<u4").view(np.uint8))
        at += int(lengths.sum())
        coded[at : at + self.dense_bytes] = source[self.dense_at : self.dense_at + self.dense_bytes]
        return coded[: at + self.dense_bytes].to(plain.device)

    def _encode(self, source: Tensor, target: Tensor) -> Int64Array:
        if self.digits:
            return kernels_for(source.device).entropy_encode(source, self.spans, self.radix, self.digits, target)
        first, last = self._whole()
        target[: last - first] = source[first:last]
        lengths: Int64Array = self.spans[:, 1].copy()
        return lengths

    def _whole(self) -> tuple[int, int]:
        """From where to where the streams lie in the plain message."""
        return HEADER_BYTES, HEADER_BYTES + int(self.spans[:, 1].sum())

    def expand(self, coded: Tensor, plain: Tensor, where: str) -> None:
        """Writes the plain message, without its header, from a coded one."""
        source, target = coded.cpu(), plain.cpu()
        at = HEADER_BYTES + LENGTH_BYTES * len(self.spans)
        end = source.numel() - self.dense_bytes
        if end < at:
            raise WireError(f"{where}: {source.numel()} bytes do not hold its lengths and dense values")
        lengths = source[HEADER_BYTES:at].numpy().view("<u4").astype(np.int64)
        if int(lengths.sum()) != end - at or not self._decode(source[at:end], lengths, target):
            raise WireError(f"{where}: holds codes that no encoder writes; it was corrupted on its way")
        target[self.dense_at : self.dense_at + self.dense_bytes] = source[end:]
        if target.device != plain.device:
            plain.copy_(target)

    def _decode(self, source: Tensor, lengths: Int64Array, target: Tensor) -> bool:
        if self.digits:
            kernels = kernels_for(source.device)
            return kernels.entropy_decode(source, lengths, self.spans, self.radix, self.digits, target)
        first, last = self._whole()
        if source.numel() != last - first:
            return False
        target[first:last] = source
        return True


class EntropyFrame:
    """The layout of a bucket's coded messages, over the plain ones that they stand for. Sizes are the most."""

    def __init__(self, plain: Frame) -> None:
        self.plain = plain
        self.codes = [self._of_codes(shard) for shard in plain.shards]
        self.sums = [self._of_sums(shard) for shard in plain.shards]
        self.nbytes = max(coding.most_bytes for coding in self.codes)
        self.sum_nbytes = max(coding.most_bytes for coding in self.sums)
        self.num_shards, self.num_units, self.scalers_nbytes = plain.num_shards, plain.num_units, plain.scalers_nbytes

    @property
    def description(self) -> bytes:
        return self.plain.description

    @property
    def expected(self) -> Frame:
        """The sizes that predictions go by: of the plain messages, since how much they shrink is not known."""
        return self.plain

    def _of_codes(self, shard: Shard) -> Coding:
        sizes = [packed_bytes(run.length, self.plain.code.rows) for run in shard.runs.rows]
        spans = streams_of(sizes, HEADER_BYTES)
        return Coding(spans, RADIX, DIGITS, shard.dense_at, self.plain.dense_bytes(shard))

    def _of_sums(self, shard: Shard) -> Coding:
        plain = self.plain
        spans = streams_of([plain.sum_bytes(run.length) for run in shard.runs.rows], HEADER_BYTES)
        radix = 2 * plain.world_size + 1
        return Coding(spans, radix, plain.sum_digits, shard.sum_dense_at, plain.dense_bytes(shard))

    def write_codes(self, envelope: Envelope[Frame], sender: int, shard: int, plain: Tensor) -> Tensor:
        """A rank's coded message of a shard."""
        return _with_header(self.codes[shard].shrink(plain), lambda size: envelope.codes(sender, shard, size))

    def read_codes(self, envelope: Envelope[Frame], sender: int, shard: int, coded: Tensor, plain: Tensor) -> None:
        envelope.codes(sender, shard, coded.numel()).check(coded)
        self.codes[shard].expand(coded, plain, f"message from rank {sender}, {envelope.where}")

    def write_sums(self, envelope: Envelope[Frame], shard: int, plain: Tensor) -> Tensor:
        """The coded message of a shard's sum."""
        return _with_header(self.sums[shard].shrink(plain), lambda size: envelope.sums(shard, size))

    def read_sums(self, envelope: Envelope[Frame], shard: int, coded: Tensor, plain: Tensor) -> None:
        envelope.sums(shard, coded.numel()).check(coded)
        self.sums[shard].expand(coded, plain, f"message from rank {shard}, {envelope.where}")


def bits_of(frame: Frame, messages: Tensor, runs: Sequence[Run]) -> tuple[int, float]:
    """What the codes of these runs take in plain messages if they are coded apart from others, and Shannon's limit.

    The limit is that of independent values with the frequencies that these have; 0 where no entropy coder is at work.
    """
    if frame.codec != ENTROPY:
        return 8 * sum(packed_bytes(run.length, frame.code.rows) for run in runs), 0.0
    plain = messages.cpu()
    spans = np.concatenate([cut_streams(run.packed, packed_bytes(run.length, frame.code.rows)) for run in runs])
    scratch = torch.empty(entropy_bound(spans), dtype=torch.uint8)
    lengths = kernels_for(plain.device).entropy_encode(plain, spans, RADIX, DIGITS, scratch)
    counts = np.zeros(RADIX)
    for first, length in spans.tolist():
        counts += np.bincount(plain[first : first + length].numpy(), minlength=len(_DIGITS_IN)) @ _DIGITS_IN
    numel = sum(run.length for run in runs)
    counts[_ZERO] -= counts.sum() - numel  # the padding of the last groups
    present = counts[counts > 0]
    return 8 * int(lengths.sum() + LENGTH_BYTES * len(spans)), float(-(present * np.log2(present / numel)).sum())


def _with_header(message: Tensor, header: Callable[[int], Header]) -> Tensor:
    header(message.numel()).write(message)
    return message
