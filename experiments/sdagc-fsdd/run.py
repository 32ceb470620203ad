"""SDAGC against fp32, fp16, PowerSGD, TernGrad and DGC on spoken digits, at equal steps with four workers."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

RECIPES = {"GRU": ("gru-fsdd", "--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9", "--clip-norm", "0")}
STEPS = {"GRU": 1_500}
MASKED = {"by masking at 2.3 sigma": ("sdagc:threshold=2.3,values=sign,compensation=masking", 6)}
VARIANTS = {
    **MASKED,
    "at 3.0 sigma": (grid.SDAGC.replace("2.5", "3.0"), 1),
    "at 3.5 sigma": (grid.SDAGC.replace("2.5", "3.5"), 1),
}
LONG = 3_000  # steps, with fp32 and with SDAGC alone


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    found = []
    for label, recipe in RECIPES.items():
        found += grid.methods_of(label, recipe, STEPS[label], options, VARIANTS)
        plain, _, masked, *_ = grid.methods_of(f"{label}, {LONG:,} steps", recipe, LONG, options, MASKED)
        found += [*(replace(arm, most_seeds=3) for arm in (plain, masked)), grid.in_processes(masked)]
    return found


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.accuracy(tolerance=0.5))
