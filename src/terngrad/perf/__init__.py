"""How long a training step takes, and what to do about it. Pure arithmetic.

`profile` is what a step takes without communication, `network` what messages cost, `timeline` how a backward pass and
the lane go side by side, `step` the time of a step out of these, `grouping` and
`buckets` which gradients should travel together.
"""

from terngrad.methods import ParameterInfo, describe
from terngrad.perf import paper
from terngrad.perf.buckets import BucketPlan, by_bucket, default_plan, largest_bucket, plan_buckets
from terngrad.perf.grouping import best_plan, capped_plan, finish, greedy_plan
from terngrad.perf.network import Cluster, Link
from terngrad.perf.profile import Gradient, Profile
from terngrad.perf.step import AllReduce, Coded, Line, Prediction, Sending, Served, break_even
from terngrad.perf.timeline import Timeline, Work, simulate

__all__ = [
    "AllReduce", "BucketPlan", "Cluster", "Coded", "Gradient", "Line", "Link", "ParameterInfo", "Prediction", "Profile",
    "Sending", "Served", "Timeline", "Work", "best_plan", "break_even", "by_bucket", "capped_plan", "default_plan",
    "describe", "finish", "greedy_plan", "largest_bucket", "paper", "plan_buckets", "simulate",
]  # fmt: skip
