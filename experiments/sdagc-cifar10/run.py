"""SDAGC against fp32, fp16, PowerSGD, TernGrad and DGC on ResNet-20 and CIFAR-10, at equal steps with four workers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

RECIPES = {"ResNet-20": ("resnet20-cifar10", "--batch", "32")}
STEPS = {"ResNet-20": 1_500}
VARIANTS = {"at 3.2 sigma": (grid.SDAGC.replace("2.5", "3.2"), 3)}
FOR_THE_THRESHOLD = grid.SDAGC.replace("sign", "sign,magnitude=threshold")
LR = "0.055"  # as long steps, with the recipe's momentum, as SDAGC makes of 0.1


LATE = ("--schedule", "poly")  # falls late: what waits in residuals is sent while steps are still long


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    found = [
        arm
        for label, recipe in RECIPES.items()
        for arm in grid.methods_of(label, recipe, STEPS[label], options, VARIANTS)
    ]
    plain = found[0]
    high = next(arm for arm in found if arm.label.endswith("3.2 sigma"))
    *common, _ = plain.arguments  # all but the method
    signs = grid.Arm(f"{found[1].label} with signs for the threshold", (*common, FOR_THE_THRESHOLD), most_seeds=3)
    late = grid.Arm(f"{plain.label}, lr falls late", (*plain.arguments, *LATE), plain.label)
    falling_late = [
        grid.Arm(f"{arm.label}, lr falls late", (*arm.arguments, *LATE), late.label, arm.most_seeds)
        for arm in (found[1], high, signs)
    ]
    return [
        *found,
        grid.Arm(f"{plain.label} at lr {LR}", (*plain.arguments, "--lr", LR), plain.label),
        late,
        *falling_late,
        grid.in_processes(falling_late[-1]),
    ]


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.accuracy(tolerance=0.5))
