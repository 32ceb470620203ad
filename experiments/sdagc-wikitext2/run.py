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
AT_2 = grid.SDAGC.replace("2.5", "2.0")
FOR_THE_THRESHOLD = "with signs for the threshold"
SHORT = AT_2.replace("sign", "sign,magnitude=threshold")  # at 2.0 sigma, too
VARIANTS = {"at 2.0 sigma": (AT_2, 1), FOR_THE_THRESHOLD: (SHORT, 1)}
EPOCH = 4_000  # steps of the LSTM, with fp32 and with SDAGC alone

BLOCKS = "terngrad:block=1024,codec=entropy"  # one scaler for all of an embedding is too few


def arms(options: argparse.Namespace) -> list[grid.Arm]:
    found = []
    for label, recipe in RECIPES.items():
        mine = grid.methods_of(label, recipe, STEPS[label], options, VARIANTS)
        plain = mine[0]
        *common, _ = plain.arguments  # all but the method
        found += [*mine, grid.Arm(f"{label}, TernGrad in blocks", (*common, BLOCKS), plain.label, 1)]
    label = f"LSTM, {EPOCH:,} steps"
    plain = grid.methods_of(label, RECIPES["LSTM"], EPOCH, options)[0]
    *common, _ = plain.arguments
    rising = f"{grid.SDAGC.replace('2.5', '2.2')},warmup_threshold=2.0,warmup_steps={grid.scaled(EPOCH, options)}"
    found += [
        plain,
        grid.Arm(f"{label}, SDAGC {FOR_THE_THRESHOLD}", (*common, SHORT), plain.label),
        grid.Arm(f"{label}, SDAGC from 2.0 to 2.2 sigma", (*common, rising), plain.label, 2),
    ]
    return found


if __name__ == "__main__":
    grid.main(Path(__file__).resolve().parent, __doc__ or "", arms, grid.perplexity(tolerance_percent=3.0))
