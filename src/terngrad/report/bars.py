"""Where the time of a step goes, as bars.

The upper bar of a run is a step as training sees it: computing, then waiting for what communication has not hidden
behind it. The thinner bar is the lane, which encodes, exchanges and decodes beside the backward pass; it is not part of
the upper bar's sum, and is drawn on the same scale to show how much of it is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from terngrad.report.markup import Drawing, Markup, join, tag
from terngrad.report.palette import badge
from terngrad.report.scales import Scale, even_scale
from terngrad.report.text import STEP_SECONDS, amount

WIDTH, LEFT, RIGHT = 440, 4, 64
ROW_HEIGHT, NAME_HEIGHT = 50, 18
STEP_HEIGHT, LANE_HEIGHT = 14, 5
LANE = ("encode", "exchange", "decode")
NAMES = {
    "compute": "compute",
    "exposed": "exposed communication",
    "encode": "encode",
    "exchange": "exchange",
    "decode": "decode",
}


@dataclass(frozen=True)
class StepTime:
    """The phases of a run's step in seconds, as far as they are known."""

    index: int
    label: str
    phases: Mapping[str, float]

    @property
    def step_parts(self) -> list[tuple[str, float]]:
        """The phases that add up to the step; the whole as one if they are not known."""
        if {"compute", "exposed"} <= self.phases.keys():
            return self._parts("compute", "exposed")
        return self._parts("step")

    @property
    def lane_parts(self) -> list[tuple[str, float]]:
        """The phases of the lane, one after the other on its thread."""
        return self._parts(*LANE)

    def _parts(self, *phases: str) -> list[tuple[str, float]]:
        return [(phase, max(0.0, self.phases[phase])) for phase in phases if phase in self.phases]

    @property
    def step_s(self) -> float:
        return sum(seconds for _, seconds in self.step_parts)


def step_chart(times: Sequence[StepTime], title: str) -> Drawing:
    """The bars of all runs, one below the other."""
    longest = max(sum(s for _, s in parts) for time in times for parts in (time.step_parts, time.lane_parts))
    scale, ticks = even_scale("seconds", longest or 1.0, float(LEFT), float(WIDTH - RIGHT))
    bottom = ROW_HEIGHT * len(times) + 2
    grid = []
    for value, label in ticks:
        x = scale(value)
        grid.append(tag("line", x1=x, x2=x, y1=0, y2=bottom, class_="grid"))
        grid.append(tag("text", label, x=x, y=bottom + 16, class_="tick start" if value == 0 else "tick middle"))
    rows = [part for row, time in enumerate(times) for part in _row(time, row * ROW_HEIGHT, scale)]
    content = join([tag("g", *grid), *rows])
    return Drawing(WIDTH, bottom + 24, content, {"class_": "chart bars", "aria_label": title})


def _row(time: StepTime, top: int, scale: Scale) -> Iterator[Markup]:
    yield badge(time.index, LEFT, top + 3)
    yield tag("text", time.label, x=LEFT + 20, y=top + 13, class_="row-name")
    y = top + NAME_HEIGHT
    yield from _bar(time.step_parts, y, STEP_HEIGHT, scale)
    if time.step_parts:
        text = amount(time.step_s, STEP_SECONDS)
        yield tag("text", text, x=scale(time.step_s) + 6, y=y + 11, class_="value")
    yield from _bar(time.lane_parts, y + STEP_HEIGHT + 2, LANE_HEIGHT, scale)


def _bar(parts: Sequence[tuple[str, float]], y: int, height: int, scale: Scale) -> Iterator[Markup]:
    begin = 0.0
    for phase, seconds in parts:
        x = scale(begin)
        begin += seconds
        label = tag("title", f"{NAMES.get(phase, phase)}: {amount(seconds, STEP_SECONDS)}")
        yield tag("g", label, tag("rect", x=x, y=y, width=scale(begin) - x, height=height, class_=f"phase-{phase}"))


def drawn_key(x: float, y: float) -> Markup:
    """The legend as SVG, in one line from the left end of its baseline."""
    parts = []
    for phase, name in NAMES.items():
        height = 4 if phase in LANE else 9
        parts.append(tag("rect", x=x, y=y - 4 - height / 2, width=12, height=height, class_=f"phase-{phase}"))
        parts.append(tag("text", name, x=x + 17, y=y, class_="title"))
        x += 29 + 6.4 * len(name)
    return tag("g", *parts)


def key_of_phases(phases: Sequence[str] = tuple(NAMES)) -> Markup:
    """The legend as HTML, which wraps."""
    items = [
        tag("li", tag("i", class_=f"key phase-{phase}{' thin' if phase in LANE else ''}"), NAMES[phase])
        for phase in phases
    ]
    return tag("ul", *items, class_="phases")
