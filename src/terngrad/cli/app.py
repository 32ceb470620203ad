"""The commands together, and how a program ends that could not do what it was told."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated

import typer

import terngrad
from terngrad.cli.compare import compare
from terngrad.cli.doctor import doctor
from terngrad.cli.lab import lab
from terngrad.cli.model import model
from terngrad.cli.recipes import recipes
from terngrad.cli.report import report
from terngrad.cli.train import train
from terngrad.errors import TerngradError
from terngrad.train import Outcome, is_rank, keep_memory, outcome_of

WIDTH = 100  # of help, whatever the terminal, so that docs/cli.md is the same everywhere

app = typer.Typer(
    name="terngrad",
    help="Train with compressed gradients, over slow links, and compare.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": WIDTH},
)
app.command()(train)
app.command()(compare)
app.command(context_settings={"allow_interspersed_args": False})(lab)
app.command()(report)
app.command()(model)
app.command()(doctor)
app.command()(recipes)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"terngrad {terngrad.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train with compressed gradients, over slow links, and compare."""


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(Outcome.TERMINATED)


def main() -> None:
    """What the command `terngrad` runs."""
    if not is_rank():  # a rank is ended at once, also while it waits for another one
        signal.signal(signal.SIGTERM, _terminate)
    keep_memory()
    try:
        app(prog_name="terngrad")
    except TerngradError as error:
        print(f"terngrad: {error}", file=sys.stderr, flush=True)
        _end(outcome_of(error))
    except Exception as error:
        traceback.print_exc()
        _end(outcome_of(error))


def _end(outcome: Outcome) -> None:
    """Ends a rank at once, so that the others hear of it: a broken process group would hold up the exit."""
    sys.stdout.flush()
    if is_rank():
        os._exit(outcome)
    sys.exit(outcome)
