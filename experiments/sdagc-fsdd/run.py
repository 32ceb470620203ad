"""SDAGC against fp32, fp16, PowerSGD, TernGrad and DGC on spoken digits, at equal steps with four workers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

RECIPES = {"GRU": ("gru-fsdd", "--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9", "--clip-norm", "0")}
STEPS = {"GRU": 1_500}
LONGER = {"fp32": "fp32", "SDAGC": grid.SDAGC, "SDAGC at 3.5 sigma": "sdagc:threshold=3.5"}  # once, three times as long


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    found = [arm for label, recipe in RECIPES.items() for arm in grid.methods_of(label, recipe, STEPS[label], options)]
    steps = grid.scaled(3 * STEPS["GRU"], options)
    common = (*RECIPES["GRU"], "--steps", steps, "--eval-every", str(int(steps) // 5), *grid.COMMON)
    base = "GRU for longer, fp32"
    for name, spec in LONGER.items():
        own = (*common, "--virtual-workers", "4", "--method", spec)
        found.append(grid.Arm(f"GRU for longer, {name}", own, base if name != "fp32" else None, 1))
    return found


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.accuracy(tolerance=0.5))
