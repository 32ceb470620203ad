"""What clipping does: TernGrad clipped at 2.5 standard deviations, as it is by default, and not at all."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

TASKS = {
    "CifarNet": ("cifarnet-cifar10", "--batch", "128", 2, 1_000, ("--lr", "1e-3")),
    "LeNet": ("lenet-mnist", "--batch", "64", 4, 1_500, ()),
}
METHODS = {"clipped at 2.5 sigma": "terngrad", "not clipped": "terngrad:clip=0"}


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    found = []
    for task, (recipe, flag, batch, workers, number, more) in TASKS.items():
        steps = grid.scaled(number, options)
        common = (
            recipe, flag, batch, "--steps", steps, "--eval-every", str(int(steps) // 5), "--schedule", "cosine",
            *more, *grid.COMMON,
        )  # fmt: skip
        base = f"{task}, float"
        found.append(grid.Arm(base, (*common, "--method", "fp32", "--virtual-workers", "1")))
        for label, method in METHODS.items():
            own = (*common, "--method", method, "--virtual-workers", str(workers))
            found.append(grid.Arm(f"{task}, {workers} workers, {label}", own, base))
    return found


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.accuracy(tolerance=0.5))
