"""What each part of SDAGC is good for: one after the other is switched off, or exchanged for its alternative."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

TASKS = {
    "GRU": (("gru-fsdd", "--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9", "--clip-norm", "0"), 600),
    "LeNet": (("lenet-mnist",), 2_000),
}
PARTS = {
    "as it is": "",
    "no accumulation, no compensation": "accumulation=no,compensation=none",
    "no compensation": "compensation=none",
    "compensation by masking": "compensation=masking",
    "compensation by sam": "compensation=sam",
    "sigma of the gradient": "sigma_of=gradient",
    "with warm-up": "warmup_steps=100",
    "with local clipping": "clip_norm=1",
    "with local clipping at 8": "clip_norm=8",
    "with revision": "revision=0.5",
    "values in bf16": "values=bf16",
    "signs for the threshold": "magnitude=threshold",
}


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    found = []
    for task, (recipe, number) in TASKS.items():
        steps = grid.scaled(number, options)
        common = (*recipe, "--steps", steps, "--eval-every", str(int(steps) // 5), *grid.COMMON)
        base = f"{task}, fp32"
        four = ("--virtual-workers", "4")
        found.append(grid.Arm(base, (*common, *four, "--method", "fp32")))
        for part, change in PARTS.items():
            spec = f"sdagc:{change}" if change else "sdagc"
            found.append(grid.Arm(f"{task}, {part}", (*common, *four, "--method", spec), base))
    return found


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.accuracy(tolerance=0.5))
