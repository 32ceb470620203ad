"""Run folders as training writes them, small and made up, for the tests of what reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

LAYERS = {"conv1.weight": 500, "fc.weight": 12_800}


def step_event(step: int, bytes_per_step: int = 1000, step_s: float = 0.02, **changes: Any) -> Event:
    """The line that training logs after some steps; half of a step is communication."""
    return {
        "event": "step", "step": step, "epoch": step / 100, "seconds": step * step_s, "loss": 2 / (1 + step), "lr": 0.1,
        "bytes_sent": step * bytes_per_step, "bytes_received": step * bytes_per_step,
        "step_s": step_s, "compute_s": step_s / 2, "exposed_s": step_s / 2,
        "encode_s": 0.001, "exchange_s": 0.002, "decode_s": 0.001, **changes,
    }  # fmt: skip


def eval_event(step: int, value: float, bytes_per_step: int = 1000, step_s: float = 0.02) -> Event:
    total = step * bytes_per_step
    return {
        "event": "eval", "step": step, "epoch": step / 100, "seconds": step * step_s, "bytes_sent": total,
        "bytes_received": total, "value": value, "loss": 0.5,
    }  # fmt: skip


def layers_event(step: int) -> Event:
    measured = {"density": 0.4 / (1 + step / 100), "scaler": 0.01 / (1 + step), "relative_error": 1.2}
    measured |= {"bits": 1.1 / (1 + step / 100), "least_bits": 1.0 / (1 + step / 100)}
    return {"event": "layers", "step": step, "layers": {name: {"numel": n, **measured} for name, n in LAYERS.items()}}


def events_of_a_run(
    num_steps: int = 200,
    bytes_per_step: int = 1000,
    step_s: float = 0.02,
    metric: str = "accuracy",
    log_every: int = 10,
    **end: Any,
) -> list[Event]:
    """A run that goes well: accuracy nears one, or perplexity one hundred."""
    events: list[Event] = [{"event": "start", "parameters": 13_300, "metric": metric, "target": None}]
    values = {"accuracy": lambda step: 1 - 0.9 * math.exp(-step / 60), "perplexity": lambda step: 100 + 900 / step}
    found: list[float] = []
    if metric:
        events[0]["target"] = {"accuracy": 0.9, "perplexity": 110.0}[metric]
    for step in range(log_every, num_steps + 1, log_every):
        events.append(step_event(step, bytes_per_step, step_s))
        if metric and step % (5 * log_every) == 0:
            found.append(values[metric](step))
            events.extend((eval_event(step, found[-1], bytes_per_step, step_s), layers_event(step)))
    total = num_steps * bytes_per_step
    events.append({
        "event": "end", "step": num_steps, "seconds": num_steps * step_s, "median_step_s": step_s,
        "steps_per_s": 1 / step_s, "bytes_sent": total, "bytes_received": total, "final": found[-1] if found else None,
        "best": (max if metric == "accuracy" else min)(found, default=None), "seconds_to_target": None,
        "steps_to_target": None, "bytes_to_target": None, "link": None, **end,
    })  # fmt: skip
    return events


def write_run(folder: Path, events: Sequence[Event], method: str = "terngrad", **settings: Any) -> Path:
    """Writes the folder; what is not a finite number is written as Python writes it, NaN or Infinity."""
    config = {
        "recipe": "digits", "method": method, "workers": 2, "servers": 0, "virtual_workers": 0, "link": "100mbit",
        "exchange": "auto", "steps": 200, "batch": 64, "seed": 0, "lr": 0.1, **settings,
    }  # fmt: skip
    environment = {"python": "3.11", "torch": "2.13", "terngrad": "0.1", "cpu": "some", "cpus": 2}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "environment.json").write_text(json.dumps(environment))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder
