"""What the performance model predicts of a step, beside what the step took: nets, links, hosts and methods.

Needs a quiet machine, root or user namespaces, and hours; cells that have a result are not measured again.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cells
import grid

HERE = Path(__file__).resolve().parent

MEDIAN, HIGH = 0.10, 0.25  # the claim: of the errors, the median and the 90th percentile


def main() -> None:
    found = cells.measured(cells.read_options(__doc__ or ""))
    rows, errors = [], []
    for (net, hosts, link), result in found.items():
        texts = []
        for name in (cells.NO_SYNC, *cells.SINGLE):
            took, predicted = cells.seconds(result, name), result["methods"][name]["predicted_s"]
            error = predicted / took - 1
            errors += [abs(error)] if name != cells.NO_SYNC else []
            texts.append(f"{1e3 * took:,.0f} ({100 * error:+.0f} %)")
        rows.append((net, hosts, link, *texts))
    columns = ("net", "hosts", "link", cells.NO_SYNC, *cells.SINGLE)
    results = HERE / "results"
    grid.write_table(results / "table.md", columns, rows, cells.commits(found))
    if len(errors) > 1:
        high = statistics.quantiles(errors, n=10)[-1]
        text = (
            f"{len(errors)} steps: median error {100 * statistics.median(errors):.1f} % (claim: {100 * MEDIAN:.0f}), "
            f"90th percentile {100 * high:.1f} % (claim: {100 * HIGH:.0f}).\n"
        )
        print(text)
        (results / "errors.md").write_text(text)


if __name__ == "__main__":
    main()
