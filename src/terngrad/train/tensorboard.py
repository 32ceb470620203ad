"""TensorBoard logs of a run, in RUN/tensorboard, where they were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from terngrad.errors import ConfigurationError
from terngrad.train.config import TrainConfig
from terngrad.train.record import Watcher
from terngrad.train.runs import Event

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_OF_KIND = {
    "step": ("loss", "lr", "bytes_sent", "bytes_received", "step_s", "compute_s", "exposed_s"),
    "eval": ("value", "loss"),
}


def check_tensorboard(config: TrainConfig) -> None:
    """Raises if logs were asked for and the package is not there."""
    if config.tensorboard:
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise ConfigurationError(
                "--tensorboard: the package tensorboard is not installed; `pip install tensorboard`, or leave it out"
            ) from None


def tensorboard_watcher(folder: Path, step: int) -> Watcher:
    """Writes the logs of a run that goes on after this step; what was logged beyond it is hidden."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
    return lambda event: _write(writer, event)


def _write(writer: SummaryWriter, event: Event) -> None:
    kind = event["event"]
    for name in _OF_KIND.get(kind, ()):
        if event[name] is not None:
            writer.add_scalar(f"{kind}/{name}", event[name], event["step"])
    if kind == "layers":
        for layer, found in event["layers"].items():
            for name in ("density", "scaler", "relative_error", "bits", "least_bits"):
                if found[name] is None:  # of a gradient of zeros, or where there is none
                    continue
                writer.add_scalar(f"{name}/{layer}", found[name], event["step"])
    if kind == "end":
        writer.close()
