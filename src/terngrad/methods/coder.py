"""A method at work: the state it keeps per parameter, and one bucket's way to messages and back.

Nothing here depends on how the messages travel. State belongs to parameters; what is cached per bucket is layout only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from terngrad.codecs import HEADER_BYTES, Envelope, Frame, Segment
from terngrad.kernels import Code, draw_keys, kernels_for
from terngrad.methods.base import Method, ParameterInfo
from terngrad.methods.sums import add_shard, are_codes, bad_codes, mean_into
from terngrad.methods.terngrad import TernGrad


@dataclass
class Measured:
    """What the codes of one parameter lost, added up over the measured steps."""

    num_steps: int = 0
    scaler: float = 0.0  # the mean over the parameter's blocks
    num_elements: int = 0
    num_nonzero: int = 0
    squared_error: float = 0.0
    squared_norm: float = 0.0

    def __add__(self, other: Measured) -> Measured:
        return Measured(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Measured) -> Measured:
        return Measured(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Coder:
    """One rank's state of a method, over all buckets."""

    method: Method
    parameters: Sequence[ParameterInfo]
    rank: int
    world_size: int
    seed: int
    residuals: dict[int, Tensor] = field(default_factory=dict)  # by parameter index
    next_residuals: dict[int, Tensor | None] = field(default_factory=dict)  # as they will be, if the step is not void
    is_void: bool = False  # an average of this step is not finite, so its gradients will not be used
    measured: dict[int, Measured] = field(default_factory=dict)
    draining: bool = False
    _taken: dict[int, Measured] = field(default_factory=dict)  # `measured` as it was when last taken
    _frames: dict[object, Frame] = field(default_factory=dict)

    def set_method(self, method: Method) -> None:
        """Changes the method between two steps. Residuals stay, and are sent by the first step that keeps none."""
        self.method = method
        self._frames.clear()

    def frame(self, segments: tuple[Segment, ...], dtype: torch.dtype, all_dense: bool, num_shards: int) -> Frame:
        """The layout of a bucket's messages; made once for each bucket and kind of step."""
        key = (segments, dtype, all_dense, num_shards)
        if key not in self._frames:
            method = self.method
            dense = [all_dense or method.sends_dense(self.parameters[segment.index]) for segment in segments]
            self._frames[key] = Frame(
                [segment for segment, stays in zip(segments, dense, strict=True) if not stays],
                [segment for segment, stays in zip(segments, dense, strict=True) if stays],
                code=method.code if isinstance(method, TernGrad) else Code.BASE3,
                block=method.block if isinstance(method, TernGrad) else 0,
                dense_type=method.dense_type(dtype),
                num_shards=num_shards,
                world_size=self.world_size,
            )
        return self._frames[key]

    def is_dense_step(self, step: int, epoch: int) -> bool:
        """Whether all of a bucket is sent dense in this step."""
        return self.draining or self.method.is_dense_step(step, epoch)

    def take_measured(self) -> dict[int, Measured]:
        """What was measured since the last call."""
        now = dict(self.measured)
        found = {index: measured - self._taken.get(index, Measured()) for index, measured in now.items()}
        self._taken = now
        return {index: measured for index, measured in found.items() if measured.num_steps}

    @property
    def keeps_residuals(self) -> bool:
        """Whether anything is or will be held back."""
        return bool(self.residuals) or (isinstance(self.method, TernGrad) and self.method.error_feedback)

    def note_average(self, values: Tensor) -> None:
        """Finds a step void if an average is not finite; only those who keep residuals need to know."""
        if self.keeps_residuals:
            self.is_void |= not bool(torch.isfinite(values).all())

    def end_step(self) -> None:
        """After the last bucket: takes over the new residuals, or keeps the old ones if an average was not finite."""
        if not self.is_void:
            for index, residual in self.next_residuals.items():
                if residual is None:
                    self.residuals.pop(index, None)
                else:
                    self.residuals[index] = residual
        self.next_residuals.clear()
        self.draining = self.draining and self.is_void  # a void step has sent nothing
        self.is_void = False


