"""One bucket of a sparse method in one step: accumulate, choose, write; read, add up, scatter.

The state of a parameter changes when its bucket is accumulated, so that no second copy of it is needed. If an average
of the step turns out not to be finite, which makes the step void, what was chosen is put back; elements of a gradient
that are not finite are never accumulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from terngrad.codecs import (
    Envelope,
    Picks,
    Segment,
    SparseFrame,
    SparseShard,
    as_read,
    dense_values,
    read_picks,
    whole_message,
    write_picks,
)
from terngrad.errors import WireError
from terngrad.kernels import Entries, Int64Array, Statistics, kernels_for, num_tiles
from terngrad.methods.coder import Coder, Measured, Momentum
from terngrad.methods.sparse import MASKING, NONE, SAM, UPFRONT, Sparse, View
from terngrad.methods.sparse_sums import add_sparse, entries_of, picks_of
from terngrad.methods.sums import write_dense, write_dense_mean


class SparseBucket:
    """Its messages are as long as what was chosen makes them.

    The order of calls is: pack, then either unpack (one shard) or add and unpack_sums (one shard per rank).
    """

    def __init__(self, coder: Coder, frame: SparseFrame, buffer: Tensor, bucket: int, step: int) -> None:
        self.coder = coder
        self.frame = frame
        self.buffer = buffer
        self.envelope = Envelope(frame, bucket, step)
        assert isinstance(coder.method, Sparse)  # only its frames are sparse
        self._method = coder.method
        self._kernels = kernels_for(buffer.device)
        self._might_overflow = False
        self._limits = np.empty(0, np.float32)
        self._spans: Int64Array = np.array([(s.source, s.numel) for s in frame.sparse], dtype=np.int64).reshape(-1, 2)

    @property
    def varies(self) -> Literal[True]:
        """Whether its messages have no size that all ranks know."""
        return True

    @property
    def sizes(self) -> SparseFrame:
        return self.frame

    @property
    def scaled(self) -> None:
        """Thresholds are each rank's own: there is nothing to share before encoding."""
        return

    @property
    def label(self) -> tuple[int, int]:
        """Its step and number in the step."""
        return self.envelope.step, self.envelope.bucket

    # Writing

    def pack(self) -> list[Tensor]:
        """Accumulates the gradient and writes this rank's messages, one for each shard."""
        frame = self.frame
        self._clip_dense()
        self._add_residuals_of_dense()
        picks = self._choose() if frame.sparse else Picks(np.empty(0, np.int64), np.empty(0, np.float32))
        sent = as_read(frame, picks, self._limits)
        messages = []
        for number, shard in enumerate(frame.shards):
            body = write_picks(frame, shard, frame.values, sent.between(shard.first, shard.last))
            dense = [self.buffer[span.source : span.source + span.numel] for span in shard.dense]
            header = partial(self.envelope.codes, self.coder.rank, number)
            messages.append(whole_message(frame, shard, body, dense, header, self.buffer.device))
        if frame.sparse and not self._method.accumulation and not frame.whole:
            self._forget()
            self.coder.undo.append(self._forget)
        elif frame.sparse and frame.values != "fp32":
            self._keep_rounding(picks, sent)
        return messages

    def pack_shard(self, shard: int) -> Tensor:
        """The message of a bucket that is not cut, as a sparse one never is for all-gather."""
        return self.pack()[shard]

    def _forget(self) -> None:
        """Drops what was not sent."""
        for residual in self._residuals:
            residual.zero_()

    def _clip_dense(self) -> None:
        """Parameters that are sent whole are clipped as the others are."""
        if not self._method.clip_norm or not self.frame.dense:
            return
        spans = np.array([(s.source, s.numel) for s in self.frame.dense], dtype=np.int64)
        factors = self._clip_factors(self.frame.dense, self._kernels.statistics(self.buffer, spans)).tolist()
        for segment, factor in zip(self.frame.dense, factors, strict=True):
            if factor < 1:
                self.buffer[segment.source : segment.source + segment.numel].mul_(factor)

    def _add_residuals_of_dense(self) -> None:
        """What an earlier method has held back of parameters that this one sends whole goes with them."""
        for segment in self.frame.dense:
            if segment.index in self.coder.residuals and not self.coder.waits(segment, self.buffer):
                own = self.buffer[segment.source : segment.source + segment.numel]
                own.add_(self.coder.residuals[segment.index])
                self.coder.next_residuals[segment.index] = None

    def _choose(self) -> Picks:
        """Takes what is to be sent out of the state."""
        coder, segments = self.coder, self.frame.sparse
        waiting = torch.tensor([coder.waits(s, self.buffer) for s in segments], device=self.buffer.device)
        gradients = self._statistics_of_gradient()
        residuals = [coder.residual(s.index, s.numel, self.buffer.device) for s in segments]
        velocities = self._velocities()
        maxima = torch.empty(num_tiles(self._spans[:, 1]), dtype=torch.float32, device=self.buffer.device)
        factors = self._factors(gradients)
        statistics, finite = self._accumulate(velocities, residuals, maxima, factors)
        thresholds, limits = self._thresholds(residuals, maxima, statistics, gradients, factors)
        # A gradient with an element that is not finite must be seen by everyone: it is sent as one NaN.
        thresholds = torch.where(finite, thresholds, torch.nan).masked_fill(waiting, torch.inf)
        entries, saved = self._kernels.select(residuals, velocities, maxima, thresholds, self._kept)
        coder.undo.append(partial(self._kernels.restore, residuals, velocities, entries, saved))
        self._residuals, self._chosen = residuals, entries
        self._statistics, self._thresholds_used = statistics, thresholds
        self._limits = limits.cpu().numpy()
        return self._with_broken(picks_of(self.frame, entries), (~finite).nonzero().flatten().tolist())

    @property
    def _kept(self) -> float:
        """The share of what was sent that stays: with `sam`, which has one momentum for all, it is the velocity too."""
        if self._method.compensation != SAM:
            return 0.0
        return self.coder.momenta.get(self.frame.sparse[0].index, Momentum()).factor

    def _velocities(self) -> list[Tensor] | None:
        """Of all sparse segments, if momentum is masked; those without momentum have none to speak of."""
        if self._method.compensation != MASKING:
            return None
        coder = self.coder
        if not any(coder.momenta.get(s.index, Momentum()).factor for s in self.frame.sparse):
            return None
        return [coder.velocity(s.index, s.numel, self.buffer.device) for s in self.frame.sparse]

    def _accumulate(
        self, velocities: list[Tensor] | None, residuals: list[Tensor], maxima: Tensor, factors: Tensor
    ) -> tuple[Statistics, Tensor]:
        """In one pass for each kind of momentum, of which there is hardly ever more than one."""
        momenta = [self.coder.momenta.get(s.index, Momentum()) for s in self.frame.sparse]
        ends = np.cumsum([num_tiles(self._spans[i : i + 1, 1]) for i in range(len(momenta))])
        parts: list[tuple[Statistics, Tensor]] = []
        first = 0
        while first < len(momenta):
            last = first
            while last < len(momenta) and momenta[last] == momenta[first]:
                last += 1
            tiles = slice(int(ends[first - 1]) if first else 0, int(ends[last - 1]))
            found = self._kernels.accumulate(
                self.buffer, self._spans[first:last], velocities[first:last] if velocities else None,
                residuals[first:last], factors[first:last], maxima[tiles],
                momentum=momenta[first].factor, nesterov=momenta[first].nesterov, clear=True,
            )  # fmt: skip
            parts.append((found.statistics, found.finite))
            first = last
        statistics = Statistics(*(torch.cat(columns) for columns in zip(*(part for part, _ in parts), strict=True)))
        return statistics, torch.cat([finite for _, finite in parts])

    def _statistics_of_gradient(self) -> Statistics | None:
        if self._method.clip_norm or self._method.needs_gradient_statistics:
            return self._kernels.statistics(self.buffer, self._spans)
        return None

    def _gains(self) -> Tensor:
        """What each segment's gradient counts, with what momentum adds to it at once."""
        momenta = [self.coder.momenta.get(s.index, Momentum()) for s in self.frame.sparse]
        upfront = self._method.compensation == UPFRONT
        gains = [momentum.upfront if upfront else 1.0 for momentum in momenta]
        return torch.tensor(gains, dtype=torch.float32, device=self.buffer.device)

    def _factors(self, gradients: Statistics | None) -> Tensor:
        """What each segment's gradient is multiplied by: its gain, and local clipping."""
        gains = self._gains()
        if not self._method.clip_norm or gradients is None:
            return gains
        return self._clip_factors(self.frame.sparse, gradients) * gains

    def _clip_factors(self, segments: Sequence[Segment], gradients: Statistics) -> Tensor:
        """What brings the whole gradient to this worker's share of the norm, at most 1; what is not finite stays so.

        The norm is that of the step before, or a segment's own if that alone is larger.
        """
        coder = self.coder
        for segment, squares in zip(segments, gradients.squares.tolist(), strict=True):
            coder.squares[segment.index] = squares / coder.scale**2
        most = self._method.clip_norm * coder.scale * coder.world_size**-0.5
        norms = gradients.squares.sqrt().clamp(min=coder.last_norm * coder.scale)
        factors = (most / norms).float()
        return torch.where(factors < 1, factors, 1.0)  # 1 also where the norm is zero or NaN

    def _thresholds(
        self,
        residuals: list[Tensor],
        maxima: Tensor,
        statistics: Statistics,
        gradients: Statistics | None,
        factors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Above which magnitude each segment is sent, and the most that its signs stand for."""
        if self.frame.whole:
            everything = torch.full((len(residuals),), -1.0, device=self.buffer.device)
            return everything, torch.full_like(everything, torch.inf)
        numels = torch.from_numpy(self._spans[:, 1]).to(self.buffer.device, torch.float64)
        indices = np.array([s.index for s in self.frame.sparse], dtype=np.uint64)
        step, coder = self.envelope.step, self.coder
        above = partial(self._above, residuals, maxima)
        view = View(step, coder.seed, coder.rank, indices, residuals, statistics, gradients, numels, factors, above)
        thresholds = self._method.thresholds(view).float()
        return thresholds, self._method.sign_limits(view, thresholds)

    def _above(self, residuals: list[Tensor], maxima: Tensor, position: int, threshold: Tensor) -> Tensor:
        """The magnitudes of a segment's residual beyond a threshold: taken out as if to be sent, and put back."""
        first = num_tiles(self._spans[:position, 1])
        own = residuals[position : position + 1]
        tiles = maxima[first : first + num_tiles(self._spans[position : position + 1, 1])]
        entries, saved = self._kernels.select(own, None, tiles, threshold.view(1))
        self._kernels.restore(own, None, entries, saved)
        return entries.values.abs()

    # Between entries, which belong to segments, and picks, which lie in one space

    def _entries_of(self, picks: Picks) -> Entries:
        return entries_of(self.frame, picks, self.buffer.device)

    def _with_broken(self, picks: Picks, broken: list[int]) -> Picks:
        """With one NaN for each of these segments."""
        if not broken:
            return picks
        positions = np.concatenate([picks.positions, self.frame.starts[broken]])
        values = np.concatenate([picks.values, np.full(len(broken), np.nan, np.float32)])
        order = np.argsort(positions, kind="stable")
        return Picks(positions[order], values[order])

    def _keep_rounding(self, picks: Picks, sent: Picks) -> None:
        """What the values on the wire are short of stays in the residual."""
        with np.errstate(invalid="ignore"):
            lost = (picks.values - sent.values) * np.float32(1 - self._kept)  # so that v - (1 - kept) sent is left
        lost[~np.isfinite(lost)] = 0
        self._kernels.add_back(self._residuals, self._entries_of(Picks(picks.positions, lost)))

    # Reading

    def unpack(self, messages: Sequence[Tensor], shard: int = 0) -> None:
        """Writes the average of all ranks' messages to the bucket."""
        frame, part = self.frame, self.frame.shards[shard]
        for rank, message in enumerate(messages):
            self.envelope.codes(rank, shard, message.numel()).check(message)
        found = [
            read_picks(frame, part, frame.values, message, f"message from rank {rank}, {self.envelope.where}")
            for rank, message in enumerate(messages)
        ]
        self._scatter(found, len(messages))
        write_dense_mean(self.buffer, part.dense, [dense_values(frame, part, message) for message in messages])
        self._settle()

    def add(self, messages: Sequence[Tensor]) -> Tensor:
        """The message of the sum of all ranks' messages of this rank's shard."""
        return add_sparse(self.envelope, self.coder.rank, messages)

    def unpack_sums(self, messages: Sequence[Tensor]) -> None:
        """Writes the average from the messages of all shards' sums to the bucket."""
        frame = self.frame
        found = []
        for number, (shard, message) in enumerate(zip(frame.shards, messages, strict=True)):
            self.envelope.sums(number, message.numel()).check(message)
            where = f"message from rank {number}, {self.envelope.where}"
            found.append(read_picks(frame, shard, frame.sum_values, message, where))
            write_dense(self.buffer, shard.dense, dense_values(frame, shard, message))
        whole = Picks(np.concatenate([p.positions for p in found]), np.concatenate([p.values for p in found]))
        self._scatter([whole], self.coder.world_size)
        self._settle()

    def _scatter(self, found: Sequence[Picks], num_ranks: int) -> None:
        if self.frame.sparse:
            payloads = [self._entries_of(picks) for picks in found]
            self._might_overflow = not self._surely_finite(found)
            if self._method.revision and not self.frame.whole:
                payloads = [self._revised(payloads)]
            if not self._kernels.scatter_mean(self.buffer, self._spans, payloads, num_ranks):
                raise WireError(f"{self.envelope.where}: positions out of order; a message was corrupted on its way")

    def _surely_finite(self, found: Sequence[Picks]) -> bool:
        """Whether no average can be infinite or NaN, told from what was received: far less than there is to look at.

        A NaN among them makes the sum NaN.
        """
        largest = sum(float(np.maximum(p.values.max(initial=0), -p.values.min(initial=0))) for p in found)
        return largest <= torch.finfo(self.buffer.dtype).max

    def _revised(self, payloads: list[Entries]) -> Entries:
        """The sum of all, with each parameter's share of it damped if more than usual has arrived."""
        merged = self._kernels.merge(self._spans[:, 1], payloads)
        if merged is None:
            raise WireError(f"{self.envelope.where}: positions out of order; a message was corrupted on its way")
        power = self._method.revision
        arrived = np.concatenate([[0], np.cumsum(merged.values.cpu().numpy() != 0)])  # a whole message has zeros too
        ends = np.concatenate([[0], np.cumsum(merged.counts)])
        factors = [
            self.coder.revise(segment.index, int(count) / segment.numel, power) if count else 1.0
            for segment, count in zip(self.frame.sparse, np.diff(arrived[ends]), strict=True)
        ]
        scale = torch.from_numpy(np.repeat(np.array(factors, dtype=np.float32), merged.counts))
        return merged._replace(values=merged.values * scale.to(merged.values.device))

    def _settle(self) -> None:
        """The bucket holds the average now: dense parameters get their momentum, and all may find the step void."""
        if self._method.compensation != NONE:
            for segment in self.frame.dense:
                self._apply_momentum(segment)
        if self._might_overflow:
            self.coder.note_average(self.buffer)
        for segment in self.frame.dense:
            self.coder.note_average(self.buffer[segment.source : segment.source + segment.numel])

    def _apply_momentum(self, segment: Segment) -> None:
        """As the optimizer would: all ranks have the same average and the same velocity."""
        momentum = self.coder.momenta.get(segment.index, Momentum())
        if not momentum.factor:
            return
        average = self.buffer[segment.source : segment.source + segment.numel]
        unused = self.coder.leaves_unused and not bool(average.any())  # on all ranks, so the optimizer would skip it
        if unused or not bool(torch.isfinite(average).all()):
            return
        velocity = self.coder.velocity(segment.index, segment.numel, self.buffer.device)
        before = velocity.clone()
        self.coder.undo.append(partial(self._restore_velocity, velocity, before))
        if momentum.nesterov:
            velocity.add_(average).mul_(momentum.factor)
            average.add_(velocity)
        else:
            velocity.mul_(momentum.factor).add_(average)
            average.copy_(velocity)

    @staticmethod
    def _restore_velocity(velocity: Tensor, before: Tensor) -> None:
        velocity.copy_(before)

    def settle_as(self, other: SparseBucket) -> None:
        """What reading the messages would do, from a bucket in this process that has read them."""
        self.coder.is_void |= other.coder.is_void
        for segment in self.frame.dense:
            if segment.index in other.coder.velocities:
                self.coder.velocities[segment.index] = other.coder.velocities[segment.index].clone()

    def measure(self) -> None:
        """Adds what was held back in this step, and what was not takes, to the measurements. Right after pack."""
        if not self.frame.sparse:
            return
        sent = as_read(self.frame, picks_of(self.frame, self._chosen), self._limits)
        left = np.split(self._chosen.values.double().square().cpu().numpy(), np.cumsum(self._chosen.counts)[:-1])
        for position, segment in enumerate(self.frame.sparse):
            alone = SparseShard(int(self.frame.starts[position]), int(self.frame.starts[position + 1]), ())
            norm = float(self._statistics.squares[position])
            if not np.isfinite(norm) or not bool(self._thresholds_used[position].isfinite()):
                continue  # void, or not used by this rank
            found = Measured(
                num_steps=1,
                scaler=float(self._thresholds_used[position]),
                num_elements=segment.numel,
                num_nonzero=int(self._chosen.counts[position]),
                squared_error=max(norm - float(left[position].sum()), 0.0),
                squared_norm=norm,
                num_bits=8
                * len(write_picks(self.frame, alone, self.frame.values, sent.between(alone.first, alone.last))),
            )
            self.coder.add_measured(segment.index, found)
