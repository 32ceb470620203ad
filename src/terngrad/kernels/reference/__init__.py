"""Every kernel in plain torch, on any device: the definition that the native kernels equal bit for bit."""

from terngrad.kernels.reference.entropy import entropy_decode, entropy_encode
from terngrad.kernels.reference.gaps import gaps_decode, gaps_encode
from terngrad.kernels.reference.palettes import Palettes, palettes
from terngrad.kernels.reference.sparse import (
    Accumulated,
    Entries,
    accumulate,
    add_back,
    merge,
    restore,
    scatter_mean,
    select,
)
from terngrad.kernels.reference.statistics import Statistics, statistics
from terngrad.kernels.reference.ternary import (
    draws,
    error,
    mean_levels,
    mean_own,
    mean_shared,
    mean_symbols,
    sum_levels,
    sum_symbols,
    ternarize,
)

name = "reference"

__all__ = [
    "Accumulated", "Entries", "Palettes", "Statistics", "accumulate", "add_back", "draws", "entropy_decode",
    "entropy_encode", "error", "gaps_decode", "gaps_encode", "mean_levels", "mean_own", "mean_shared", "mean_symbols",
    "merge", "name", "palettes", "restore", "scatter_mean", "select", "statistics", "sum_levels", "sum_symbols",
    "ternarize",
]  # fmt: skip
