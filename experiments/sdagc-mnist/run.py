"""SDAGC against fp32, fp16, PowerSGD, TernGrad and DGC on LeNet and MNIST, for 10,000 steps with four workers."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

STEPS = 10_000
VARIANTS = {"by masking": ("sdagc:threshold=2.5,values=sign,compensation=masking", 3)}


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    found = grid.methods_of("LeNet", ("lenet-mnist",), STEPS, options, VARIANTS)
    masked = next(arm for arm in found if arm.label.endswith("by masking"))
    found = [replace(arm, most_seeds=1) if arm.label == "LeNet, SDAGC" else arm for arm in found]
    return [*found, grid.in_processes(masked)]


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.accuracy(tolerance=0.15))
