"""What clipping does: TernGrad clipped at 2.5 standard deviations, otherwise, and not at all, against float."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

TASKS = {
    "CifarNet": ("cifarnet-cifar10", "--batch", "128", 2, 1_000),
    "LeNet": ("lenet-mnist", "--batch", "64", 4, 2_000),
}
CLIPS = ("2.5", "1.5", "0")


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    found = []
    for task, (recipe, flag, batch, workers, number) in TASKS.items():
        steps = grid.scaled(number, options)
        common = (
            recipe, flag, batch, "--steps", steps, "--eval-every", str(int(steps) // 5), "--schedule", "cosine",
            *grid.COMMON,
        )  # fmt: skip
        base = f"{task}, float"
        found.append(grid.Arm(base, (*common, "--method", "fp32", "--virtual-workers", "1")))
        for clip in CLIPS:
            label = f"{task}, {workers} workers, " + (f"clipped at {clip} sigma" if clip != "0" else "not clipped")
            own = (*common, "--method", f"terngrad:clip={clip}", "--virtual-workers", str(workers))
            found.append(grid.Arm(label, own, base))
    return found


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.accuracy(tolerance=0.5))
