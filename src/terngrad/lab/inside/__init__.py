"""The programs that a lab runs, each a process of its own: the standard library alone, no torch, no threads.

`command(name, ...)` starts one. They are not imported as part of the package but from the folder above this one, since
importing the package would load torch into every process of the lab.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

# What `enter` passes on to its command, and what it takes for an order to kill it, as nothing can catch SIGKILL itself.
PASSED_ON = {
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT,
    signal.SIGTSTP,
}  # fmt: skip
KILL = signal.SIGVTALRM
_START = (
    "import importlib, sys; sys.path.append(sys.argv.pop(1)); "
    "importlib.import_module('inside.' + sys.argv.pop(1)).main()"
)


def command(name: str, *arguments: str) -> list[str]:
    """How to run the program `name` of this folder: isolated, without site-packages, and without writing bytecode."""
    folder = str(Path(__file__).resolve().parents[1])
    return [sys.executable, "-I", "-S", "-B", "-c", _START, folder, name, *arguments]
