"""What the performance model predicts of a step, beside what the step took: nets, links, hosts and methods.

Needs a quiet machine, root or user namespaces, and hours; cells that have a result are not measured again.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import terngrad
from terngrad import plan_buckets
from terngrad.perf import AllReduce, Cluster, Coded, Link, Profile, diagnosis
from terngrad.perf.probes import Codec, Speeds

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cells
import grid

HERE = Path(__file__).resolve().parent

PLANNED = ("terngrad", "sdagc")  # with which buckets are planned, besides plain DDP
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
    write_plans(found, results / "plans.md")


def write_plans(found: Mapping[cells.Cell, dict[str, Any]], path: Path) -> None:
    """How much shorter predicted steps are with the buckets of `plan_buckets` than with DDP's own, cell by cell."""
    rows = []
    for (net, hosts, link), result in found.items():
        probed = result["probed"]
        profile = diagnosis.in_ddp(Profile.read(probed["profile"]), [Speeds(**one) for one in probed["speeds"]])
        cluster, contention = Cluster(hosts, Link.read(probed["link"])), diagnosis.contention_with(probed["cores"])
        codecs = {spec: Codec.read(codec).figures for spec, codec in probed["codecs"].items()}
        sendings = {cells.PLAIN: AllReduce()}
        sendings |= {spec: Coded(terngrad.from_spec(spec), "all-gather", *codecs[spec]) for spec in PLANNED}
        plans = [plan_buckets(profile, cluster, sending, contention) for sending in sendings.values()]
        rows.append((net, hosts, link, *(f"{len(p.groups)}: {p.step_s / p.default_step_s:.3f}" for p in plans)))
    columns = ("net", "hosts", "link", *(f"{name}, buckets: of DDP's step" for name in (cells.PLAIN, *PLANNED)))
    grid.write_table(path, columns, rows, cells.commits(found))


if __name__ == "__main__":
    main()
