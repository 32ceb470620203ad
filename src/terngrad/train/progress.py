"""Shows how a run goes on, on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from terngrad.train.config import TrainConfig, recipe_named
from terngrad.train.runs import Event

_LINE_EVERY_S = 5.0


def show_progress(config: TrainConfig, console: Console | None = None) -> Bar | Lines:
    """What suits the console; a context manager, to be called with every event of rank 0."""
    console = console or Console(stderr=True, highlight=False)
    return Bar(config, console) if console.is_terminal else Lines(config, console)


class Bar(AbstractContextManager["Bar"]):
    """A progress bar with the latest loss and evaluation."""

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self._words = _Words(config)
        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[latest]}"),
        )  # fmt: skip
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task(config.method, total=config.steps, latest="")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        self._words.note(event)
        if event["event"] == "decision":
            self._bar.console.print(decision_text(event), soft_wrap=True, markup=False)
        elif "step" in event:
            self._bar.update(self._task, completed=event["step"], latest=self._words.latest)


class Lines(AbstractContextManager["Lines"]):
    """A line for every evaluation and decision, and now and then for a step."""

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self._console = console
        self._config = config
        self._words = _Words(config)
        self._last = 0.0

    def __exit__(self, *error: object) -> None:
        """Nothing to end."""

    def __call__(self, event: Event) -> None:
        self._words.note(event)
        due = event["event"] == "step" and time.monotonic() - self._last > _LINE_EVERY_S
        if due or event["event"] == "eval":
            self._last = time.monotonic()
            where = f"{self._config.method}: step {event['step']}/{self._config.steps}"
            self._console.print(f"{where}, {self._words.latest}", soft_wrap=True, markup=False)
        elif event["event"] == "decision":
            self._console.print(f"{self._config.method}: {decision_text(event)}", soft_wrap=True, markup=False)


class _Words:
    """The latest figures, in words."""

    def __init__(self, config: TrainConfig) -> None:
        self._metric = recipe_named(config.recipe).metric
        self._figures: dict[str, str] = {}

    def note(self, event: dict[str, Any]) -> None:
        if event["event"] == "step":
            self._figures["loss"] = f"loss {number(event['loss'])}"
            self._figures["step"] = f"{1e3 * event['step_s']:.1f} ms a step"
        elif event["event"] == "eval":
            self._figures["eval"] = f"{self._metric} {metric_text(self._metric, event['value'])}"

    @property
    def latest(self) -> str:
        return ", ".join(self._figures.values())


def decision_text(event: Event) -> str:
    """What "auto" has chosen, and why."""
    return f"from step {event['step']} on {event['method']} by {event['exchange']}: {event['reason']}"


def number(value: float | None) -> str:
    """Four digits, or that it is not a number."""
    return "not finite" if value is None else f"{value:.4g}"


def metric_text(metric: str, value: float | None) -> str:
    """A metric as one reads it: accuracies are per cent."""
    if value is None:
        return "-"
    return f"{value:.2%}" if metric == "accuracy" else number(value)
