"""One bucket of one step: its way to messages of a fixed size and back. Nothing here depends on how they travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from terngrad.codecs import HEADER_BYTES, EntropyFrame, Envelope, Frame, Segment, bits_of
from terngrad.kernels import Runs, draw_keys, kernels_for
from terngrad.methods.coder import Coder, Measured
from terngrad.methods.sums import add_coded, add_shard, are_codes, bad_codes, write_dense, write_dense_mean
from terngrad.methods.terngrad import TernGrad


class BucketCode:
    """One bucket of one step, from gradient to messages and from messages to average.

    The buffer is this object's until the average is written to it.
    The order of calls is: scalers_message, take_scalers (both only where `frame.num_units`), then either encode_shard
    and decode for each shard in turn, or encode, sum_shard and decode_sums (one shard per rank).
    """

    def __init__(self, coder: Coder, frame: Frame, buffer: Tensor, bucket: int, step: int) -> None:
        self.coder = coder
        self.frame = frame
        self.buffer = buffer
        self.envelope = Envelope(frame, bucket, step)
        self._kernels = kernels_for(buffer.device)
        self._add_residuals()

    @property
    def varies(self) -> Literal[False]:
        """Whether its messages have no size that all ranks know."""
        return False

    @property
    def sizes(self) -> Frame:
        return self.frame

    @property
    def scaled(self) -> BucketCode | None:
        """What shares its scalers with the other ranks before anything is encoded."""
        return self if self.frame.num_units else None

    @property
    def label(self) -> tuple[int, int]:
        """Its step and number in the step."""
        return self.envelope.step, self.envelope.bucket

    # Encoding

    def scalers_message(self, message: Tensor) -> None:
        """Takes the statistics and writes this rank's scalers, one for each unit."""
        method = self._ternary_method()
        self._statistics = self._kernels.statistics(self.buffer, self.frame.spans)
        counts = torch.from_numpy(self.frame.spans[:, 1]).to(self.buffer.device, torch.float64)
        self._limit = method.limits(self._statistics, counts)
        self.envelope.scalers(self.coder.rank).write(message)
        message[HEADER_BYTES:] = self._limit.view(torch.uint8)

    def take_scalers(self, messages: Tensor) -> None:
        """Reads all ranks' scalers: their maximum, or each rank's own. Not finite on one rank is so on all."""
        for rank, message in enumerate(messages):
            self.envelope.scalers(rank).check(message)
        scalers = messages[:, HEADER_BYTES:].contiguous().view(torch.float32)
        self._set_scale(scalers.amax(dim=0) if self._ternary_method().shared else scalers)

    def take_scalers_of(self, other: BucketCode) -> None:
        """What take_scalers gives, from another rank's code of the same bucket in this process."""
        self._set_scale(other._scale)

    def encode(self, messages: Tensor) -> None:
        """Writes the messages of all shards, a row each."""
        for shard, message in enumerate(messages):
            self._write_plain(shard, message)
        self._write_codes(self.frame.runs, messages.view(-1))

    def encode_shard(self, shard: int, message: Tensor) -> None:
        """Writes the message of one shard."""
        self._write_plain(shard, message)
        self._write_codes(self.frame.shards[shard].runs, message)

    def _write_plain(self, number: int, message: Tensor) -> None:
        """Header and dense values."""
        shard = self.frame.shards[number]
        self.envelope.codes(self.coder.rank, number).write(message)
        part = self.frame.dense_part(message, shard)
        for span in shard.dense:
            part[span.target : span.target + span.numel] = self.buffer[span.source : span.source + span.numel]

    def _write_codes(self, runs: Runs, messages: Tensor) -> None:
        self._runs, self._messages = runs, messages
        frame = self.frame
        if not frame.ternary:
            return
        keys = draw_keys(self.coder.seed, self.envelope.step, self.coder.rank, frame.indices)[frame.segments_of(runs)]
        steps = self._own_scale * 2.0**-24
        self._kernels.ternarize(self.buffer, runs, keys, self._limit, steps, frame.code, messages)
        if self._ternary_method().error_feedback:
            self._keep_residuals()

    def measure(self) -> None:
        """Adds what the codes lost and took that were written last to the coder's measurements. Right after that."""
        frame, rows = self.frame, self._runs.rows
        if not frame.ternary:
            return
        nonzero, squared, _ = self._kernels.error(self.buffer, self._runs, self._messages, self._own_scale, frame.code)
        segments = frame.segments_of(self._runs)
        for position in np.unique(segments).tolist():
            numbers = np.flatnonzero(segments == position)
            chosen = torch.from_numpy(numbers).to(nonzero.device)
            norm = float(self._statistics.squares[frame.units[position]].sum())
            if not np.isfinite(norm):
                continue
            num_bits, least_bits = bits_of(frame, self._messages, [rows[i] for i in numbers])
            begins = rows[numbers[0]].offset == 0  # what is of the whole parameter counts with its first part
            found = Measured(
                num_steps=int(begins),
                scaler=begins * float(self._own_scale[frame.units[position]].mean()),
                num_elements=sum(rows[i].length for i in numbers),
                num_nonzero=int(nonzero[chosen].sum()),
                squared_error=float(squared[chosen].sum()),
                squared_norm=begins * norm,
                num_bits=num_bits,
                least_bits=least_bits,
            )
            self.coder.add_measured(frame.ternary[position].index, found)

    # Decoding

    def decode(self, messages: Tensor, shard: int = 0) -> None:
        """Writes the average of all ranks' messages of a shard, a row each, to the bucket. Shards come in order."""
        for rank, message in enumerate(messages):
            self.envelope.codes(rank, shard).check(message)
        self.read(list(messages), shard)

    def read(self, payloads: Sequence[Tensor], shard: int) -> None:
        """As decode, without looking at headers."""
        frame = self.frame
        part = frame.shards[shard]
        if frame.ternary:
            if self._ternary_method().shared:
                scale = self._scale / self.coder.world_size
                good = self._kernels.mean_shared(self.buffer, part.runs, payloads, scale, frame.code)
            else:
                good = self._kernels.mean_own(self.buffer, part.runs, payloads, self._scale, frame.code)
            if not good:
                raise bad_codes(self.envelope, [are_codes(frame, part.runs, payload) for payload in payloads])
        write_dense_mean(self.buffer, part.dense, [frame.dense_part(payload, part) for payload in payloads])
        if shard == frame.num_shards - 1:
            self.settle_residuals()

    def sum_shard(self, messages: Tensor, target: Tensor) -> None:
        """Adds up all ranks' messages of this rank's shard and writes the message of the sum."""
        add_shard(self.envelope, self.coder.rank, messages, target)

    def decode_sums(self, messages: Tensor) -> None:
        """Writes the average from the messages of all shards' sums, a row each, to the bucket."""
        for number, message in enumerate(messages):
            self.envelope.sums(number).check(message)
        self.read_sums(messages)

    def read_sums(self, messages: Tensor) -> None:
        """As decode_sums, without looking at headers."""
        frame = self.frame
        if frame.ternary and not self._mean_of_sums(self.buffer, frame.runs, messages.view(-1)):
            scratch = torch.empty_like(self.buffer)
            good = [
                self._mean_of_sums(scratch, shard.runs, message)
                for shard, message in zip(frame.shards, messages, strict=True)
            ]
            raise bad_codes(self.envelope, good)
        for message, shard in zip(messages, frame.shards, strict=True):
            write_dense(self.buffer, shard.dense, frame.dense_part(message, shard, sums=True))
        self.settle_residuals()

    # Parts

    def _ternary_method(self) -> TernGrad:
        assert isinstance(self.coder.method, TernGrad)  # only its frames have ternary segments
        return self.coder.method

    def _set_scale(self, scale: Tensor) -> None:
        self._scale = scale
        self._own_scale = scale if self._ternary_method().shared else scale[self.coder.rank]

    def _mean_of_sums(self, target: Tensor, runs: Runs, sums: Tensor) -> bool:
        world_size = self.coder.world_size
        mean = self._kernels.mean_symbols if self.frame.sum_digits else self._kernels.mean_levels
        return mean(target, runs, sums, world_size, self._scale / world_size)

    # Residuals: what was not sent, added to the next gradient

    def _view(self, segment: Segment) -> Tensor:
        return self.buffer[segment.source : segment.source + segment.numel]

    def _add_residuals(self) -> None:
        for segment in (*self.frame.ternary, *self.frame.dense):
            held = self.coder.residuals.get(segment.index)
            if held is not None and self.coder.waits(segment, self.buffer):
                self.coder.next_residuals[segment.index] = held
            elif held is not None:
                self._view(segment).add_(held)

    def _keep_residuals(self) -> None:
        """The next residual is the gradient less what this rank's codes say."""
        sent = torch.zeros_like(self.buffer)
        self._kernels.mean_shared(sent, self.frame.runs, [self._messages], self._own_scale, self.frame.code)
        for segment in self.frame.ternary:
            kept = self._view(segment) - sent[segment.source : segment.source + segment.numel]
            self.coder.next_residuals.setdefault(segment.index, kept)  # of those that wait it is there already

    def settle_residuals(self) -> None:
        """What was added to this gradient and not kept again is sent; void is the step if the average, which the buffer
        holds now, is not finite. Decoding ends with it.
        """
        self._note_sent()
        self.coder.note_average(self.buffer)

    def settle_as(self, other: BucketCode) -> None:
        """What decoding would do, from a bucket in this process that has decoded."""
        self._note_sent()
        self.coder.is_void |= other.coder.is_void

    def _note_sent(self) -> None:
        for segment in (*self.frame.ternary, *self.frame.dense):
            if segment.index in self.coder.residuals:
                self.coder.next_residuals.setdefault(segment.index, None)


