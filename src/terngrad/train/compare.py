"""Several methods on one recipe, one after the other, and what they come to side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from terngrad.errors import ConfigurationError
from terngrad.lab import Lab, LabError
from terngrad.train.config import NO_LINK, TrainConfig
from terngrad.train.progress import show_progress
from terngrad.train.runs import Run, check_new, method_in_a_path
from terngrad.train.start import train


def split_methods(text: str) -> list[str]:
    """The specs in a list separated by commas; options follow theirs: "fp32,terngrad:clip=2,block=512,fp16"."""
    specs: list[str] = []
    for item in text.split(","):
        if "=" in item and ":" not in item and specs:
            specs[-1] += f"{',' if ':' in specs[-1] else ':'}{item}"
        elif item:
            specs.append(item)
    return specs


def check_comparison(configs: Sequence[TrainConfig]) -> None:
    """Raises unless there is something to compare and each has a folder of its own."""
    methods = [config.method for config in configs]
    if not methods:
        raise ConfigurationError("--methods: pass at least one, such as fp32,terngrad")
    twice = sorted({method for method in methods if methods.count(method) > 1})
    if twice:
        raise ConfigurationError(f"--methods: {', '.join(twice)} more than once; pass each method once")


def without_lab_if_refused(configs: Sequence[TrainConfig], tell: Callable[[str], None]) -> list[TrainConfig]:
    """The same runs; if this machine allows no lab, without a link, having told so."""
    try:
        if configs[0].link != NO_LINK:
            with Lab(num_hosts=configs[0].num_processes, link=configs[0].link):
                pass
    except LabError as error:
        tell(f"No lab here, so the workers share this machine without a limit on their link: {error}")
        return [dataclasses.replace(config, link=NO_LINK) for config in configs]
    return list(configs)


def compare(configs: Sequence[TrainConfig], folder: Path) -> list[Run]:
    """Trains with each of the settings, in folders below one."""
    check_new(folder)
    runs = []
    for config in configs:
        with show_progress(config) as watcher:
            runs.append(train(config, folder / method_in_a_path(config.method), watcher))
    return runs


def figures_of(run: Run) -> dict[str, Any]:
    """What a finished run comes to, as one row of a comparison."""
    start, end = run.start, run.end
    if start is None or end is None:
        raise ConfigurationError(f"{run.path}: this run has not come to its end; `terngrad train --resume {run.path}`")
    sent, received = (end[f"bytes_{way}"] / end["step"] for way in ("sent", "received"))
    return {
        "method": run.config["method"],
        "run": str(run.path),
        "metric": start["metric"],
        "final": end["final"],
        "best": end["best"],
        "target": start["target"],
        "steps": end["step"],
        "bytes_sent_per_step": sent,
        "bytes_received_per_step": received,
        "dense_bytes_per_step": start["dense_bytes_per_step"],
        "ratio": 2 * start["dense_bytes_per_step"] / (sent + received) if sent + received else None,  # both directions
        "median_step_s": end["median_step_s"],
        "seconds": end["seconds"],
        "seconds_to_target": end["seconds_to_target"],
        "steps_to_target": end["steps_to_target"],
        "bytes_to_target": end["bytes_to_target"],
        "link": end["link"],
    }
