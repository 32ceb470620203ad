"""The figures of a group of runs: which curves and bars there are, from its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from terngrad.report.bars import StepTime
from terngrad.report.lines import Curve
from terngrad.report.records import Point
from terngrad.report.series import running_mean, thin
from terngrad.report.summary import Group

MOST_POINTS = 320  # of a curve: about one for each pixel
SMOOTH_FROM = 100  # points from which on a loss is a cloud
SMOOTHED_SHARE = 40  # a smoothed point is the mean of this part of the run


def metric_curves(group: Group) -> list[Curve]:
    """The evaluations of each run that has any."""
    return [
        Curve(entry.index, entry.label, thin(entry.trace.values, MOST_POINTS))
        for entry in group.entries
        if any(point.finite() for point in entry.trace.values)
    ]


def loss_curves(group: Group) -> list[Curve]:
    """The training loss of each run; smoothed where it was logged often, with the unsmoothed one behind it."""
    curves = []
    for entry in group.entries:
        points = entry.trace.loss
        raw = thin(points, MOST_POINTS)
        if not any(point.finite() for point in points):
            continue
        if len(points) < SMOOTH_FROM:
            curves.append(Curve(entry.index, entry.label, raw))
        else:
            smooth = thin(running_mean(points, max(5, len(points) // SMOOTHED_SHARE)), MOST_POINTS // 2)
            curves.append(Curve(entry.index, entry.label, smooth, raw))
    return curves


def step_times(group: Group) -> list[StepTime]:
    """The time of a step of each run that tells it."""
    times = [StepTime(entry.index, entry.label, entry.trace.phase_means()) for entry in group.entries]
    return [time for time in times if time.step_parts]


def chart_data(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The logged points of the curves, for the page's script to show their values."""
    return [
        {
            "run": curve.index,
            "label": curve.label,
            **{name: _column(curve.raw or curve.points, name) for name in ("step", "seconds", "nbytes", "value")},
        }
        for curve in curves
    ]


def _column(points: Sequence[Point], name: str) -> list[float | int | None]:
    return [_short(getattr(point, name)) for point in points]


def _short(value: float) -> float | int | None:
    """Six digits, which is more than a reader sees; null for a gap."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded
