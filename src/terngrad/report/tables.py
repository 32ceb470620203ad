"""The tables of the page: the summary, the phases of a step, settings and environment."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from terngrad.report.bars import LANE, StepTime
from terngrad.report.markup import Markup, join, scrolling, tag
from terngrad.report.palette import run_classes
from terngrad.report.records import PHASES
from terngrad.report.summary import Entry, Group
from terngrad.report.text import BYTES, MISSING, SECONDS, STEP_SECONDS, column, metric_text, target_text, times


@dataclass(frozen=True)
class Column:
    """A column of figures: under which heading, and which of its values is the best."""

    heading: str
    title: str
    texts: Sequence[str]
    values: Sequence[float | None] = ()
    lower_is_better: bool = False

    def best(self, contenders: Sequence[bool]) -> float | None:
        """The best value, if there is something to choose from."""
        known = [value for value, is_one in zip(self.values, contenders, strict=True) if is_one and value is not None]
        if len(set(known)) < 2:
            return None
        return min(known) if self.lower_is_better else max(known)


def chip(entry: Entry) -> Markup:
    """The letter of a run in its colour."""
    return tag("span", entry.letter, class_=f"chip {run_classes(entry.index)}", aria_hidden="true")


def run_name(entry: Entry) -> Markup:
    """Letter and name of a run."""
    parts = join(re.split(r"(?<=[:,])", entry.label), tag("wbr"))  # where a narrow column may break it
    return tag("span", chip(entry), tag("span", parts, class_="run-name"), class_="run")


def summary_table(group: Group) -> Markup:
    """What came out of every run; the best of each column stands out."""
    columns = _columns(group)
    contenders = [entry.trace.communicates for entry in group.entries]
    bests = [column.best(contenders) if column.values else None for column in columns]
    rows = []
    for row, entry in enumerate(group.entries):
        cells = [tag("th", run_name(entry), state_note(entry), scope="row")]
        for found, best in zip(columns, bests, strict=True):
            wins = best is not None and found.values[row] == best and contenders[row]
            cells.append(tag("td", found.texts[row], class_="number best" if wins else "number"))
        rows.append(tag("tr", *cells))
    table = tag("table", _summary_head(columns), tag("tbody", *rows), class_="summary")
    return scrolling(table, "summary of the runs")


def state_note(entry: Entry) -> Markup:
    """What a reader must know of a run that is not simply finished."""
    notes = []
    trace = entry.trace
    if trace.end is None:
        planned = trace.settings.get("steps", "")
        of = f" of {int(planned):,}" if planned.isdecimal() else ""
        notes.append(tag("small", f"not finished: step {trace.num_steps:,.0f}{of}", class_="state warning"))
    if (lost := next((point.step for point in trace.loss if not point.finite()), None)) is not None:
        notes.append(tag("small", f"loss not finite at step {lost:,.0f}", class_="state warning"))
    if not trace.communicates:
        notes.append(tag("small", "sends nothing: a bound, not a method", class_="state"))
    return join(notes)


def _summary_head(columns: Sequence[Column]) -> Markup:
    headings = [tag("th", "method", scope="col", rowspan=2)]
    for heading, part in itertools.groupby(columns, key=lambda found: found.heading):
        headings.append(tag("th", tag("span", heading), scope="colgroup", colspan=len(list(part)), class_="over"))
    titles = [tag("th", found.title, scope="col", class_="number") for found in columns]
    return tag("thead", tag("tr", *headings), tag("tr", *titles))


def _columns(group: Group) -> list[Column]:
    figures = [entry.summary for entry in group.entries]
    columns = []
    if group.metric:
        for title, values in (("best", [f.best for f in figures]), ("final", [f.final for f in figures])):
            texts = [MISSING if value is None else metric_text(value, group.metric) for value in values]
            columns.append(Column(group.metric, title, texts, values, group.lower_is_better))
    sent, received = [f.sent for f in figures], [f.received for f in figures]
    unit, texts = column([*sent, *received], BYTES)
    columns.append(Column("bytes a step", f"sent, {unit}", texts[: len(sent)], sent, True))
    columns.append(Column("bytes a step", f"received, {unit}", texts[len(sent) :], received, True))
    if len(group.entries) > 1:
        columns.append(_factors("bytes a step", "ratio", [group.ratio(entry) for entry in group.entries]))
    steps = [f.step_s for f in figures]
    unit, texts = column(steps, STEP_SECONDS)
    columns.append(Column("time of a step", f"median, {unit}", texts, steps, True))
    if len(group.entries) > 1:
        columns.append(_factors("time of a step", "speed-up", [group.speed_up(entry) for entry in group.entries]))
    if group.target is not None:
        columns.append(_to_target(group))
    return columns


def _factors(heading: str, title: str, ratios: Sequence[float | None]) -> Column:
    texts = [MISSING if ratio is None else times(ratio) for ratio in ratios]
    return Column(heading, title, texts, ratios)


def _to_target(group: Group) -> Column:
    values = [entry.summary.to_target_s for entry in group.entries]
    unit, texts = column(values, SECONDS[2:])
    missed = ["not reached" if entry.trace.end and entry.trace.values else MISSING for entry in group.entries]
    texts = [miss if value is None else text for value, text, miss in zip(values, texts, missed, strict=True)]
    target = target_text(group.target or 0.0, group.metric)
    return Column("time to target", f"{target}, {unit}", texts, values, True)


def phase_table(times_of: Sequence[StepTime], entries: Sequence[Entry]) -> Markup:
    """The figures of the bars: a row for each phase, a column for each run."""
    heads = [tag("th", chip(entries[time.index]), scope="col", class_="number") for time in times_of]
    rows = []
    for name in ("step", *PHASES):
        unit, texts = column([time.phases.get(name) for time in times_of], STEP_SECONDS)
        title = f"{'lane: ' if name in LANE else ''}{name}, {unit}"
        cells = [tag("td", text, class_="number") for text in texts]
        rows.append(tag("tr", tag("th", title, scope="row"), *cells))
    head = tag("thead", tag("tr", tag("th", "mean of a step", scope="col"), *heads))
    return scrolling(tag("table", head, tag("tbody", *rows)), "phases of a step")


def differences_table(group: Group, keys: Sequence[str]) -> Markup:
    """The settings that are not the same in all runs, a row for each run."""
    head = [tag("th", "method", scope="col"), tag("th", "folder", scope="col")]
    head += [tag("th", key, scope="col") for key in keys if key != "method"]
    rows = []
    for entry in group.entries:
        values = [entry.trace.settings.get(key, MISSING) for key in keys if key != "method"]
        cells = [tag("td", value) for value in (entry.trace.name, *values)]
        rows.append(tag("tr", tag("th", run_name(entry), scope="row"), *cells))
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="differences")
    return scrolling(table, "differences of the runs")


def settings_table(entries: Sequence[Entry], settings: Sequence[Mapping[str, str]], label: str) -> Markup:
    """All settings, a column for each run; one column where all runs agree on everything."""
    keys = list(dict.fromkeys(key for mapping in settings for key in mapping))
    differ = {key for key in keys if len({mapping.get(key) for mapping in settings}) > 1}
    if not differ:
        entries, settings = entries[:1], settings[:1]
    heads = [tag("th", chip(entry), scope="col") if differ else tag("th", "all runs", scope="col") for entry in entries]
    rows = [
        tag(
            "tr",
            tag("th", key, scope="row"),
            *(tag("td", mapping.get(key, MISSING)) for mapping in settings),
            class_="differs" if key in differ else None,
        )
        for key in keys
    ]
    head = tag("thead", tag("tr", tag("th", "", scope="col"), *heads))
    return scrolling(tag("table", head, tag("tbody", *rows), class_="settings"), label)
