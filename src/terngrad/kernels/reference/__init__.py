"""Every kernel in plain torch, on any device: the definition that the native kernels equal bit for bit."""

from terngrad.kernels.reference.statistics import Statistics, statistics
from terngrad.kernels.reference.ternary import (
    draws,
    error,
    mean_levels,
    mean_own,
    mean_shared,
    sum_levels,
    ternarize,
)

name = "reference"

__all__ = [
    "Statistics", "draws", "error", "mean_levels", "mean_own", "mean_shared", "name", "statistics", "sum_levels",
    "ternarize",
]  # fmt: skip
