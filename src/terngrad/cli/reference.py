"""Keeps docs/cli.md at what the program says: `python -m terngrad.cli.reference docs/cli.md`.

A block of code that begins with "```text terngrad COMMAND" holds that command's help, and what stands between the two
comments "exit codes" is the table of them. The rest of the page is written by hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from typer.testing import CliRunner

from terngrad.cli.app import app
from terngrad.train import MEANINGS


def commands() -> list[str]:
    """The names of all commands."""
    return [command.callback.__name__ for command in app.registered_commands if command.callback is not None]


def fill(page: str) -> str:
    """The page with help and exit codes as they are now."""
    page = re.sub(
        r"(```text terngrad *([\w-]*)\n).*?```", lambda found: f"{found[1]}{_help(found[2])}```", page, flags=re.DOTALL
    )
    codes = "".join(f"| {outcome.value} | {meaning} |\n" for outcome, meaning in MEANINGS.items())
    table = f"<!-- exit codes -->\n| code | meaning |\n|---:|---|\n{codes}<!-- /exit codes -->"
    return re.sub(r"<!-- exit codes -->.*<!-- /exit codes -->", lambda _: table, page, flags=re.DOTALL)


def _help(command: str) -> str:
    result = CliRunner().invoke(app, [*filter(None, [command]), "--help"], prog_name="terngrad")
    return "".join(f"{line.rstrip()}\n" for line in result.output.splitlines())


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(fill(path.read_text()))
