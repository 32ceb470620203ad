"""What a lab leaves in the system: processes, known by a word in their environment, and namespaces."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

NAMESPACES = ("net", "pid", "mnt")


def processes(word: str) -> set[int]:
    """The living processes that were started with this word in their environment, or forked by such."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
    return found


def children(pid: int) -> set[int]:
    """The child processes of a process, of all its threads."""
    lists = Path("/proc", str(pid), "task").glob("*/children")
    return {int(child) for path in lists for child in path.read_text().split()}


def namespaces(pids: set[int] | None = None) -> set[str]:
    """The namespaces of these processes, or of all, other than this process's own."""
    folders = Path("/proc").glob("[0-9]*") if pids is None else (Path("/proc", str(pid)) for pid in pids)
    found = set()
    for folder in folders:
        for name in NAMESPACES:
            with contextlib.suppress(OSError):
                found.add(str((folder / "ns" / name).readlink()))
    return found - {str(Path("/proc/self/ns", name).readlink()) for name in NAMESPACES}


def wait_until(holds: Callable[[], object], patience_s: float = 30.0) -> bool:
    """Whether it holds in the end; looks again and again until then."""
    end = time.monotonic() + patience_s
    while not (held := bool(holds())) and time.monotonic() < end:
        time.sleep(0.05)
    return held
