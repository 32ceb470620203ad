"""The command line: `terngrad train`, `compare`, `lab`, `report`, `recipes`.

Results go to standard output, as one JSON document with --json; all else goes to standard error. Exit codes are those
of `terngrad.train.Outcome`.
"""

from terngrad.cli.app import app, main

__all__ = ["app", "main"]
