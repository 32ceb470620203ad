"""Randomness as a function: a generator for a purpose and a few numbers, the same one whenever it is asked for."""

from __future__ import annotations

from enum import IntEnum

from numpy.random import SeedSequence
from torch import Generator


class Purpose(IntEnum):
    """What is drawn. Purposes with the same numbers have nothing to do with each other."""

    ORDER = 1  # of the examples in an epoch
    AUGMENTATION = 2  # of the examples in a batch
    SYNTHESIS = 3  # of data that is made up


def generator_of(purpose: Purpose, *numbers: int) -> Generator:
    """Freshly seeded by the purpose and by all of the numbers, which must not be negative."""
    seed = SeedSequence([purpose, *numbers]).generate_state(1)
    return Generator().manual_seed(int(seed[0]))
