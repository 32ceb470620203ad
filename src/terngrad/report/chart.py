"""Curves that belong to no run, such as predictions, as an SVG file that stands alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from terngrad.errors import ConfigurationError
from terngrad.report.lines import HEIGHT, WIDTH, Curve, line_chart
from terngrad.report.markup import Markup, tag
from terngrad.report.palette import LETTERS, badge, picture_style
from terngrad.report.records import Point

GAP, HEADING, KEY_ROW = 24, 56, 18


def write_chart(
    curves: Mapping[str, Sequence[tuple[float, float]]], path: str | Path, title: str, quantity: str
) -> Path:
    """Writes a quantity against the number of workers, a curve for each name, and gives the path."""
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise ConfigurationError(f"write_chart({str(path)!r}): it writes SVG; pass a path that ends in .svg")
    if not 1 <= len(curves) <= len(LETTERS):
        raise ConfigurationError(f"write_chart of {len(curves)} curves: it draws 1 to {len(LETTERS)}")
    target.write_text(_draw(curves, title, quantity) + "\n", encoding="utf-8", newline="\n")
    return target


def _draw(curves: Mapping[str, Sequence[tuple[float, float]]], title: str, quantity: str) -> Markup:
    drawn = [
        Curve(i, name, [Point(x, math.nan, math.nan, y) for x, y in points])
        for i, (name, points) in enumerate(curves.items())
    ]
    chart = line_chart(drawn, "workers", "", quantity)
    width, height = WIDTH + 2 * GAP, HEADING + HEIGHT + GAP + KEY_ROW * len(curves)
    key = []
    for i, name in enumerate(curves):
        top = HEADING + HEIGHT + 14 + KEY_ROW * i
        key += [badge(i, GAP + 6, top), tag("text", name, x=GAP + 28, y=top + 10, class_="name")]
    return tag(
        "svg",
        tag("title", title),
        tag("style", Markup(picture_style())),
        tag("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=10, class_="background"),
        tag("text", title, x=GAP, y=26, class_="heading"),
        tag("text", quantity.capitalize(), x=GAP, y=46, class_="row-name"),
        chart.element(x=GAP, y=HEADING, width=chart.width, height=chart.height),
        *key,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
    )
