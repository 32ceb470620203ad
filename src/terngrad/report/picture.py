"""One picture of a comparison, as an SVG file that stands alone: for a README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from terngrad.errors import ConfigurationError
from terngrad.report import bars, figures, lines
from terngrad.report.headline import conditions, workload
from terngrad.report.markup import Markup, tag
from terngrad.report.palette import picture_style
from terngrad.report.records import RunRecord
from terngrad.report.summary import Group, group_runs

GAP, HEADING, KEY = 32, 64, 28
STEP_TITLE = "mean time of a step"


def write_figure(runs: Sequence[RunRecord], path: str | Path) -> Path:
    """Writes the metric against seconds and the time of a step as SVG, a row for each recipe, and gives the path."""
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise ConfigurationError(f"write_figure({str(path)!r}): it writes SVG; pass a path that ends in .svg")
    target.write_text(draw(group_runs(runs)) + "\n", encoding="utf-8", newline="\n")
    return target


def draw(groups: Sequence[Group]) -> Markup:
    """The picture, on a background of its own so that it reads on any page."""
    rows, top = [], 8
    for group in groups:
        row, height = _row(group, top)
        rows.append(row)
        top += height
    width, height = lines.WIDTH + bars.WIDTH + 3 * GAP, top + 8
    background = tag("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=10, class_="background")
    return tag(
        "svg",
        tag("title", "; ".join(_heading(group) for group in groups)),
        tag("style", Markup(picture_style())),
        background,
        *rows,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
    )


def _heading(group: Group) -> str:
    return " · ".join([group.recipe, *conditions(group), *workload(group)[:1]])


def _row(group: Group, top: int) -> tuple[Markup, int]:
    """The panels of one recipe, side by side, and their height. A recipe of speed only has one of them."""
    parts = [tag("text", _heading(group), x=GAP, y=top + 26, class_="heading")]
    panels = []
    if values := figures.metric_curves(group):
        name = f"test {group.metric or 'value'}"
        panels.append((name, lines.line_chart(values, "seconds", group.metric, name, group.target)))
    if times := figures.step_times(group):
        panels.append((STEP_TITLE, bars.step_chart(times, "time of a step")))
    for column, (name, chart) in enumerate(panels):
        left = GAP + column * (chart.width + GAP)
        parts.append(tag("text", name.capitalize(), x=left, y=top + 52, class_="row-name"))
        parts.append(chart.element(x=left, y=top + HEADING, width=chart.width, height=chart.height))
        if name == STEP_TITLE:
            parts.append(bars.drawn_key(left + bars.LEFT, top + HEADING + chart.height + 12))
    return tag("g", *parts), HEADING + max((chart.height for _, chart in panels), default=0) + KEY
