"""Runs compared: grouped by recipe, named by what tells them apart, and measured against the first."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from terngrad.errors import ConfigurationError
from terngrad.report.palette import LETTERS, MAX_RUNS
from terngrad.report.records import LOWER_IS_BETTER, RunRecord, Trace, entry, number

# Runs that differ in these are not one experiment, so their names always say it.
CONDITIONS = ("workers", "servers", "virtual_workers", "link")
MOST_DIFFERENCES = 3


@dataclass(frozen=True)
class Summary:
    """The figures of a run; None where they are not known. Bytes are those of rank 0."""

    final: float | None
    best: float | None
    sent: float | None  # bytes a step
    received: float | None  # bytes a step
    step_s: float | None  # median
    to_target_s: float | None

    @property
    def traffic(self) -> float | None:
        """Bytes a step in both directions."""
        return None if self.sent is None or self.received is None else self.sent + self.received


@dataclass(frozen=True)
class Entry:
    """A run in its group."""

    index: int
    label: str
    trace: Trace
    summary: Summary

    @property
    def letter(self) -> str:
        return LETTERS[self.index]


@dataclass(frozen=True)
class Group:
    """The runs of one recipe, in the order they were given."""

    recipe: str
    metric: str
    target: float | None
    entries: Sequence[Entry]

    @property
    def lower_is_better(self) -> bool:
        return self.metric in LOWER_IS_BETTER

    def ratio(self, entry: Entry) -> float | None:
        """How many times fewer bytes than the first run; of what is no method, none."""
        if not entry.trace.communicates:
            return None
        return _quotient(self.entries[0].summary.traffic, entry.summary.traffic)

    def speed_up(self, entry: Entry) -> float | None:
        """How many times shorter than the first run's step."""
        return _quotient(self.entries[0].summary.step_s, entry.summary.step_s)


def _quotient(first: float | None, this: float | None) -> float | None:
    return first / this if first and this else None


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """The runs by recipe, in the order in which recipes first appear."""
    if not runs:
        raise ConfigurationError("a report of no runs: pass at least one run folder")
    by_recipe: dict[str, list[Trace]] = {}
    for run in runs:
        trace = Trace(run)
        by_recipe.setdefault(trace.recipe, []).append(trace)
    return [_group(recipe, traces) for recipe, traces in by_recipe.items()]


def _group(recipe: str, traces: Sequence[Trace]) -> Group:
    if len(traces) > MAX_RUNS:
        raise ConfigurationError(
            f"a report of {len(traces)} runs of {recipe}: at most {MAX_RUNS} can be told apart; make several reports"
        )
    metric = next((trace.metric for trace in traces if trace.metric), "")
    target = next((trace.target for trace in traces if trace.target is not None), None)
    entries = [
        Entry(index, label, trace, summarize(trace, metric))
        for index, (label, trace) in enumerate(zip(labels(traces), traces, strict=True))
    ]
    return Group(recipe, metric, target, entries)


def summarize(trace: Trace, metric: str) -> Summary:
    """From the end of the run, or from what there is of one that has not ended."""
    values = [point.value for point in trace.values if point.finite()]
    best = (min if metric in LOWER_IS_BETTER else max)(values, default=None)
    final = trace.values[-1].value if trace.values and trace.values[-1].finite() else None
    medians = [seconds for event in trace.intervals if (seconds := entry(event, "step_s")) is not None]
    median = statistics.median(medians) if medians else None
    return Summary(
        final=_first(entry(trace.end, "final"), final),
        best=_first(entry(trace.end, "best"), best),
        sent=_per_step(trace, "bytes_sent"),
        received=_per_step(trace, "bytes_received"),
        step_s=_first(entry(trace.end, "median_step_s"), median),
        to_target_s=_first(entry(trace.end, "seconds_to_target"), _seconds_to_target(trace)),
    )


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _per_step(trace: Trace, key: str) -> float | None:
    total, steps = trace.last_total(key), trace.last_total("step")
    return total / steps if total is not None and steps else None


def _seconds_to_target(trace: Trace) -> float | None:
    if trace.target is None:
        return None
    sign = -1 if trace.metric in LOWER_IS_BETTER else 1
    reached = [point for point in trace.values if point.finite() and sign * point.value >= sign * trace.target]
    return number(reached[0].seconds) if reached else None


def labels(traces: Sequence[Trace]) -> list[str]:
    """A name for each run: its method, its conditions where they vary, then whatever tells it from its namesakes."""
    conditions = [key for key in CONDITIONS if key in differing(traces)]
    names = [_name(trace, conditions) for trace in traces]
    for name, count in Counter(names).items():
        if count > 1:
            namesakes = [index for index, other in enumerate(names) if other == name]
            for index, longer in zip(namesakes, _told_apart([traces[i] for i in namesakes], name), strict=True):
                names[index] = longer
    return names


def differing(traces: Sequence[Trace]) -> list[str]:
    """The settings that are not the same in all runs."""
    keys = list(dict.fromkeys(key for trace in traces for key in trace.settings))
    return [key for key in keys if len({trace.settings.get(key) for trace in traces}) > 1]


def _name(trace: Trace, keys: Sequence[str]) -> str:
    return ", ".join([trace.method, *(f"{key}={trace.settings.get(key, '')}" for key in keys)])


def _told_apart(traces: Sequence[Trace], name: str) -> list[str]:
    """Names for runs that share one: by their settings if a few will do, else by their folders."""
    keys = differing(traces)
    if 0 < len(keys) <= MOST_DIFFERENCES:
        names = [", ".join([name, *(f"{key}={trace.settings.get(key, '')}" for key in keys)]) for trace in traces]
    else:
        names = [f"{name}, {trace.name}" for trace in traces]
    if len(set(names)) == len(names):
        return names
    return [f"{name} #{position}" for position, name in enumerate(names, 1)]
