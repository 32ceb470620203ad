"""`lab_run.py HOSTS LINK COMMAND...`: run_command in a process of its own. The result is the last line, as JSON."""

from __future__ import annotations

import json
import sys

import lab_light  # noqa: F401 - before terngrad.lab

from terngrad.lab import LabError, run_command

if __name__ == "__main__":
    hosts, link, *command = sys.argv[1:]
    try:
        result = run_command(int(hosts), link, command)
    except LabError as error:
        sys.exit(f"LabError: {error}")
    print(json.dumps(result.describe()))
    sys.exit(result.exit_code)
