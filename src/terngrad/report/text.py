"""Numbers as a reader wants them: nice units, the same number of digits down a column."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

MISSING = "–"


class Unit(NamedTuple):
    """A name and how much it is worth."""

    name: str
    worth: float


BYTES = (Unit("B", 1), Unit("kB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9), Unit("TB", 1e12), Unit("PB", 1e15))
SECONDS = (Unit("µs", 1e-6), Unit("ms", 1e-3), Unit("s", 1), Unit("min", 60), Unit("h", 3600))
STEP_SECONDS = SECONDS[:3]
COUNTS = (Unit("", 1), Unit("k", 1e3), Unit("M", 1e6), Unit("G", 1e9))


def unit_for(value: float, units: Sequence[Unit]) -> Unit:
    """The largest unit of which the value has at least one."""
    fitting = [unit for unit in units if abs(value) >= unit.worth]
    return fitting[-1] if fitting else units[0]


def digits(value: float, significant: int = 3) -> str:
    """A number with so many digits, without an exponent where it can do without."""
    if not value:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -3 <= exponent < 7:
        return f"{value:.{significant - 1}e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.{max(0, significant - 1 - exponent)}f}"


def amount(value: float, units: Sequence[Unit], significant: int = 3) -> str:
    """A value in the unit that suits it."""
    unit = unit_for(value, units)
    return f"{digits(value / unit.worth, significant)} {unit.name}".rstrip()


def column(values: Sequence[float | None], units: Sequence[Unit]) -> tuple[str, list[str]]:
    """The values of a column in one unit, that of the largest, with the decimals that the smallest needs."""
    highest = max((abs(value) for value in values if value), default=1.0)
    unit = unit_for(highest, units)
    # Three digits for the smallest, or two if it is small beside the largest; what is next to nothing may become zero.
    known = [abs(value) for value in values if value and abs(value) >= highest / 1000] or [highest]
    smallest, largest = (math.floor(math.log10(end(known) / unit.worth)) for end in (min, max))
    decimals = max(0, 2 - smallest - (largest - smallest >= 2))
    texts = [MISSING if value is None else f"{value / unit.worth:,.{decimals}f}" for value in values]
    return unit.name, texts


def metric_text(value: float, metric: str) -> str:
    """An accuracy as a percentage, anything else with four digits."""
    return f"{100 * value:.2f}%" if metric == "accuracy" else digits(value, 4)


def target_text(value: float, metric: str) -> str:
    """A target, which somebody chose, with no more digits than it has."""
    return f"{100 * value:g}%" if metric == "accuracy" else f"{value:g}"


def times(ratio: float) -> str:
    """A factor: 19.1×."""
    return f"{digits(ratio, 3 if ratio >= 1 else 2)}×"


def link_text(link: object) -> str:
    """A rate as tc writes it, as people do: 100mbit is 100 Mb/s."""
    text = str(link or "none")
    if text == "none":
        return "one machine"
    rate = re.fullmatch(r"([\d.]+)([kmg])bit", text)
    return f"{rate[1]} {rate[2].upper().replace('K', 'k')}b/s" if rate else text


def plural(count: object, noun: str) -> str:
    """1 worker, 2 workers."""
    return f"{count} {noun}" if str(count) == "1" else f"{count} {noun}s"
