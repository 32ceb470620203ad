"""The options that commands share, and how results are written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from terngrad.errors import ConfigurationError

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="What to train; `terngrad recipes` lists them.")]
Workers = Annotated[int | None, typer.Option(help="Processes that train; 2 if not given.")]
Link = Annotated[
    str | None,
    typer.Option(
        help='The link of every worker, such as "100mbit" or "1gbit", in a lab; "none" (the default): no lab.'
    ),
]
Servers = Annotated[int | None, typer.Option(help="Parameter servers, processes that do not train; 0 if not given.")]
VirtualWorkers = Annotated[
    int | None, typer.Option(help="Compute so many workers in one process instead, which sends nothing.")
]
Vectorize = Annotated[
    str | None,
    typer.Option(
        help='"on": virtual workers all at once; "off": one by one, with the bits of real workers; "auto" (the '
        "default): at once where the recipe can."
    ),
]
Steps = Annotated[int | None, typer.Option(help="How many steps; the recipe's number if not given.")]
Batch = Annotated[int | None, typer.Option(help="Examples of a step, of all workers together.")]
Lr = Annotated[float | None, typer.Option(help="Learning rate, which the recipe's schedule multiplies.")]
Optimizer = Annotated[str | None, typer.Option(help='"sgd" or "adam"; the recipe\'s own if not given.')]
Momentum = Annotated[float | None, typer.Option(help="Of SGD.")]
WeightDecay = Annotated[float | None, typer.Option(help="L2, added to the averaged gradient.")]
ClipNorm = Annotated[
    float | None,
    typer.Option(
        help="Clip the averaged gradient to this norm; with sparse methods each worker's own, by its norm in the step "
        "before. 0: not."
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        help='Of the learning rate: "constant", "poly", "cosine", "warmup-cosine" or "step"; the recipe\'s own '
        "if not given."
    ),
]
Seed = Annotated[int | None, typer.Option(help="Of everything that is drawn; 0 if not given.")]
Exchange = Annotated[
    str | None, typer.Option(help='"all-gather", "two-shot" or "auto" (the default): how terngrad exchanges codes.')
]
Data = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the recipes' data is.")]
LogEvery = Annotated[int | None, typer.Option(help="Steps from one line of metrics to the next; 20 if not given.")]
EvalEvery = Annotated[int | None, typer.Option(help="Steps from one evaluation to the next; 0: none.")]
CheckpointEvery = Annotated[
    int | None, typer.Option(help="Steps from one checkpoint to the next; 0: none. By default as evaluations.")
]
MeasureEvery = Annotated[
    int | None, typer.Option(help="Steps from one look at density and error of each layer to the next; 0: none.")
]
Threads = Annotated[int | None, typer.Option(help="Of each worker; 1 if not given.")]
Timeout = Annotated[
    float | None, typer.Option(help="Seconds after which a silent worker counts as dead; 1800 if not given.")
]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard logs, into the run's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Write the result to standard output as JSON, and nothing else.")]


def check_folder(option: str, path: Path) -> None:
    """Raises ConfigurationError unless there is a folder for the file that an option names."""
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"{option} {str(path)!r}: there is no folder {path.absolute().parent}; make it first")


def write_json(value: Any) -> None:
    """A result on standard output."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
    sys.stdout.flush()


def console() -> Console:
    """Standard output for people; tables are not folded where it is no terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=200)


def say(text: str) -> None:
    """A remark on standard error."""
    print(text, file=sys.stderr, flush=True)
