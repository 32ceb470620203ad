"""Brings the output of several processes together, line by line, each line with the name of its process."""

from __future__ import annotations

import threading
from typing import IO, TextIO


class Relay:
    """Copies streams to other streams in threads of its own; lines never mix."""

    def __init__(self) -> None:
        self.error: Exception | None = None  # the first that writing raised; what came later was read and dropped
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def follow(self, source: IO[str], target: TextIO, prefix: str) -> None:
        """Copies `source` to its end, and closes it."""
        thread = threading.Thread(target=self._copy, args=(source, target, prefix), daemon=True)
        thread.start()
        self._threads.append(thread)

    def join(self) -> None:
        """Returns when all streams have ended."""
        for thread in self._threads:
            thread.join()

    def _copy(self, source: IO[str], target: TextIO, prefix: str) -> None:
        with source:
            for line in source:
                self._write(target, prefix + line.rstrip("\n") + "\n")

    def _write(self, target: TextIO, line: str) -> None:
        with self._lock:
            if self.error is not None:
                return  # go on reading all the same, or the process would wait for ever
            try:
                target.write(line)
                target.flush()
            except (OSError, ValueError) as error:  # a closed pipe or file
                self.error = error
