"""One process of a run: `python -m terngrad.train.worker`, started by `launch`; its rank is in the environment.

Its job is the first line of standard input, and it ends when that does: whoever started it holds it open, so that
nothing outlives a launcher that was killed. Rank 0 writes its events to standard output.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback

from terngrad.errors import ConfigurationError
from terngrad.train.job import Job, join, work
from terngrad.train.memory import keep_memory
from terngrad.train.outcome import Outcome, outcome_of
from terngrad.train.runs import Event


def _end_with_the_launcher() -> None:
    """Ends this process when standard input does."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(Outcome.FAILED)

    threading.Thread(target=watch, daemon=True).start()


def _tell_the_launcher(event: Event) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    line = sys.stdin.readline()
    _end_with_the_launcher()
    keep_memory()
    try:
        job = Job.from_json(json.loads(line))
        join(job.config, job.rendezvous)
        work(job, [_tell_the_launcher])
    except Exception as error:
        if isinstance(error, ConfigurationError):
            print(error, file=sys.stderr, flush=True)
        else:
            traceback.print_exc()
        # At once: a broken process group must not hold up the exit, and the other ranks are waiting to hear of it.
        os._exit(outcome_of(error))


if __name__ == "__main__":
    main()
