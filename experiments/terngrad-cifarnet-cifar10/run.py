"""TernGrad against float on CifarNet and CIFAR-10: the paper's two settings, with fewer steps, over several seeds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

# Total batch, workers, steps, and methods with their learning rates and numbers of seeds. The paper's steps are 300,000
# and 18,750: hundreds of times as many. With so few its learning rate of 2e-4 hardly gets anywhere, and a constant one
# would leave accuracies that change by points from one evaluation to the next.
SETTINGS = (
    (128, 2, 1_000, (("terngrad", "1.4e-3", 3), ("terngrad", "1e-3", 3), ("terngrad:block=512", "1e-3", 1))),
    (
        2048, 16, 94,
        (
            ("terngrad:block=512,clip=1.5", "1e-3", 2), ("terngrad", "1e-3", 3), ("terngrad-paper", "1e-3", 3),
            ("terngrad", "1.4e-3", 1), ("fp32", "1.4e-3", 1),
        ),
    ),
)  # fmt: skip
FLOAT_LR = "1e-3"
ONE = ("--method", "fp32", "--virtual-workers", "1")
HALF = 1024  # its gradient has twice the noise of a batch of 2048, as ternary codes of that have


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    found = []
    for batch, workers, number, methods in SETTINGS:
        common = common_of(batch, number, options)
        base = f"batch {batch}, float"
        found.append(grid.Arm(base, (*common, FLOAT_LR, *grid.COMMON, *ONE)))
        for method, lr, seeds in methods:
            own = (*common, lr, *grid.COMMON, "--method", method, "--virtual-workers", str(workers))
            label = f"batch {batch}, {workers} workers, {method}" + (f", lr {lr}" if lr != FLOAT_LR else "")
            found.append(grid.Arm(label, own, base, seeds))
    half = (*common_of(HALF, number, options), FLOAT_LR, *grid.COMMON, *ONE)
    return [*found, grid.Arm(f"batch {HALF}, float, as many steps", half, base)]


def common_of(batch: int, number: int, options: argparse.Namespace) -> tuple[str, ...]:
    steps = grid.scaled(number, options)
    return (
        "cifarnet-cifar10", "--batch", str(batch), "--steps", steps, "--eval-every", str(int(steps) // 5),
        "--schedule", "cosine", "--lr",
    )  # fmt: skip


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.accuracy(tolerance=0.5))
