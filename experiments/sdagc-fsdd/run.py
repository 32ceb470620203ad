"""SDAGC against fp32, fp16, PowerSGD, TernGrad and DGC on spoken digits, at equal steps with four workers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

RECIPES = {"GRU": ("gru-fsdd", "--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9", "--clip-norm", "0")}
STEPS = {"GRU": 1_500}
THRESHOLDS = (3.0, 3.5)  # besides SDAGC's default


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    return [
        arm
        for label, recipe in RECIPES.items()
        for arm in grid.methods_of(label, recipe, STEPS[label], options, THRESHOLDS)
    ]


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.accuracy(tolerance=0.5))
