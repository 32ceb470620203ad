"""Our performance model with the paper's clusters and networks, against all the points that the paper published."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from terngrad.cli.model import parameters_of
from terngrad.perf import paper
from terngrad.report import write_chart

HERE = Path(__file__).resolve().parent
NAMES = {"fp32": "fp32", "terngrad": "terngrad-paper"}  # as the paper calls them, and as we do


def images(cluster: str, net: str, method: str, num_gpus: int) -> float:
    found = paper.predict(cluster, net, parameters_of(net), NAMES[method], num_gpus)
    return num_gpus * paper.BATCH[net] / found.step_s


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    points, gains, errors = [], [], []
    for (cluster, net), published in paper.PUBLISHED.items():
        curves = {}
        for method, theirs in published.items():
            mine = [images(cluster, net, method, count) for count in paper.GPUS]
            curves[f"{method}, published"] = list(zip(paper.GPUS, theirs, strict=True))
            curves[f"{method}, modelled"] = list(zip(paper.GPUS, mine, strict=True))
            off = [100 * (own / other - 1) for own, other in zip(mine, theirs, strict=True)]
            fitted = {1, 8} if method == "fp32" else {1}
            errors += [part for count, part in zip(paper.GPUS, off, strict=True) if count not in fitted]
            points.append(
                [
                    f"{cluster}, {net}, {method}",
                    *(f"{own:,.0f} ({part:+.0f} %)" for own, part in zip(mine, off, strict=True)),
                ]
            )
        for count in (8, 512):
            at = paper.GPUS.index(count)
            theirs_gain = published["terngrad"][at] / published["fp32"][at]
            own_gain = images(cluster, net, "terngrad", count) / images(cluster, net, "fp32", count)
            row = [
                f"{cluster}, {net}",
                str(count),
                f"{theirs_gain:.2f}",
                f"{own_gain:.2f}",
                f"{100 * (own_gain / theirs_gain - 1):+.1f} %",
            ]
            gains.append(row)
        write_chart(curves, folder / f"{cluster}-{net}.svg", f"{net}, {cluster}", "images a second")
    text = "Images a second, modelled, and how far that is from what was published.\n\n"
    text += table(["cluster, network, method", *(f"{count} GPUs" for count in paper.GPUS)], points)
    text += "\n\nHow many times faster TernGrad is than fp32.\n\n"
    text += table(["cluster, network", "GPUs", "published", "modelled", "difference"], gains)
    sizes = sorted(abs(error) for error in errors)
    half, most = statistics.median(sizes), sizes[round(0.9 * len(sizes)) - 1]
    text += f"\n\n{len(errors)} points that nothing was fitted to: half are within {half:.1f} %, nine of ten within "
    text += f"{most:.1f} %, all within {sizes[-1]:.0f} %.\n"
    (folder / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
