"""TernGrad against fp32 on a small transformer and WikiText-2, at equal steps, with scalers of three sizes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

WORKERS = 4
STEPS = 400
METHODS = {"terngrad": 1, "terngrad:block=512": 3, "terngrad:block=128": 1}  # and how many seeds


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    steps = grid.scaled(STEPS, options)
    common = ("gpt-wikitext2", "--steps", steps, "--eval-every", str(int(steps) // 5), *grid.COMMON)
    base = "fp32"
    found = [grid.Arm(base, (*common, "--method", "fp32", "--virtual-workers", str(WORKERS)))]
    for method, seeds in METHODS.items():
        own = (*common, "--method", method, "--virtual-workers", str(WORKERS))
        found.append(grid.Arm(f"{WORKERS} workers, {method}", own, base, seeds))
    return found


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.perplexity(tolerance_percent=3.0))
