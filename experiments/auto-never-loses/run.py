"""What `auto` makes of a step, beside plain DDP and the best single method: nets, links and hosts.

The cells are those of predicted-vs-measured, in which `auto` takes its turns with all methods.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cells
import grid

HERE = Path(__file__).resolve().parent

OF_BEST = 1.10  # the claim: at most so many times the best single method that it may choose
ALLOWED = (cells.PLAIN, "fp16", "terngrad:codec=two-bit", "terngrad", "terngrad:codec=entropy")


def main() -> None:
    found = cells.measured(cells.read_options(__doc__ or ""))
    rows = []
    for (net, hosts, link), result in found.items():
        auto, plain = cells.seconds(result, cells.AUTO), cells.seconds(result, cells.PLAIN)
        best = min(ALLOWED, key=lambda name: cells.seconds(result, name))
        ratio = auto / cells.seconds(result, best)
        noise = max(_spread(result, name) for name in (cells.AUTO, cells.PLAIN, best))
        rows.append(
            (
                net,
                hosts,
                link,
                ", ".join(dict.fromkeys(result["methods"][cells.AUTO]["chosen"])),
                f"{1e3 * auto:,.0f}",
                best,
                f"{ratio:.2f}x",
                "yes" if ratio <= OF_BEST else "within noise" if ratio <= 1 + noise else "NO",
                f"{auto / plain:.2f}x",
                f"{100 * noise:.0f} %",
            )
        )
    columns = (
        "net", "hosts", "link", "chosen", "auto, ms", "best single", "of it", f"within {OF_BEST}", "of plain DDP",
        "noise",
    )  # fmt: skip
    (HERE / "results").mkdir(exist_ok=True)
    grid.write_table(HERE / "results" / "table.md", columns, rows, cells.commits(found))


def _spread(result: dict[str, object], name: str) -> float:
    """Half of the distance between the quartiles of a method's steps, to their median."""
    seconds = result["methods"][name]["seconds"]  # type: ignore[index]
    return float((seconds["high"] - seconds["low"]) / 2 / seconds["median"])


if __name__ == "__main__":
    main()
