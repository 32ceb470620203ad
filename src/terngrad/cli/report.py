"""`terngrad report`: runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from terngrad.cli import options
from terngrad.report import write_report
from terngrad.train import read_run


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs; the first is the baseline.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")],
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
    json: options.Json = False,
) -> None:
    """Write an HTML page that compares runs: curves, bytes, the time of a step, layers, settings."""
    written = write_report([read_run(path) for path in runs], output, title)
    if json:
        options.write_json({"report": str(written), "runs": [str(path) for path in runs]})
    else:
        typer.echo(written)