class BucketCode:
    """One bucket of one step, from gradient to messages and from messages to average.

    The buffer is this object's until the average is written to it.
    The order of calls is: scalers_message, take_scalers (both only where `frame.num_units`), encode, then either decode
    (one shard) or sum_shard and decode_sums (one shard per rank).
    """

    def __init__(self, coder: Coder, frame: Frame, buffer: Tensor, bucket: int, step: int) -> None:
        self.coder = coder
        self.frame = frame
        self.buffer = buffer
        self.envelope = Envelope(frame, bucket, step)
        self._kernels = kernels_for(buffer.device)
        self._add_residuals()

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
        frame = self.frame
        for i, shard in enumerate(frame.shards):
            self.envelope.codes(self.coder.rank, i).write(messages[i])
            part = frame.dense_part(messages[i], shard)
            for span in shard.dense:
                part[span.target : span.target + span.numel] = self.buffer[span.source : span.source + span.numel]
        if frame.ternary:
            method = self._ternary_method()
            keys = draw_keys(self.coder.seed, self.envelope.step, self.coder.rank, frame.indices)[frame.run_segments]
            steps = self._own_scale * 2.0**-24
            self._kernels.ternarize(self.buffer, frame.runs, keys, self._limit, steps, frame.code, messages.view(-1))
            if method.error_feedback:
                self._keep_residuals(messages.view(-1))

    def measure(self, messages: Tensor) -> None:
        """Adds what this step's codes lost to the coder's measurements. Between encode and decode."""
        frame = self.frame
        if not frame.ternary:
            return
        nonzero, squared, _ = self._kernels.error(
            self.buffer, frame.runs, messages.view(-1), self._own_scale, frame.code
        )
        for position, segment in enumerate(frame.ternary):
            runs = torch.from_numpy(np.flatnonzero(frame.run_segments == position)).to(nonzero.device)
            norm = float(self._statistics.squares[frame.units[position]].sum())
            if not np.isfinite(norm):
                continue
            found = Measured(
                num_steps=1,
                scaler=float(self._own_scale[frame.units[position]].mean()),
                num_elements=segment.numel,
                num_nonzero=int(nonzero[runs].sum()),
                squared_error=float(squared[runs].sum()),
                squared_norm=norm,
            )
            self.coder.measured[segment.index] = self.coder.measured.get(segment.index, Measured()) + found

    # Decoding

    def decode(self, messages: Tensor) -> None:
        """Writes the average of all ranks' messages, a row each, to the bucket."""
        for rank, message in enumerate(messages):
            self.envelope.codes(rank, 0).check(message)
        payloads = list(messages)
        frame = self.frame
        if frame.ternary:
            if self._ternary_method().shared:
                scale = self._scale / self.coder.world_size
                good = self._kernels.mean_shared(self.buffer, frame.runs, payloads, scale, frame.code)
            else:
                good = self._kernels.mean_own(self.buffer, frame.runs, payloads, self._scale, frame.code)
            if not good:
                raise bad_codes(self.envelope, [are_codes(frame, frame.runs, payload) for payload in payloads])
        self._write_dense_mean(payloads)
        self.settle_residuals()

    def sum_shard(self, messages: Tensor, target: Tensor) -> None:
        """Adds up all ranks' messages of this rank's shard and writes the message of the sum."""
        add_shard(self.envelope, self.coder.rank, messages, target)

    def decode_sums(self, messages: Tensor) -> None:
        """Writes the average from the messages of all shards' sums, a row each, to the bucket."""
        frame = self.frame
        for number, message in enumerate(messages):
            self.envelope.sums(number).check(message)
        if frame.ternary:
            scale = self._scale / self.coder.world_size
            mean_levels = partial(self._kernels.mean_levels, num_payloads=self.coder.world_size, scale=scale)
            if not mean_levels(self.buffer, frame.runs, levels=messages.view(-1)):
                scratch = torch.empty_like(self.buffer)
                good = [
                    mean_levels(scratch, shard.runs, levels=message)
                    for shard, message in zip(frame.shards, messages, strict=True)
                ]
                raise bad_codes(self.envelope, good)
        for message, shard in zip(messages, frame.shards, strict=True):
            values = frame.dense_part(message, shard, sums=True)
            for span in shard.dense:
                self.buffer[span.source : span.source + span.numel] = values[span.target : span.target + span.numel]
        self.settle_residuals()

    # Parts

    def _ternary_method(self) -> TernGrad:
        assert isinstance(self.coder.method, TernGrad)  # only its frames have ternary segments
        return self.coder.method

    def _set_scale(self, scale: Tensor) -> None:
        self._scale = scale
        self._own_scale = scale if self._ternary_method().shared else scale[self.coder.rank]

    def _write_dense_mean(self, payloads: Sequence[Tensor]) -> None:
        parts = [self.frame.dense_part(payload, self.frame.shards[0]) for payload in payloads]
        for span in self.frame.shards[0].dense:
            where = slice(span.target, span.target + span.numel)
            mean_into(self.buffer[span.source : span.source + span.numel], [part[where] for part in parts])

    # Residuals: what was not sent, added to the next gradient

    def _view(self, segment: Segment) -> Tensor:
        return self.buffer[segment.source : segment.source + segment.numel]

    def _add_residuals(self) -> None:
        for segment in (*self.frame.ternary, *self.frame.dense):
            if segment.index in self.coder.residuals:
                self._view(segment).add_(self.coder.residuals[segment.index])

    def _keep_residuals(self, messages: Tensor) -> None:
        """The next residual is the gradient less what this rank's codes say."""
        sent = torch.zeros_like(self.buffer)
        self._kernels.mean_shared(sent, self.frame.runs, [messages], self._own_scale, self.frame.code)
        for segment in self.frame.ternary:
            kept = self._view(segment) - sent[segment.source : segment.source + segment.numel]
            self.coder.next_residuals[segment.index] = kept

    def settle_residuals(self) -> None:
        """What was added to this gradient and not kept again is sent; void is the step if the average, which the buffer
        holds now, is not finite. Decoding ends with it.
        """
        coder = self.coder
        for segment in (*self.frame.ternary, *self.frame.dense):
            if segment.index in coder.residuals:
                coder.next_residuals.setdefault(segment.index, None)
        coder.note_average(self.buffer)
