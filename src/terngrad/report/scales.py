"""Scales and their ticks: from values to positions, with marks at round numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from terngrad.report.text import BYTES, COUNTS, SECONDS, Unit, amount, digits, unit_for

Tick = tuple[float, str]
FACTOR_FOR_LOG = 8  # between highest and lowest, from which on the low ones would be a line along the axis


@dataclass(frozen=True)
class Scale:
    """Maps low..high to start..end, evenly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        share = (self._transform(value) - self._transform(self.low)) / (
            self._transform(self.high) - self._transform(self.low)
        )
        return self.start + share * (self.end - self.start)

    def _transform(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def takes(self, value: float) -> bool:
        """Whether the value has a position; zero has none on a logarithmic scale."""
        return math.isfinite(value) and (value > 0 or not self.log)


def nice_step(span: float, num_ticks: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that makes at most so many steps of the span."""
    rough = span / num_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))


def linear_ticks(low: float, high: float, num_ticks: int = 5) -> list[float]:
    """The multiples of a nice step from low to high."""
    step = nice_step(high - low, num_ticks)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float, num_ticks: int = 5) -> list[float]:
    """Powers of ten, and 2 and 5 times those if that is not too many; every so many of them if there are very many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / (num_ticks + 1)))
    for factors in ((1, 2, 5), (1,)):
        ticks = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
        inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(inside) <= num_ticks:
            break
    return inside


def padded(low: float, high: float) -> tuple[float, float]:
    """A range that is one, around values that may all be the same."""
    if high > low and high - low > 1e-12 * max(abs(low), abs(high)):
        return low, high
    return low - (abs(low) / 10 or 1.0), high + (abs(high) / 10 or 1.0)


def unit_labels(ticks: Sequence[float], unit: Unit) -> list[Tick]:
    """All ticks in one unit, as short as the distance between them allows."""
    scaled = [tick / unit.worth for tick in ticks]
    gap = min((after - before for before, after in itertools.pairwise(scaled)), default=1.0)
    decimals = max(0, -math.floor(math.log10(gap) + 1e-9))
    texts = [f"{value:,.{decimals}f}{unit.name}" if value else "0" for value in scaled]
    return list(zip(ticks, texts, strict=True))


def log_labels(ticks: Sequence[float], units: Sequence[Unit] = ()) -> list[Tick]:
    """Each tick in the unit that suits it."""
    return [(tick, amount(tick, units, 1) if units else digits(tick, 1)) for tick in ticks]


def axis_unit(axis: str, high: float) -> Unit:
    """The unit of an axis that ends there: of two minutes or two hours on, and of ten thousand steps on, the larger."""
    if axis == "steps":
        return unit_for(high / 10, COUNTS)
    name, worth = unit_for(high / 2 if high >= 60 else high, SECONDS)
    return Unit(f" {name}", worth)


def even_scale(axis: str, high: float, start: float, end: float) -> tuple[Scale, list[Tick]]:
    """From zero to a number of steps or seconds, and its ticks."""
    unit = axis_unit(axis, high)
    ticks = [tick * unit.worth for tick in linear_ticks(0.0, high / unit.worth)]
    return Scale(0.0, high, start, end), unit_labels(ticks, unit)


def x_scale(axis: str, values: Sequence[float], start: float, end: float) -> tuple[Scale, list[Tick]]:
    """The scale of an axis, and its ticks. Bytes and workers go by logarithm: they differ by factors."""
    if axis not in ("bytes", "workers"):
        return even_scale(axis, max([0.0, *values]) or 1.0, start, end)
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    low, high = (low, high) if high > 1.5 * low else (low / 2, high * 2)
    scale = Scale(low, high, start, end, log=True)
    if axis == "workers":
        return scale, [(float(2**k), f"{2**k:,}") for k in range(31) if low <= 2**k <= high]
    return scale, log_labels(log_ticks(low, high), BYTES)


def y_scale(metric: str, series: Sequence[Sequence[float]], start: float, end: float) -> tuple[Scale, list[Tick]]:
    """The scale of a loss or metric, and its ticks; `series` holds the finite values of each run."""
    values = [value for part in series for value in part] or [0.0, 1.0]
    low, high = padded(min(values), max(values))
    if metric == "accuracy":
        # The first values are far below all others, so that the rest would be a line at the top: begin where every
        # run has most of its values.
        low = min(sorted(part)[len(part) // 6] for part in series if part) if any(series) else low
        low, high = padded(low, high)
        below = low - 0.06 * (high - low)
        low, high = max(0.0, below) if low >= 0 else below, high + 0.04 * (high - low)
        return Scale(low, high, start, end), unit_labels(linear_ticks(low, high), Unit("%", 0.01))
    if min(values) > 0 and high > FACTOR_FOR_LOG * low:
        low = max(low, 1e-6 * high)
        return Scale(low / 1.1, high * 1.1, start, end, log=True), log_labels(log_ticks(low / 1.1, high * 1.1, 7))
    low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    return Scale(low, high, start, end), unit_labels(linear_ticks(low, high), Unit("", 1))
