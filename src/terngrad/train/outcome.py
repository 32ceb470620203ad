"""How a run ends: one meaning for each exit code, of workers and of the command line alike."""

from __future__ import annotations

from enum import IntEnum

from terngrad.errors import ConfigurationError, TerngradError
from terngrad.lab import LabError
from terngrad.recipes import DataMissing


class Outcome(IntEnum):
    """Exit codes."""

    GOOD = 0
    FAILED = 1
    MISUSED = 2
    DATA_MISSING = 3
    NO_LAB = 4
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Outcome.GOOD: "all went well",
    Outcome.FAILED: "training failed; the run can be resumed",
    Outcome.MISUSED: "wrong usage, or settings that cannot work",
    Outcome.DATA_MISSING: "the recipe's data is not there; the message says how to get it",
    Outcome.NO_LAB: "this machine does not allow a lab; the message says why, and what to do",
    Outcome.INTERRUPTED: "stopped by Ctrl-C",
    Outcome.TERMINATED: "stopped by SIGTERM",
}


class TrainingFailed(TerngradError):  # noqa: N818 - it is a state of the run, and reads as one
    """A worker ended before the run did. `outcome` is how."""

    def __init__(self, message: str, outcome: Outcome = Outcome.FAILED) -> None:
        super().__init__(message)
        self.outcome = outcome


def outcome_of(error: BaseException) -> Outcome:
    """How a process ends that could not deal with this."""
    if isinstance(error, TrainingFailed):
        return error.outcome
    kinds: dict[type[BaseException], Outcome] = {
        DataMissing: Outcome.DATA_MISSING,
        LabError: Outcome.NO_LAB,
        ConfigurationError: Outcome.MISUSED,
        KeyboardInterrupt: Outcome.INTERRUPTED,
    }
    return next((outcome for kind, outcome in kinds.items() if isinstance(error, kind)), Outcome.FAILED)
