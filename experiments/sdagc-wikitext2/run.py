"""SDAGC against fp32, fp16, PowerSGD, TernGrad and DGC on language models of WikiText-2, with four workers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import grid

RECIPES = {
    "LSTM": ("lstm-wikitext2", "--lr", "40", "--schedule", "poly"),
    "transformer": ("gpt-wikitext2", "--optimizer", "sgd", "--lr", "0.3", "--momentum", "0.9"),
}
STEPS = {"LSTM": 1_000, "transformer": 400}
LONG = {"LSTM, 4,000 steps": ("LSTM", 4_000)}  # fp32, and SDAGC with a threshold that rises, alone
RISING = f"{grid.SDAGC.replace('2.5', '2.4')},warmup_threshold=1.8,warmup_steps=3000"

BLOCKS = "terngrad:block=1024,codec=entropy"  # one scaler for all of an embedding is too few


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    found = []
    for label, recipe in RECIPES.items():
        mine = grid.methods_of(label, recipe, STEPS[label], options)
        plain = mine[0]
        *common, _ = plain.arguments  # all but the method
        found += [*mine, grid.Arm(f"{label}, TernGrad in blocks", (*common, BLOCKS), plain.label, 1)]
    for label, (short, steps) in LONG.items():
        plain = grid.methods_of(label, RECIPES[short], steps, options)[0]
        *common, _ = plain.arguments
        found += [plain, grid.Arm(f"{label}, SDAGC from 1.8 to 2.4 sigma", (*common, RISING), plain.label)]
    return found


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.perplexity(tolerance_percent=3.0))
