"""A backward pass and the lane that sends its gradients, side by side: when each bucket leaves, arrives and is read.

The lane works as terngrad.ddp.lane does. For each bucket, in order, it encodes, with short rounds that it waits for,
and posts the codes; then it waits for the bucket before and decodes it; then it adds up and posts the sums, where there
are any. If this one arrives before another bucket is ready, it is decoded then. Parts of a large bucket take their
turns as buckets do. Backward runs on meanwhile. DDP by itself has no lane: it posts every bucket when it is ready, and
waits for all of them after backward. Where two threads have to share a core, each is slowed down while both compute. To
hand bytes to the network is computing, too, and whoever waits for a message has to get a processor back first, which
takes longer while backward has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Work:
    """What one bucket takes, in seconds."""

    encode_s: float
    send_s: float  # on the wire
    decode_s: float
    round_s: float = 0.0  # of scalers, before encoding, that everyone waits for
    lengths_s: float = 0.0  # a round of lengths, and what goes with them, before the rest: where messages vary
    in_two: bool = False  # whether messages are added up and sent on:
    add_s: float = 0.0  # what that computes,
    sum_lengths_s: float = 0.0  # the round of their lengths,
    sums_s: float = 0.0  # and their time on the wire
    handling_s: float = 0.0  # of the processor, to hand messages to the network and take them from it
    delay_s: float = 0.0  # of what arrives while backward runs; at most to its end
    at_once: bool = False  # posted when ready, whatever is under way, and read after backward: DDP without a lane

    def cut(self, num_parts: int) -> list[Work]:
        """The same in parts of a size, one after the other: scalers go with the first, lengths with each."""
        part = replace(
            self,
            encode_s=self.encode_s / num_parts,
            send_s=self.send_s / num_parts,
            decode_s=self.decode_s / num_parts,
            handling_s=self.handling_s / num_parts,
        )
        return [part, *[replace(part, round_s=0.0)] * (num_parts - 1)]


@dataclass(frozen=True)
class Timeline:
    """When things were over, from the start of the backward pass, and what the lane spent its time on."""

    backward_s: float
    end_s: float
    encode_s: float
    exchange_s: float  # that the lane waited
    decode_s: float

    @property
    def exposed_s(self) -> float:
        return self.end_s - self.backward_s


class _Clock:
    """Time, and how far the backward pass has come in it."""

    def __init__(self, backward_s: float, contention: float) -> None:
        self.now = 0.0
        self.backward_end = 0.0
        self._left = backward_s  # of the backward pass
        self._total = backward_s
        self._contention = contention

    def wait_until(self, moment: float) -> float:
        """Nothing is computed but backward. Returns how long that was."""
        passed = max(0.0, moment - self.now)
        self._advance(min(self._left, passed), 1.0)
        self.now = max(self.now, moment)
        return passed

    def wait_for(self, ready_s: float) -> None:
        """Until backward has done so much."""
        self._advance(max(0.0, ready_s - (self._total - self._left)), 1.0)

    @property
    def left(self) -> float:
        """Of the backward pass, if nothing disturbs it."""
        return self._left

    def is_ready_at(self, moment: float, ready_s: float) -> bool:
        """Whether backward will have done so much by then, if nothing disturbs it."""
        missing = ready_s - (self._total - self._left)
        return missing <= 0 or self.now + missing < moment

    def compute(self, seconds: float) -> float:
        """So much work, beside backward. Returns how long it took."""
        start = self.now
        beside = min(seconds, self._left)
        self._advance(beside, self._contention)
        self.now += seconds - beside
        return self.now - start

    def _advance(self, work: float, slowdown: float) -> None:
        """Of the backward pass, at some speed."""
        if work <= 0:
            return
        self.now += work * slowdown
        self._left = max(0.0, self._left - work)
        if self._left == 0:
            self.backward_end = self.now


class _Wire:
    def __init__(self) -> None:
        self._free = 0.0

    def post(self, now: float, seconds: float) -> float:
        """When a message that is posted now has arrived: after those before it."""
        self._free = max(self._free, now) + seconds
        return self._free


def simulate(ready: Sequence[float], works: Sequence[Work], contention: float = 1.0) -> Timeline:
    """One backward pass whose buckets are ready at these moments, if nothing disturbs it; the last one is its end.

    `contention` is how many times slower the lane and backward are while both compute: 1 where each has a core and the
    memory to itself, 2 where they share one core.
    """
    clock, wire = _Clock(ready[-1] if ready else 0.0, contention), _Wire()
    spent = dict.fromkeys(("encode", "exchange", "decode"), 0.0)
    previous: tuple[Work, float] | None = None  # the bucket on its way, and when it arrives
    posted: list[tuple[Work, float]] = []  # likewise those that nobody waits for yet

    def post(work: Work, seconds: float) -> float:
        """When that has arrived, if it is anything, and whoever waits for it knows."""
        if not seconds:
            return clock.now
        arrival = wire.post(clock.now, seconds)
        return arrival + min(work.delay_s, max(0.0, clock.now + clock.left - arrival))

    def finish(work: Work, arrival: float) -> None:
        spent["exchange"] += clock.wait_until(arrival)
        spent["decode"] += clock.compute(work.decode_s)

    for moment, work in zip(ready, works, strict=True):
        if previous is not None and not clock.is_ready_at(previous[1], moment):
            finish(*previous)
            previous = None
        clock.wait_for(moment)
        spent["exchange"] += clock.wait_until(post(work, work.round_s))
        spent["encode"] += clock.compute(work.encode_s)
        spent["exchange"] += clock.wait_until(post(work, work.lengths_s))
        arrival = post(work, work.send_s)
        spent["exchange"] += clock.compute(work.handling_s)  # while it is on the wire
        if work.at_once:
            posted.append((work, arrival))
            continue
        if previous is not None:
            finish(*previous)
        if work.in_two:
            spent["exchange"] += clock.wait_until(arrival)
            spent["decode"] += clock.compute(work.add_s)
            spent["exchange"] += clock.wait_until(post(work, work.sum_lengths_s))
            arrival = post(work, work.sums_s)
        previous = work, arrival
    for under_way in [previous] if previous is not None else posted:
        finish(*under_way)
    clock.wait_for(ready[-1] if ready else 0.0)
    return Timeline(clock.backward_end, max(clock.now, clock.backward_end), *spent.values())
