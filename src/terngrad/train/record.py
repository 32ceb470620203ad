"""What rank 0 records: events to RUN/metrics.jsonl and to whoever watches, and what they come to at the end."""

from __future__ import annotations

import fcntl
import json
import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terngrad.errors import ConfigurationError
from terngrad.recipes import Recipe
from terngrad.train.runs import METRICS, Event, read_events

Watcher = Callable[[Event], None]


@dataclass
class Progress:
    """How far a run has come, all its lives together; a checkpoint holds it."""

    step: int = 0  # finished ones
    seconds: float = 0.0  # of training, without evaluation and checkpoints
    bytes_sent: int = 0
    bytes_received: int = 0
    step_s: list[float] = field(default_factory=list)  # of every step
    window: dict[str, float] = field(default_factory=dict)  # sums over the steps since the last line
    window_steps: int = 0
    metrics_bytes: int = 0  # length of metrics.jsonl

    def add(self, **sums: float) -> None:
        """Adds to the sums of the window."""
        for name, value in sums.items():
            self.window[name] = self.window.get(name, 0.0) + value

    def take_window(self) -> dict[str, float]:
        """Means over the steps since the last call."""
        means = {name: value / self.window_steps for name, value in self.window.items()}
        self.window, self.window_steps = {}, 0
        return means


class Recorder:
    """Writes events, each whole and at once. A file that is longer than what is continued is cut back."""

    def __init__(self, folder: Path, metrics_bytes: int, watchers: Sequence[Watcher]) -> None:
        self._path = folder / METRICS
        self._file = self._path.open("ab")
        self._lock()
        self._file.truncate(metrics_bytes)
        self._file.seek(0, os.SEEK_END)
        self._watchers = watchers

    def _lock(self) -> None:
        """Keeps others from writing; the kernel lets go of it when this process ends, however it ends."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigurationError(
                f"{self._path} is being written by another process: the run is still going on; wait for it, or end it"
            ) from None

    def write(self, kind: str, **values: Any) -> None:
        """Records an event. What is not finite becomes null, since JSON has no word for it."""
        event = _finite({"event": kind, **values})
        self._file.write(json.dumps(event).encode() + b"\n")
        self._file.flush()
        self.tell(event)

    def tell(self, event: Event) -> None:
        """Shows an event to the watchers only."""
        for watcher in self._watchers:
            watcher(event)

    def sync(self) -> int:
        """The length of the file, all of which is on disk now."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def events(self) -> list[Event]:
        """All events of the run so far."""
        return read_events(self._path)

    def close(self) -> None:
        self._file.close()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summarize(recipe: Recipe, progress: Progress, events: Sequence[Event]) -> dict[str, Any]:
    """The figures of a whole run: what the event "end" holds, but for the link."""
    every = [event for event in events if event["event"] == "eval"]
    evals = [event for event in every if event["value"] is not None]  # null: not finite
    better = min if recipe.metric == "perplexity" else max
    reached = next((event for event in evals if _reaches(recipe, event["value"])), None)
    return {
        "step": progress.step,
        "seconds": progress.seconds,
        "median_step_s": statistics.median(progress.step_s) if progress.step_s else None,
        "steps_per_s": progress.step / progress.seconds if progress.seconds else None,
        "bytes_sent": progress.bytes_sent,
        "bytes_received": progress.bytes_received,
        "best": better((event["value"] for event in evals), default=None),
        "final": every[-1]["value"] if every else None,
        "seconds_to_target": reached["seconds"] if reached else None,
        "steps_to_target": reached["step"] if reached else None,
        "bytes_to_target": reached["bytes_sent"] if reached else None,
    }


def _reaches(recipe: Recipe, value: float) -> bool:
    if recipe.target is None:
        return False
    return value <= recipe.target if recipe.metric == "perplexity" else value >= recipe.target
