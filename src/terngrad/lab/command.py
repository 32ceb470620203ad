"""One command on every host of a lab: the whole of `terngrad lab`, but for reading its command line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from terngrad.errors import ConfigurationError
from terngrad.lab.hosts import Lab, LinkBytes
from terngrad.lab.relay import Relay

GRACE_S = 10.0  # from SIGTERM to the end
_LOOK_S = 0.05


@dataclass(frozen=True)
class LabResult:
    """How the commands ended, and what crossed the links meanwhile."""

    exit_code: int  # the first that was not 0, of the hosts that were not cut off; 128 + n if signal n stopped the lab
    exit_codes: tuple[int, ...]  # of every host; 128 + n if signal n ended the command
    link_bytes: tuple[LinkBytes, ...]
    link: dict[str, Any]  # Lab.describe(), without a measurement
    cut_host: int | None  # the host that was cut off; None if none was, or if all had ended before

    def describe(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self)


def run_command(
    num_hosts: int,
    link: str,
    command: Sequence[str],
    *,
    kill_host: int | None = None,
    after_s: float = 0.0,
    keep_going: bool = False,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> LabResult:
    """Runs the command once on each host of a new lab and waits for the end of all.

    Their lines go to `stdout` and `stderr` (default: this process's), behind the host's name. When one fails the others
    are ended, unless they are to keep going. `kill_host` is cut off `after_s` seconds after the start; the others then
    may finish, well or not, and what runs on the cut host is ended behind them. In the main thread, SIGINT and SIGTERM
    end all commands: SIGTERM, then a grace period, which a second signal shortens, then SIGKILL.
    """
    if kill_host is not None and not 0 <= kill_host < num_hosts:
        raise ConfigurationError(f"kill_host={kill_host}: the hosts are 0 to {num_hosts - 1}")
    if after_s < 0:
        raise ConfigurationError(f"after_s={after_s}: a host can be cut off only after the start; pass 0 or more")
    relay = Relay()
    with _interrupts() as signals:
        with Lab(num_hosts, link) as lab:
            run = _Run(lab, signals, keep_going)
            run.start(command, relay, stdout or sys.stdout, stderr or sys.stderr)
            run.watch(relay, kill_host, after_s)
            run.end()
            result = run.result()
        relay.join()  # only now: a process that a command left behind may have kept its output open
    if relay.error is not None:
        raise relay.error
    return result


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The SIGINTs and SIGTERMs that arrive meanwhile, instead of their usual effect."""
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived  # signals are the main thread's
        return
    before = {
        number: signal.signal(number, lambda which, _: arrived.append(which))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """The commands of all hosts, from their start to their end."""

    def __init__(self, lab: Lab, signals: list[int], keep_going: bool) -> None:
        self._lab = lab
        self._signals = signals
        self._keep_going = keep_going
        self._processes: list[subprocess.Popen[Any]] = []
        self._first_failure = 0
        self._cut_host: int | None = None

    def start(self, command: Sequence[str], relay: Relay, stdout: TextIO, stderr: TextIO) -> None:
        threads = max(1, len(os.sched_getaffinity(0)) // self._lab.num_hosts)
        for host in range(self._lab.num_hosts):
            process = self._lab.start(
                host,
                command,
                env={"OMP_NUM_THREADS": str(threads), **os.environ, **self._lab.environment(host)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
            self._processes.append(process)
            assert process.stdout is not None
            assert process.stderr is not None
            relay.follow(process.stdout, stdout, f"[host {host}] ")
            relay.follow(process.stderr, stderr, f"[host {host}] ")

    def watch(self, relay: Relay, kill_host: int | None, after_s: float) -> None:
        """Returns when the commands have ended, or are to be."""
        cut_time = time.monotonic() + after_s
        while not self._signals and relay.error is None and not self._over():
            if kill_host is not None and self._cut_host is None and time.monotonic() >= cut_time:
                self._lab.cut(kill_host)
                self._cut_host = kill_host
            time.sleep(_LOOK_S)

    def end(self) -> None:
        """SIGTERM to whatever still runs; SIGKILL to what does not heed it, or at once after another signal."""
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.terminate()
        end, patience = time.monotonic() + GRACE_S, len(self._signals)
        while any(process.poll() is None for process in running):
            if time.monotonic() > end or len(self._signals) > patience:
                break
            time.sleep(_LOOK_S)
        for process in running:
            process.kill()
            process.wait()

    def result(self) -> LabResult:
        return LabResult(
            exit_code=128 + self._signals[0] if self._signals else self._first_failure,
            exit_codes=tuple(_exit_code(process) for process in self._processes),
            link_bytes=tuple(self._lab.link_bytes()),
            link=self._lab.describe(measure=False),
            cut_host=self._cut_host,
        )

    def _over(self) -> bool:
        """Whether nothing is left to wait for. Remembers the first failure on the way."""
        codes = [process.poll() for process in self._processes]
        counted = [code for host, code in enumerate(codes) if host != self._cut_host]
        failed = [host for host, code in enumerate(codes) if code and host != self._cut_host]
        if failed and not self._first_failure:
            self._first_failure = _exit_code(self._processes[failed[0]])
        if None not in counted:
            return True
        return bool(failed) and not self._keep_going and self._cut_host is None


def _exit_code(process: subprocess.Popen[Any]) -> int:
    """As shells say it."""
    code = process.returncode
    return code if code >= 0 else 128 - code
