"""What a report reads from a run, made safe to draw: superseded events dropped, numbers checked.

A resumed run repeats the steps after its last checkpoint; the later account of a step counts. A number that is missing
or not finite is NaN here, and a gap in a plot.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

Event = Mapping[str, Any]
PHASES = ("compute", "exposed", "encode", "exchange", "decode")
TOO_LARGE = 1e100
LOWER_IS_BETTER = {"perplexity", "loss"}


class RunRecord(Protocol):
    """What a report needs of a run; `terngrad.train.Run` has it."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def environment(self) -> Mapping[str, Any]: ...
    @property
    def start(self) -> Event | None: ...
    @property
    def steps(self) -> Sequence[Event]: ...
    @property
    def evals(self) -> Sequence[Event]: ...
    @property
    def layers(self) -> Sequence[Event]: ...
    @property
    def end(self) -> Event | None: ...


class Point(NamedTuple):
    """A value and where training stood when it was measured; NaN where it is not known."""

    step: float
    seconds: float
    nbytes: float  # through the sockets of rank 0, both directions
    value: float

    def finite(self) -> bool:
        return math.isfinite(self.value)


@dataclass(frozen=True)
class LayerTrace:
    """What was measured of one layer: (step, value) for each quantity."""

    name: str
    numel: int
    quantities: Mapping[str, Sequence[tuple[float, float]]]


def number(value: object) -> float | None:
    """A number that can be drawn, or None: infinities and what is on its way there are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < TOO_LARGE:
        return None
    return float(value)


def entry(event: Event | None, key: str) -> float | None:
    """A finite number of an event, or None."""
    return None if event is None else number(event.get(key))


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings as text, those of nested mappings under dotted names."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            found[f"{prefix}{key}"] = value
        else:
            found[f"{prefix}{key}"] = json.dumps(value, default=str)
    return found


def latest(events: Iterable[Event]) -> list[Event]:
    """The events in the order of their steps, without those that a resumed run did once more."""
    kept: list[Event] = []
    for event in events:
        step = entry(event, "step")
        if step is None:
            continue
        while kept and kept[-1]["step"] >= step:
            kept.pop()
        kept.append(event)
    return kept


def _point(event: Event, key: str) -> Point:
    sent, received = entry(event, "bytes_sent"), entry(event, "bytes_received")
    seconds, value = entry(event, "seconds"), entry(event, key)
    return Point(
        step=float(event["step"]),
        seconds=math.nan if seconds is None else seconds,
        nbytes=math.nan if sent is None or received is None else sent + received,
        value=math.nan if value is None else value,
    )


def _points(events: Sequence[Event], key: str) -> list[Point]:
    return [_point(event, key) for event in events if key in event]


class Trace:
    """One run, read for the report."""

    def __init__(self, run: RunRecord) -> None:
        self.name = run.path.name or str(run.path)
        self.config = dict(run.config)
        self.settings = flatten(run.config)
        self.intervals = latest(run.steps)
        self.loss = _points(self.intervals, "loss")
        self.values = _points(latest(run.evals), "value")
        self.layers = _layers(latest(run.layers))
        start = run.start or {}
        self.metric = str(start.get("metric") or "")
        self.target = entry(start, "target")
        self.num_parameters = int(entry(start, "parameters") or 0)
        self.num_steps = max((point.step for point in [*self.loss, *self.values]), default=0.0)
        end_step = entry(run.end, "step")
        # A run that was resumed beyond its end and then stopped has not ended.
        self.end = run.end if end_step is not None and end_step >= self.num_steps else None
        link = (run.end or {}).get("link")
        self.environment = flatten({**run.environment, **({"link": link} if link else {})})

    @property
    def recipe(self) -> str:
        return str(self.config.get("recipe") or "run")

    @property
    def method(self) -> str:
        return str(self.config.get("method") or self.name)

    @property
    def communicates(self) -> bool:
        """Whether it sends gradients: one that does not is a bound, and no competitor."""
        return self.method != "none"

    def last_total(self, key: str) -> float | None:
        """A running total at its latest, such as the bytes sent since the start."""
        if (total := entry(self.end, key)) is not None:
            return total
        return next((found for event in reversed(self.intervals) if (found := entry(event, key)) is not None), None)

    def phase_means(self) -> dict[str, float]:
        """Seconds of a step in each phase that is known, and of the step: means over the run.

        The first interval is left out where there are others: it has the connections and first calls in it.
        """
        previous = [{"step": 0}, *self.intervals]
        weights = [event["step"] - before["step"] or 1 for before, event in zip(previous, self.intervals, strict=False)]
        measured = list(zip(weights, self.intervals, strict=True))
        measured = measured[1:] or measured
        means = {}
        for phase in ("step", *PHASES):
            found = [(weight, entry(event, f"{phase}_s")) for weight, event in measured]
            known = [(weight, seconds) for weight, seconds in found if seconds is not None]
            if known:
                means[phase] = sum(weight * seconds for weight, seconds in known) / sum(weight for weight, _ in known)
        return means


def _layers(events: Sequence[Event]) -> list[LayerTrace]:
    """The layers in the order of the model, with what was measured of each over the steps."""
    numels: dict[str, int] = {}
    series: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for event in events:
        for name, measured in (event.get("layers") or {}).items():
            numels[name] = int(entry(measured, "numel") or 0)
            quantities = series.setdefault(name, {})
            for quantity in measured:
                if quantity != "numel" and (value := entry(measured, quantity)) is not None:
                    quantities.setdefault(quantity, []).append((float(event["step"]), value))
    return [LayerTrace(name, numels[name], quantities) for name, quantities in series.items()]
