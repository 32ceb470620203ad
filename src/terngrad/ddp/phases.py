"""What the lane is doing: names for errors, ranges for the profiler, seconds for the statistics."""

from __future__ import annotations

import time
from types import TracebackType

from torch.autograd import profiler


class _Phase:
    """One stretch of a phase. The profiler takes longer to enter than many a phase lasts, so only if it records."""

    def __init__(self, phases: Phases, name: str) -> None:
        self._phases = phases
        self._name = name
        self._range = profiler.record_function(f"terngrad::{name}") if profiler._is_profiler_enabled else None

    def __enter__(self) -> None:
        self._phases.current = self._name
        self._start = time.perf_counter()
        if self._range is not None:
            self._range.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._range is not None:
            self._range.__exit__(kind, error, trace)
        self._phases.seconds[self._name] += time.perf_counter() - self._start


class Phases:
    """Seconds spent in each phase, and the phase that is running or ran last."""

    def __init__(self) -> None:
        self.seconds = {"encode": 0.0, "exchange": 0.0, "decode": 0.0, "measure": 0.0, "verify": 0.0}
        self.current = "none"

    def __call__(self, name: str) -> _Phase:
        return _Phase(self, name)