class EntropyBucket:
    """A bucket whose messages go through the entropy coder. What it averages is the same, bit for bit."""

    def __init__(self, code: BucketCode, frame: EntropyFrame) -> None:
        self.plain = code
        self.frame = frame
        self.coder, self.buffer = code.coder, code.buffer
        self._own: dict[int, Tensor] = {}  # plain messages by shard, which need no decoding

    @property
    def varies(self) -> Literal[True]:
        """Whether its messages have no size that all ranks know."""
        return True

    @property
    def sizes(self) -> EntropyFrame:
        return self.frame

    @property
    def scaled(self) -> BucketCode | None:
        """What shares its scalers with the other ranks before anything is encoded."""
        return self.plain.scaled

    @property
    def label(self) -> tuple[int, int]:
        """Its step and number in the step."""
        return self.plain.label

    def measure(self) -> None:
        self.plain.measure()

    def settle_as(self, other: EntropyBucket) -> None:
        self.plain.settle_as(other.plain)

    def pack(self) -> list[Tensor]:
        """This rank's messages, one for each shard."""
        rows = self._rows(len(self.frame.codes), self.frame.plain.nbytes)
        self.plain.encode(rows)
        self._own = dict(enumerate(rows))
        return [self.frame.write_codes(self.plain.envelope, self.coder.rank, i, row) for i, row in enumerate(rows)]

    def pack_shard(self, shard: int) -> Tensor:
        """One of them alone."""
        (row,) = self._rows(1, self.frame.plain.nbytes)
        self.plain.encode_shard(shard, row)
        self._own[shard] = row
        return self.frame.write_codes(self.plain.envelope, self.coder.rank, shard, row)

    def unpack(self, messages: Sequence[Tensor], shard: int = 0) -> None:
        """Writes the average of all ranks' messages of a shard to the bucket. Shards come in order."""
        rows = list(self._rows(len(messages), self.frame.plain.nbytes))
        for rank, (message, row) in enumerate(zip(messages, rows, strict=True)):
            if rank == self.coder.rank and shard in self._own:
                rows[rank] = self._own.pop(shard)
            else:
                self.frame.read_codes(self.plain.envelope, rank, shard, message, row)
        self.plain.read(rows, shard)

    def add(self, messages: Sequence[Tensor]) -> Tensor:
        """The message of the sum of all ranks' messages of this rank's shard."""
        return add_coded(self.plain.envelope, self.frame, self.coder.rank, messages)

    def unpack_sums(self, messages: Sequence[Tensor]) -> None:
        """Writes the average from the messages of all shards' sums to the bucket."""
        rows = self._rows(len(messages), self.frame.plain.sum_nbytes)
        for shard, (message, row) in enumerate(zip(messages, rows, strict=True)):
            self.frame.read_sums(self.plain.envelope, shard, message, row)
        self.plain.read_sums(rows)

    def _rows(self, count: int, num_bytes: int) -> Tensor:
        return torch.empty(count, num_bytes, dtype=torch.uint8, device=self.buffer.device)
