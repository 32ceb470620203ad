"""The surroundings of a task's stage: its place on an accelerator's queue, and a name for what fails in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from terngrad.ddp.phases import Phases
from terngrad.errors import ExchangeError, TerngradError

_streams: dict[torch.device, Any] = {}


class DeviceOrder:
    """Runs work on a stream of the lane's own, behind all that the calling thread had queued when this was made.

    On the CPU there are no queues, and nothing to do.
    """

    def __init__(self, device: torch.device) -> None:
        self._module: Any = None
        if device.type != "cpu":
            self._module = torch.get_device_module(device)
            self._stream = _streams.setdefault(device, self._module.Stream(device))
            self._ready = self._module.Event()
            self._ready.record()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        with self._module.stream(self._stream):
            self._stream.wait_event(self._ready)
            yield

    def __call__(self) -> AbstractContextManager[None]:
        return nullcontext() if self._module is None else self._on_stream()


@contextmanager
def naming(where: Callable[[], str]) -> Iterator[None]:
    """Turns torch's error of a collective into one that says where it was."""
    try:
        yield
    except TerngradError:
        raise
    except RuntimeError as error:
        raise ExchangeError(
            f"{where()}: {error}. A peer has died, hangs or is out of step; look for the first error among all ranks"
        ) from error


class Stage:
    """Where a task is: entered around each of its stages."""

    def __init__(self, rank: int, step: int, bucket: int, phases: Phases, device: torch.device) -> None:
        self.phases = phases
        self.where = f"rank {rank}, step {step}, bucket {bucket}"
        self.on_device = DeviceOrder(device)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Has errors of collectives name step, bucket and phase; others are not theirs, and pass as they are."""
        with self.on_device():
            try:
                yield
            except RuntimeError:
                if self.phases.current not in ("exchange", "verify"):
                    raise
                with naming(lambda: f"{self.where}, phase {self.phases.current}"):
                    raise
