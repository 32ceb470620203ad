"""Runs a command on a host of a lab: `enter INIT HOLDER NAMESPACES COMMAND...`.

INIT and HOLDER are open descriptors of the folders in /proc of these two processes, NAMESPACES says which of init's to
enter besides the holder's network. To whoever started it, this process stands for the command: it passes signals on to
it and to the processes that it started, ends as it ends, and its own end is the command's.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from pathlib import Path

from . import KILL, PASSED_ON
from .kernel import NEWNET, NEWNS, NEWPID, NEWUSER, fork_bound, setns

_FLAGS = {"user": NEWUSER, "mnt": NEWNS, "pid": NEWPID, "net": NEWNET}
_WAITED_FOR = {*PASSED_ON, KILL, signal.SIGCHLD}
_NOT_FOUND, _NOT_RUN = 127, 126  # as shells say it


def main() -> None:
    init, holder, names, *command = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    environment = _environment()
    folder = Path.cwd()
    try:
        _enter(int(init), names.split(","))
        _enter(int(holder), ["net"])
        os.chdir(folder)  # entering a mount namespace leads to its root
    except OSError as error:
        sys.exit(f"cannot enter the lab, which may have ended: {error}")
    child = fork_bound(lambda: _execute(command, environment))
    _lead_a_group(child)
    _end_like(_stand_for(child))


def _enter(process: int, names: list[str]) -> None:
    for name in names:
        namespace = os.open(f"ns/{name}", os.O_RDONLY, dir_fd=process)
        setns(namespace, _FLAGS[name])
        os.close(namespace)
    os.close(process)


def _environment() -> dict[bytes, bytes]:
    """What this process was started with; Python may have set a locale in os.environ since."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)


def _lead_a_group(child: int) -> None:
    """A group for the command and what it starts: what is sent to this process's group must not reach it twice."""
    with contextlib.suppress(PermissionError, ProcessLookupError):  # it has done so itself, and is on its way
        os.setpgid(child, child)


def _execute(command: list[str], environment: dict[bytes, bytes]) -> None:
    os.setpgid(0, 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and a program would inherit that
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUN)


def _stand_for(child: int) -> int:
    """Passes signals on until the child has ended; how it ended."""
    while True:
        number = signal.sigwait(_WAITED_FOR)
        if number != signal.SIGCHLD:
            os.killpg(child, signal.SIGKILL if number == KILL else number)
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status


def _end_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one dump is enough
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))
