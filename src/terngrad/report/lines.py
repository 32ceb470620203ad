"""Curves over steps, seconds or bytes, as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from terngrad.report.markup import Drawing, Markup, join, pixels, tag
from terngrad.report.palette import LETTERS, badge, run_classes
from terngrad.report.records import Point
from terngrad.report.scales import Scale, Tick, x_scale, y_scale
from terngrad.report.text import target_text

AXES = {
    "steps": "steps",
    "seconds": "training time",
    "bytes": "bytes that rank 0 sent and received",
    "workers": "workers",
}
WIDTH, HEIGHT = 440, 290
LEFT, TOP, BOTTOM = 50, 14, 44
LABEL_HEIGHT, CHARACTER_WIDTH = 13, 7.6
LONGEST_LABEL = 13  # characters that fit beside a curve; longer names are replaced by the run's letter
MOST_UNSMOOTHED = 6  # beyond, the values behind the curves are nothing but a haze
MOST_MARKERS = 30  # beyond, markers touch each other and hide the curve


@dataclass(frozen=True)
class Curve:
    """The points of a run; where they are noisy, also the points before smoothing."""

    index: int
    label: str
    points: Sequence[Point]
    raw: Sequence[Point] = ()


@dataclass(frozen=True)
class Frame:
    """Both scales of a chart, with their ticks, and the axis that its x is."""

    axis: str
    x: Scale
    y: Scale
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]

    def place(self, point: Point) -> tuple[float, float] | None:
        """Where a point lies, or None if it has no place."""
        x = x_of(point, self.axis)
        if not (self.x.takes(x) and self.y.takes(point.value)):
            return None
        return self.x(x), self.y(point.value)


def x_of(point: Point, axis: str) -> float:
    """Where training stood, in the unit of an axis; for `workers`, their number stands in place of the step."""
    return {"steps": point.step, "seconds": point.seconds, "bytes": point.nbytes, "workers": point.step}[axis]


def line_chart(curves: Sequence[Curve], axis: str, metric: str, title: str, target: float | None = None) -> Drawing:
    """The curves in their frame. The script of the page finds the scales in the attributes."""
    if len(curves) > MOST_UNSMOOTHED:
        curves = [replace(curve, raw=()) for curve in curves]
    frame = make_frame(curves, axis, metric, target)
    content = join(
        [
            _grid(frame),
            _target(frame, metric, target),
            _cut_to(frame, [part for curve in curves for part in _curve(curve, frame)]),
            tag("g", *_end_labels(curves, frame), class_="curves"),
        ]
    )
    attributes = {
        "class_": f"chart by-{axis}",
        "tabindex": "0",
        "aria_label": f"{title}, against {AXES[axis]}",
        "data_axis": axis,
        "data_x": _attribute(frame.x),
        "data_y": _attribute(frame.y),
    }
    return Drawing(WIDTH, HEIGHT, content, attributes)


def _cut_to(frame: Frame, parts: Sequence[Markup]) -> Markup:
    """An inner element cuts off what lies beyond the scales; it is wider by half the width of a line."""
    x, y = LEFT - 4, TOP - 4
    width, height = frame.x.end - LEFT + 8, frame.y.start - TOP + 8
    view = f"{x} {y} {pixels(width)} {pixels(height)}"
    return tag("svg", *parts, class_="curves", x=x, y=y, width=width, height=height, viewBox=view)


def make_frame(curves: Sequence[Curve], axis: str, metric: str, target: float | None) -> Frame:
    """Scales that hold all curves, and the target."""
    everything = [*curves, *(Curve(curve.index, curve.label, curve.raw) for curve in curves if curve.raw)]
    finite = [[point for point in curve.points if point.finite()] for curve in everything]
    values = [[point.value for point in part] for part in finite]
    if target is not None:
        values.append([target])
    longest = max((len(name) for name in _names(curves)), default=0)
    right = WIDTH - 14 - CHARACTER_WIDTH * max(2, longest)
    positions = [place for part in finite for point in part if math.isfinite(place := x_of(point, axis))]
    x, x_ticks = x_scale(axis, positions, float(LEFT), right)
    y, y_ticks = y_scale(metric, values, float(HEIGHT - BOTTOM), float(TOP))
    return Frame(axis, x, y, x_ticks, y_ticks)


def _attribute(scale: Scale) -> str:
    ends = f"{scale.low!r} {scale.high!r} {pixels(scale.start)} {pixels(scale.end)}"
    return f"{ends} {'log' if scale.log else 'linear'}"


def _grid(frame: Frame) -> Markup:
    bottom, right = frame.y.start, frame.x.end
    parts = []
    for value, label in frame.y_ticks:
        y = frame.y(value)
        parts.append(tag("line", x1=LEFT, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", label, x=LEFT - 7, y=y + 4, class_="tick end"))
    for value, label in frame.x_ticks:
        x = frame.x(value)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", label, x=x, y=bottom + 17, class_="tick middle"))
    parts.append(tag("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(tag("text", AXES[frame.axis], x=(LEFT + right) / 2, y=HEIGHT - 6, class_="title middle"))
    return tag("g", *parts)


def _target(frame: Frame, metric: str, target: float | None) -> Markup:
    if target is None:
        return Markup()
    y = frame.y(target)
    label = f"target {target_text(target, metric)}"
    line = tag("line", x1=LEFT, x2=frame.x.end, y1=y, y2=y, class_="target")
    return tag("g", line, tag("text", label, x=LEFT + 6, y=y - 5, class_="target-label"))


def _stretches(points: Sequence[Point], frame: Frame) -> Iterator[list[tuple[float, float]]]:
    """The positions of the points, in one list from gap to gap."""
    placed = [frame.place(point) for point in points]
    for there, stretch in itertools.groupby(placed, key=lambda place: place is not None):
        if there:
            yield [place for place in stretch if place is not None]


def path_of(stretch: Sequence[tuple[float, float]]) -> str:
    """Through all points; a single one becomes a dot, by its round ends."""
    text = " ".join(f"{pixels(x)},{pixels(y)}" for x, y in stretch)
    return f"M{text}" if len(stretch) > 1 else f"M{text}h0"


def _curve(curve: Curve, frame: Frame) -> Iterator[Markup]:
    classes = run_classes(curve.index)
    for points, kind in ((curve.raw, "raw"), (curve.points, "curve")):
        path = "".join(path_of(stretch) for stretch in _stretches(points, frame))
        if path:
            yield tag("path", d=path, class_=f"{kind} {classes}")
    if len(curve.points) <= MOST_MARKERS and not curve.raw:
        places = [place for point in curve.points if (place := frame.place(point))]
        yield from (tag("circle", cx=x, cy=y, r=2.2, class_=f"dot {classes}") for x, y in places)
    yield from _losses(curve, frame)


def _losses(curve: Curve, frame: Frame) -> Iterator[Markup]:
    """A cross at the top where values stop being finite."""
    for before, point in itertools.pairwise([None, *(curve.raw or curve.points)]):
        if point is None or point.finite() or (before is not None and not before.finite()):
            continue
        x = x_of(point, frame.axis)
        if frame.x.takes(x) and x <= frame.x.high:
            cross = tag("path", d=f"M{pixels(frame.x(x) - 4)},{TOP}l8,8m0,-8l-8,8")
            title = tag("title", f"{curve.label}: not finite at step {point.step:,.0f}")
            yield tag("g", title, cross, class_=f"lost {run_classes(curve.index)}")


def _names(curves: Sequence[Curve]) -> list[str]:
    """What is written beside the curves: labels if all are short, else letters."""
    if max((len(curve.label) for curve in curves), default=0) <= LONGEST_LABEL and len(curves) <= 8:
        return [curve.label for curve in curves]
    return [LETTERS[curve.index] for curve in curves]


def _end_labels(curves: Sequence[Curve], frame: Frame) -> Iterator[Markup]:
    """A name at the end of each curve, moved up or down where it would lie upon another or upon a curve."""
    paths = [[place for point in curve.points if (place := frame.place(point))] for curve in curves]
    taken: list[tuple[float, float, float]] = []  # left, right, y
    for curve, name, path in zip(curves, _names(curves), paths, strict=True):
        if not path:
            continue
        end_x, end_y = path[-1]
        end_y = min(max(end_y, float(TOP)), frame.y.start)
        left, right = end_x + 8, end_x + 8 + CHARACTER_WIDTH * max(2, len(name))
        written = [y for begin, end, y in taken if begin < right and left < end]
        drawn = [y for other in paths if other is not path for y in _heights(other, left, right)]
        y = _free_height(end_y, written, drawn, frame)
        taken.append((left, right, y))
        classes = run_classes(curve.index)
        if abs(y - end_y) > 3:
            yield tag("path", d=path_of([(end_x, end_y), (left - 1, y)]), class_=f"leader {classes}")
        label = tag("text", name, x=left, y=y + 4, class_="name") if len(name) > 1 else badge(curve.index, left, y - 6)
        yield tag("g", label, class_=f"r{curve.index}")


def _heights(path: Sequence[tuple[float, float]], left: float, right: float) -> list[float]:
    """How high a curve runs at both ends and in the middle of a stretch."""
    return [
        y + (next_y - y) * (at - x) / (next_x - x)
        for (x, y), (next_x, next_y) in itertools.pairwise(path)
        for at in (left, (left + right) / 2, right)
        if x <= at < next_x
    ]


def _free_height(wish: float, written: Sequence[float], drawn: Sequence[float], frame: Frame) -> float:
    """The height nearest to the wish where no name is written and, if there is one near, no curve drawn."""
    nearby = [y for distance in range(0, HEIGHT, 2) for y in (wish - distance, wish + distance)]
    inside = [y for y in nearby if TOP - 4 <= y <= frame.y.start - 2]
    free = [y for y in inside if all(abs(y - other) >= LABEL_HEIGHT for other in written)]
    clear = [y for y in free if all(abs(y - other) >= 0.7 * LABEL_HEIGHT for other in drawn)]
    if clear and abs(clear[0] - wish) <= 3 * LABEL_HEIGHT:
        return clear[0]
    return free[0] if free else wish
