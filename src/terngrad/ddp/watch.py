"""When the buckets of backward passes are ready and when these end: a profile of steps as they happen, on one rank."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from terngrad.methods import ParameterInfo
from terngrad.perf import Gradient, Profile
from terngrad.perf.probes import finish_work

KEPT = 64  # steps


@dataclass(frozen=True)
class _Step:
    period_s: float  # from the end of the step before to its own
    rest_s: float  # of that, before the first bucket was ready: the update, loading, forward, and some of backward
    ready_s: tuple[float, ...]  # of each bucket, since the first
    groups: tuple[tuple[int, ...], ...]  # of parameters, by index: a bucket each


class Watch:
    """Notes of the last steps."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, device: torch.device | None = None) -> None:
        self._read_clock = clock
        self._device = device or torch.device("cpu")
        self._precise = False
        self._steps: deque[_Step] = deque(maxlen=KEPT)
        self._moments: list[float] = []
        self._groups: list[tuple[int, ...]] = []
        self._ended: float | None = None

    def clear(self) -> None:
        """Forgets the steps so far; the next one still has a beginning."""
        self._steps.clear()

    def _clock(self) -> float:
        if self._precise:
            finish_work(self._device)
        return self._read_clock()

    def begin(self, precise: bool = False) -> None:
        """The first bucket of a step is about to be noted; if `precise`, moments wait for an accelerator's work."""
        self._precise = precise
        self._moments.clear()
        self._groups.clear()

    def ready(self, indices: tuple[int, ...]) -> None:
        """A bucket of these parameters is ready."""
        self._moments.append(self._clock())
        self._groups.append(indices)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is done in it is not part of the step."""
        start = self._read_clock()
        yield
        if self._ended is not None:
            self._ended += self._read_clock() - start

    def end(self) -> None:
        """All averages have arrived. May be told several times."""
        if not self._moments:
            return
        now, first = self._clock(), self._moments[0]
        if self._ended is not None:
            ready = tuple(moment - first for moment in self._moments)
            self._steps.append(_Step(now - self._ended, first - self._ended, ready, tuple(self._groups)))
        self._ended = now
        self._moments.clear()

    @property
    def total_s(self) -> float:
        """Of all steps noted."""
        return sum(step.period_s for step in self._steps)

    @property
    def period_s(self) -> float | None:
        """The median; None if there was no step."""
        return statistics.median(step.period_s for step in self._steps) if self._steps else None

    def profile(self, parameters: Sequence[ParameterInfo]) -> tuple[Profile, tuple[int, ...]] | None:
        """The median step with the latest buckets, and the plan of these.

        Its gradients are ready when their bucket is, and what precedes the first bucket counts as forward.
        """
        alike = [step for step in self._steps if step.groups == self._steps[-1].groups]
        if not alike:
            return None
        groups = alike[-1].groups
        gradients = []
        for number, indices in enumerate(groups):
            ready = statistics.median(step.ready_s[number] for step in alike)
            gradients += [Gradient(parameters[index], ready) for index in indices]
        rest = statistics.median(step.rest_s for step in alike)
        return Profile(rest, tuple(gradients), 0.0), tuple(len(indices) for indices in groups)
