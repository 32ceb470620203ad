"""The processes of a run: on this machine's loopback, or each on a host of the lab. They end with the launcher,
however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from terngrad.lab import Lab
from terngrad.train.config import TrainConfig
from terngrad.train.job import Job
from terngrad.train.outcome import Outcome, TrainingFailed
from terngrad.train.record import Watcher
from terngrad.train.runs import LOGS

_POLL_S = 0.05
_TAIL_LINES = 15
_RENDEZVOUS = ".rendezvous-"

Process = subprocess.Popen[bytes]


def launch(config: TrainConfig, folder: Path, watcher: Watcher, lab: Lab | None) -> None:
    """Starts all ranks and returns when they have ended well."""
    (folder / LOGS).mkdir(exist_ok=True)
    with _meeting_point(folder) as rendezvous, contextlib.ExitStack() as ended:
        job = Job(config, str(folder.absolute()), lab.describe() if lab else None, str(rendezvous))
        processes: list[Process] = []
        for rank in range(config.num_processes):
            log = ended.enter_context(_log(folder, rank).open("ab"))
            processes.append(ended.enter_context(_started(job, rank, log, lab)))
        reader = _Reader(processes[0].stdout, watcher)
        reader.start()
        _wait(processes, folder, reader)
        reader.join()


@contextlib.contextmanager
def _meeting_point(folder: Path) -> Iterator[Path]:
    """A file in which the processes find each other; those that killed launchers have left go."""
    for left in folder.glob(f"{_RENDEZVOUS}*"):
        if not Path("/proc", left.name.removeprefix(_RENDEZVOUS)).exists():
            left.unlink()
    path = folder.absolute() / f"{_RENDEZVOUS}{os.getpid()}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _log(folder: Path, rank: int) -> Path:
    return folder / LOGS / f"rank{rank}.txt"


@contextlib.contextmanager
def _started(job: Job, rank: int, log: IO[bytes], lab: Lab | None) -> Iterator[Process]:
    """A process that is gone at the end of the context. Its own session keeps a terminal's Ctrl-C to the launcher."""
    command, config = [sys.executable, "-m", "terngrad.train.worker"], job.config
    options: dict[str, Any] = {
        "stdin": subprocess.PIPE,  # for the job, and held open for as long as the launcher lives
        "stdout": subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        "stderr": log,
        "start_new_session": True,
        "env": {
            **os.environ,
            **(lab.environment(rank) if lab else _loopback(rank, config)),
            "OMP_NUM_THREADS": str(config.threads),
        },
    }
    process = lab.start(rank, command, **options) if lab else subprocess.Popen(command, **options)
    try:
        _tell(process, job)
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _tell(process: Process, job: Job) -> None:
    assert process.stdin is not None  # it is a pipe
    with contextlib.suppress(BrokenPipeError):  # it has ended already, which its exit code will tell
        process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
        process.stdin.flush()


def _loopback(rank: int, config: TrainConfig) -> dict[str, str]:
    """What a rank on this machine finds in its environment."""
    world_size = str(config.num_processes)
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size,
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


class _Reader(threading.Thread):
    """Shows to the watcher what rank 0 tells."""

    def __init__(self, stream: IO[bytes] | None, watcher: Watcher) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self._stream = stream
        self._watcher = watcher

    def run(self) -> None:
        try:
            for line in self._stream or ():
                if line.startswith(b"{"):  # all else is not ours: what some library has to say
                    self._watcher(json.loads(line))
        except Exception as error:  # raised by `_wait`: a thread's own would be lost, and rank 0 wait for a reader
            self.error = error


def _wait(processes: list[Process], folder: Path, reader: _Reader) -> None:
    """Returns when all have ended well, raises as soon as one has not."""
    while any(process.poll() is None for process in processes):
        if any(process.returncode for process in processes):
            break
        if reader.error is not None:
            raise reader.error
        time.sleep(_POLL_S)
    codes = {rank: process.returncode for rank, process in enumerate(processes) if process.returncode}
    if codes:
        # One that was killed is the cause; the others only noticed.
        raise _failure(*min(codes.items(), key=lambda item: item[1] > 0), folder)


def _failure(rank: int, code: int, folder: Path) -> TrainingFailed:
    lines = _log(folder, rank).read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
    said = "".join(f"\n    {line}" for line in lines)
    return TrainingFailed(
        f"rank {rank} {how}{', having said:' if said else ''}{said}\n"
        f"Its log is {_log(folder, rank)}; `terngrad train --resume {folder}` goes on from the last checkpoint.",
        Outcome(code) if code in (Outcome.MISUSED, Outcome.DATA_MISSING) else Outcome.FAILED,
    )
