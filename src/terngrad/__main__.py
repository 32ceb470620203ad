"""`terngrad` and `python -m terngrad`: the command line, if what it needs is installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; without its packages, says how to get them."""
    try:
        from terngrad.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"terngrad: the command line needs the package {error.name}; pip install 'terngrad[cli]'")
    run()


if __name__ == "__main__":
    main()
