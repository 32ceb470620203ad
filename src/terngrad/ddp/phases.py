"""What the lane is doing: names for errors, ranges for the profiler, seconds for the statistics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import record_function


class Phases:
    """Seconds spent in each phase, and the phase that is running or ran last."""

    def __init__(self) -> None:
        self.seconds = {"encode": 0.0, "exchange": 0.0, "decode": 0.0, "measure": 0.0, "verify": 0.0}
        self.current = "none"

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.current = name
        start = time.perf_counter()
        try:
            with record_function(f"terngrad::{name}"):
                yield
        finally:
            self.seconds[name] += time.perf_counter() - start
