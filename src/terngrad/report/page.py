"""The report as one HTML page that needs nothing else: no network, no fonts, and for its plots no script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from terngrad.report import figures, headline, layers, tables
from terngrad.report.bars import key_of_phases, step_chart
from terngrad.report.lines import Curve, line_chart
from terngrad.report.markup import Markup, escape, join, json_block, tag
from terngrad.report.palette import page_style, resource
from terngrad.report.records import RunRecord
from terngrad.report.summary import Group, differing, group_runs

AXIS_NAMES = {"steps": "Steps", "seconds": "Seconds", "bytes": "Bytes"}
DEFAULT_AXIS = "seconds"
ChartData = dict[str, dict[str, Any]]


def write_report(runs: Sequence[RunRecord], path: str | Path, title: str | None = None) -> Path:
    """Writes the page, and gives its path. The same runs give the same bytes.

    Ratios and speed-ups are against the first run of each recipe.
    """
    target = Path(path)
    target.write_text(render(group_runs(runs), title), encoding="utf-8", newline="\n")
    return target


def render(groups: Sequence[Group], title: str | None = None) -> str:
    """The text of the page."""
    data: ChartData = {}
    # A title of its own making says recipe, workers and link already.
    named = len(groups) > 1 or title is not None
    sections = [_section(group, number, data, named) for number, group in enumerate(groups)]
    title = title or headline.default_title(groups)
    return fill_page("terngrad report", title, _contents(groups), sections, resource("notes.html"), data)


def fill_page(
    kicker: str, title: str, contents: Markup, sections: Sequence[Markup], notes: str, data: ChartData
) -> str:
    """A page of these parts, which needs nothing else."""
    style, script = page_style(), resource("page.js")
    return Template(resource("page.html")).substitute(
        kicker=escape(kicker),
        title=escape(title),
        contents=contents,
        sections=join(sections, "\n"),
        notes=notes,
        data=json_block("data", data),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
    )


def _hash(text: str) -> str:
    """How the page's own policy names the one script and the one style sheet that it allows."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _contents(groups: Sequence[Group]) -> Markup:
    if len(groups) == 1:
        return Markup()
    return tag("nav", *(tag("a", group.recipe, href=f"#recipe-{number}") for number, group in enumerate(groups)))


def _section(group: Group, number: int, data: ChartData, named: bool) -> Markup:
    """Everything about one recipe."""
    parts = [
        tag("h2", group.recipe) if named else "",
        headline.facts_line(group, with_conditions=named),
        headline.key_figures(group),
        tables.summary_table(group),
        _learning(group, number, data),
        _step_time(group),
        _layers(group),
        _configuration(group),
    ]
    return tag("section", *parts, class_="recipe", id=f"recipe-{number}")


def _learning(group: Group, number: int, data: ChartData) -> Markup:
    """Loss and metric, each against steps, seconds and bytes: all are drawn, and the chosen one is shown."""
    charts = []
    losses, values = figures.loss_curves(group), figures.metric_curves(group)
    if values:
        name = f"test {group.metric or 'value'}"
        charts.append(_figure(name, values, f"{number}-metric", group.metric, group.target, data))
    if losses:
        charts.append(_figure("training loss", losses, f"{number}-loss", "loss", None, data))
    if not charts:
        return Markup()
    choice = [
        tag("input", type="radio", name=f"axis-{number}", id=f"axis-{number}-{axis}",
            class_=f"axis-choice x-{axis}", checked=axis == DEFAULT_AXIS)
        for axis in AXIS_NAMES
    ]  # fmt: skip
    switch = [
        tag("label", title, for_=f"axis-{number}-{axis}", class_=f"to-{axis}") for axis, title in AXIS_NAMES.items()
    ]
    return join(
        [
            tag("h3", "Learning"),
            tag(
                "fieldset",
                *choice,
                tag("div", *switch, class_="switch"),
                _legend(group, number),
                tag("div", *charts, class_="figures"),
                class_="learning",
                aria_label="what the horizontal axis shows",
            ),
        ]
    )


def _figure(name: str, curves: Sequence[Curve], key: str, metric: str, target: float | None, data: ChartData) -> Markup:
    data[key] = {"metric": metric, "runs": figures.chart_data(curves)}
    charts = [line_chart(curves, axis, metric, name, target).element() for axis in AXIS_NAMES]
    return tag("figure", tag("figcaption", name.capitalize()), *charts, data_chart=key)


def _legend(group: Group, number: int) -> Markup:
    """The runs, each with a box that hides its curves."""
    items = []
    for entry in group.entries:
        identifier = f"show-{number}-{entry.index}"
        box = tag("input", type="checkbox", id=identifier, class_=f"show r{entry.index}", checked=True)
        items.append(tag("li", box, tag("label", tables.run_name(entry), for_=identifier)))
    return tag("ul", *items, class_="legend")


def _step_time(group: Group) -> Markup:
    times = figures.step_times(group)
    if not times:
        return Markup()
    title = "time of a step"
    chart = tag("figure", tag("figcaption", "Mean time of a step"), key_of_phases(), step_chart(times, title).element())
    note = tag(
        "p",
        "Thick: the step as training sees it. Thin: the lane, which works beside the backward pass; it is on the same "
        "scale, but does not add to the step. Means without the first logged interval.",
        class_="note",
    )
    table = tag("div", tables.phase_table(times, group.entries), note)
    return join([tag("h3", "Where the time of a step goes"), tag("div", chart, table, class_="figures")])


def _layers(group: Group) -> Markup:
    measured = [entry for entry in group.entries if entry.trace.layers]
    if not measured:
        return Markup()
    parts = [
        tag(
            "details",
            tag("summary", tables.run_name(entry)),
            layers.layer_table(entry.trace.layers, entry.index),
            open=entry is measured[0],
        )
        for entry in measured
    ]
    return join([tag("h3", "Layers over time"), *parts])


def _configuration(group: Group) -> Markup:
    keys = differing([entry.trace for entry in group.entries])
    everything = [
        ("All settings", [entry.trace.settings for entry in group.entries]),
        ("Environment", [entry.trace.environment for entry in group.entries]),
    ]
    folds = [
        tag("details", tag("summary", name), tables.settings_table(group.entries, settings, name.lower()))
        for name, settings in everything
        if any(settings)
    ]
    return join([tag("h3", "Configuration"), tables.differences_table(group, keys), *folds])
