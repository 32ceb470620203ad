"""Checkpoints: RUN/checkpoints/step-N/rankR.pt, whole or not there, whenever the run is killed.

Every rank writes its part into a temporary folder. When all parts are on disk, rank 0 gives the folder its name. The
folder must be one that all ranks see.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

KEPT = 2
_TEMPORARY = ".step-"


class Checkpoints:
    """The checkpoints of one run, seen from one rank."""

    def __init__(self, folder: Path, rank: int, num_ranks: int) -> None:
        self._folder = folder
        self._rank = rank
        self._num_ranks = num_ranks

    def latest(self) -> Path | None:
        """The newest one that has all parts."""
        whole = [
            path
            for path in self._folder.glob("step-*")
            if all((path / _part(rank)).exists() for rank in range(self._num_ranks))
        ]
        return max(whole, key=_step_of, default=None)

    def load(self, checkpoint: Path, rank: int) -> dict[str, Any]:
        """What that rank has saved."""
        state: dict[str, Any] = torch.load(checkpoint / _part(rank), map_location="cpu", weights_only=True)
        return state

    def save(self, step: int, state: dict[str, Any], wait_for_all: Callable[[], None]) -> None:
        """Writes this rank's part; `wait_for_all` returns when all ranks have called it. On all ranks."""
        temporary = self._folder / f"{_TEMPORARY}{step}"
        temporary.mkdir(parents=True, exist_ok=True)
        with (temporary / _part(self._rank)).open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        wait_for_all()
        if self._rank == 0:
            _sync_folder(temporary)
            final = self._folder / f"step-{step}"
            if final.exists():  # of an earlier life of this run, with a part missing
                shutil.rmtree(final)
            temporary.rename(final)
            _sync_folder(self._folder)
            self._prune()

    def _prune(self) -> None:
        for path in sorted(self._folder.glob("step-*"), key=_step_of)[:-KEPT]:
            shutil.rmtree(path)

    def remove_unfinished(self) -> None:
        """Removes what a killed run had begun to write. For rank 0, alone with the run."""
        for path in self._folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(path)


def _part(rank: int) -> str:
    return f"rank{rank}.pt"


def _step_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _sync_folder(path: Path) -> None:
    """Makes names in a folder survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
