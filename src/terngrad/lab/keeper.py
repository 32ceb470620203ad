"""The lab's end of the keeper, the process that makes the network and keeps it alive (inside/keeper.py)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from typing import IO, Any, cast

from terngrad.lab import inside
from terngrad.lab.obstacles import LabError, explain

_END_TIMEOUT_S = 10.0


class Keeper:
    """A running keeper. It ends with `end`, or with this process, or with this object."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Starts it and waits until the network is there; `made` is what it says of that."""
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C is for the process that made the lab, which then ends it in order.
        self._process = subprocess.Popen(
            inside.command("keeper"), stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        self._asking = threading.Lock()
        try:
            self.made = self._ask({**order, "parent": os.getpid()})
        except BaseException:
            self.end()
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def cut(self, host: int) -> None:
        """Sets the switch's port of that host down."""
        self._ask({"cut": host})

    def end(self) -> None:
        """Returns when every process in the lab is dead."""
        with self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=_END_TIMEOUT_S)  # closes its standard input, which it watches
            self._process.kill()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        requests, answers, errors = cast(tuple[IO[str], ...], (process.stdin, process.stdout, process.stderr))
        with self._asking:
            with contextlib.suppress(BrokenPipeError):  # if it has ended, the missing answer tells more
                requests.write(json.dumps(request) + "\n")
                requests.flush()
            line = answers.readline()
        if not line:
            raise LabError(f"the keeper of the lab has ended: {errors.read().strip()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise explain(answer["error"])
        return answer
