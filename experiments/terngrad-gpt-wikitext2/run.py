"""TernGrad against fp32 on a small transformer and WikiText-2, at equal steps, with scalers of three sizes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

WORKERS = 4
STEPS = 400
FLOAT_LR = "1e-3"  # the recipe's
METHODS = (  # with their learning rates, and how many seeds
    ("fp32", "1.4e-3", 3),
    ("terngrad:block=1024", "1.4e-3", 3),
    ("terngrad:block=512", FLOAT_LR, 3),
    ("terngrad:block=128", FLOAT_LR, 1),
    ("terngrad", FLOAT_LR, 1),
)


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    steps = grid.scaled(STEPS, options)
    common = ("gpt-wikitext2", "--steps", steps, "--eval-every", str(int(steps) // 5), *grid.COMMON)
    base = "fp32"
    workers = ("--virtual-workers", str(WORKERS))
    found = [grid.Arm(base, (*common, "--method", "fp32", *workers))]
    for method, lr, seeds in METHODS:
        rate = () if lr == FLOAT_LR else ("--lr", lr)
        label = f"{WORKERS} workers, {method}" + (f", lr {lr}" if rate else "")
        found.append(grid.Arm(label, (*common, "--method", method, *workers, *rate), base, seeds))
    return found


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.perplexity(tolerance_percent=3.0))
