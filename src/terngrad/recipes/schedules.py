"""Learning-rate schedules: the factor of a step, 0-based, of a run of so many steps."""

from __future__ import annotations

import math
from collections.abc import Callable

POLY_POWER = 0.5  # as in Caffe's solvers of that kind; the TernGrad paper says "poly" and not which power
WARMUP = 0.05  # of the run


def constant(_step: int, _steps: int) -> float:
    return 1.0


def poly(step: int, steps: int) -> float:
    """Caffe's: (1 - t/T)^0.5."""
    return math.pow(1 - step / steps, POLY_POWER)


def cosine(step: int, steps: int) -> float:
    """Half a wave, from 1 towards 0."""
    return (1 + math.cos(math.pi * step / steps)) / 2


def warmup_cosine(step: int, steps: int) -> float:
    """In even increments up to 1 over the first twentieth of the run, then half a wave towards 0."""
    warmup = math.ceil(WARMUP * steps)
    return (step + 1) / warmup if step < warmup else cosine(step - warmup, steps - warmup)


def step_down(step: int, steps: int) -> float:
    """A tenth after half of the run, a hundredth after three quarters, as He et al. train on CIFAR-10."""
    return 0.1 ** (int(2 * step >= steps) + int(4 * step >= 3 * steps))


SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": constant,
    "poly": poly,
    "cosine": cosine,
    "warmup-cosine": warmup_cosine,
    "step": step_down,
}
