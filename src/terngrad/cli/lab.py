"""`terngrad lab`: a command on every host of a slow network."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from terngrad.cli import options
from terngrad.lab import LINKS, run_command

_LINK_HELP = f"The link of every host, such as {', '.join(LINKS)}, or any other rate of that form."


def lab(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run on every host, after `--`.")],
    hosts: Annotated[int, typer.Option(help="How many hosts.")] = 2,
    link: Annotated[str, typer.Option(help=_LINK_HELP)] = "1gbit",
    kill_host: Annotated[int | None, typer.Option(help="Cut this host off the network.")] = None,
    after: Annotated[float, typer.Option(help="Seconds after the start at which to cut it off.")] = 0.0,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="When one command fails, let the others go on.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Run a command on every host of a network of this machine's own making, with links of a given rate.

    The commands find RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in their environment, as under torchrun:
    `terngrad lab --hosts 2 --link 100mbit -- python train.py`. Their lines appear behind the name of their host. The
    exit code is that of the first command that fails.
    """
    result = run_command(
        hosts,
        link,
        command,
        kill_host=kill_host,
        after_s=after,
        keep_going=keep_going,
        stdout=sys.stderr if json else sys.stdout,
    )
    if json:
        options.write_json(result.describe())
    else:
        for moved in result.link_bytes:
            options.say(
                f"host {moved.host}: {moved.sent:,} bytes sent ({moved.payload_sent:,} of payload), "
                f"{moved.received:,} received ({moved.payload_received:,})"
            )
    raise typer.Exit(result.exit_code)
