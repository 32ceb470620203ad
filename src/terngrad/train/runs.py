"""Run folders: where a training run leaves its settings, its metrics and its checkpoints, and how to read them back.

RUN/config.json       what was asked for
RUN/environment.json  what it ran on
RUN/metrics.jsonl     what happened, one event a line; the file grows while the run goes on
RUN/checkpoints/      step-N/rankR.pt
RUN/logs/             what the workers wrote to standard error
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terngrad.errors import ConfigurationError

Event = dict[str, Any]

CONFIG, ENVIRONMENT, METRICS, CHECKPOINTS, LOGS = (
    "config.json", "environment.json", "metrics.jsonl", "checkpoints", "logs",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run as it stands in its folder; one that is still going on, or was killed, has no end."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    events: list[Event]

    def of_kind(self, kind: str) -> list[Event]:
        """The events of one kind, in order."""
        return [event for event in self.events if event["event"] == kind]

    @property
    def start(self) -> Event | None:
        return next(iter(self.of_kind("start")), None)

    @property
    def steps(self) -> list[Event]:
        return self.of_kind("step")

    @property
    def evals(self) -> list[Event]:
        return self.of_kind("eval")

    @property
    def layers(self) -> list[Event]:
        return self.of_kind("layers")

    @property
    def end(self) -> Event | None:
        return next(reversed(self.of_kind("end")), None)


def read_run(path: Path | str) -> Run:
    """Reads a run folder; a last line that was not written to its end is left out."""
    folder = Path(path)
    config = _read_json(folder / CONFIG)
    environment = _read_json(folder / ENVIRONMENT) if (folder / ENVIRONMENT).exists() else {}
    return Run(folder, config, environment, read_events(folder / METRICS))


def read_events(path: Path) -> list[Event]:
    """All whole lines of a metrics file; none if there is no file yet."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [_parse(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{where} is no JSON ({error}); the run is damaged") from None
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_bytes(), str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(
            f"{path.parent} is not a run: it has no {path.name}; pass a folder that `terngrad train` has written"
        ) from None


def write_json(path: Path, value: object) -> None:
    """Writes a file so that it is either whole or not there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    temporary.replace(path)


def default_folder(recipe: str, method: str) -> Path:
    """runs/RECIPE-METHOD-<date-time>, with what a file name should not hold left out of the method."""
    now = dt.datetime.now(dt.timezone.utc).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{recipe}-{method_in_a_path(method)}-{now}"


def method_in_a_path(method: str) -> str:
    """A method's spec as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", method)


def check_new(folder: Path) -> None:
    """Refuses a folder that holds something already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(
            f"{folder} exists already and is not empty; pass another --out, or --resume {folder} to go on with that run"
        )
