"""How long a training step takes, and what to do about it: so far what it is put together from.

`grouping` says which gradients should travel together, `timeline` how a backward pass and the lane go side by side, and
`network` what messages cost.
"""

from terngrad.perf.grouping import best_plan, capped_plan, finish, greedy_plan
from terngrad.perf.network import Cluster, Link
from terngrad.perf.timeline import Timeline, Work, simulate

__all__ = [
    "Cluster",
    "Link",
    "Timeline",
    "Work",
    "best_plan",
    "capped_plan",
    "finish",
    "greedy_plan",
    "simulate",
]
