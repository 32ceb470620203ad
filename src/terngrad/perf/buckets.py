"""The buckets with which a step would be shortest, and how DistributedDataParallel is told to make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from terngrad.methods import ParameterInfo
from terngrad.perf.grouping import Plan, best_plan, capped_plan, greedy_plan
from terngrad.perf.network import Cluster
from terngrad.perf.profile import VALUE_BYTES, Gradient, Profile
from terngrad.perf.step import Line, Prediction, Sending

MEGABYTE = 1 << 20
BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * MEGABYTE, MEGABYTE  # DDP's own


@dataclass(frozen=True)
class BucketPlan:
    """Groups of gradients, in the order in which they are ready."""

    groups: tuple[tuple[str, ...], ...]  # names of parameters
    caps_mb: list[
        float
    ]  # for DistributedDataParallel(bucket_cap_mb_list=...), which closes a bucket that reaches its cap
    step_s: float  # predicted
    default_step_s: float  # with the buckets that DDP makes by itself


def default_plan(profile: Profile) -> Plan:
    """The buckets that DDP makes by itself."""
    return capped_plan(_sizes(profile), BUCKET_BYTES, FIRST_BUCKET_BYTES)


def by_bucket(profile: Profile, plan: Plan) -> Profile:
    """With one gradient for each bucket, for which nothing finer is known than when that is ready."""
    gradients = []
    for number, part in enumerate(_by_group(profile, plan)):
        members = profile.gradients[part]
        numel = sum(gradient.parameter.numel for gradient in members)
        gradients.append(Gradient(ParameterInfo(f"bucket {number}", numel, False), members[-1].ready_s))
    return replace(profile, gradients=tuple(gradients))


def largest_bucket(profile: Profile, plan: Plan) -> int:
    """Elements of the largest one."""
    return max(
        sum(gradient.parameter.numel for gradient in profile.gradients[part]) for part in _by_group(profile, plan)
    )


def plan_buckets(profile: Profile, cluster: Cluster, sending: Sending, contention: float = 1.0) -> BucketPlan:
    """The best of the exact plan, MG-WFBP's and DDP's own, by the predicted time of a step.

    The exact plan is exact for groups that are sent one after the other; the lane also encodes one while another is on
    the wire, so all three are compared as the lane would take them.
    """
    ready = [gradient.ready_s for gradient in profile.gradients]
    line = _line(profile, cluster, sending)
    ends = [0, *accumulate(gradient.parameter.numel for gradient in profile.gradients)]

    def cost(first: int, last: int) -> float:
        return line(ends[last] - ends[first])

    default = default_plan(profile)
    plans = [best_plan(ready, cost), greedy_plan(ready, cost, line.fixed_s), default]

    def predicted(plan: Plan) -> float:
        return Prediction(profile, plan, sending, cluster, contention).step_s

    best = min(plans, key=predicted)
    return BucketPlan(_groups(profile, best), _caps(profile, best), predicted(best), predicted(default))


def _line(profile: Profile, cluster: Cluster, sending: Sending) -> Line:
    """What a bucket takes from the first to the last of it, by its elements: through the largest parameter and all."""
    parameters = [gradient.parameter for gradient in profile.gradients]
    largest = max(parameters, key=lambda parameter: parameter.numel)

    def seconds(chosen: Sequence[ParameterInfo]) -> float:
        work = sending.work(chosen, cluster)
        rounds = (work.round_s, work.lengths_s, work.sum_lengths_s)
        waits = sum(seconds > 0 for seconds in (*rounds, work.send_s, work.sums_s))
        carried = max(work.send_s + work.sums_s, work.handling_s)
        return work.encode_s + carried + work.add_s + work.decode_s + sum(rounds) + waits * work.delay_s

    few, all_of_them = seconds([largest]), seconds(parameters)
    more = profile.numel - largest.numel
    slope = max(0.0, (all_of_them - few) / more) if more else few / max(1, largest.numel)
    return Line(max(0.0, few - slope * largest.numel), slope)


def _sizes(profile: Profile) -> list[int]:
    return [VALUE_BYTES * gradient.parameter.numel for gradient in profile.gradients]


def _by_group(profile: Profile, plan: Plan) -> list[slice]:
    return [slice(first, last) for first, last in pairwise(accumulate(plan, initial=0))]


def _groups(profile: Profile, plan: Plan) -> tuple[tuple[str, ...], ...]:
    names = [gradient.parameter.name for gradient in profile.gradients]
    return tuple(tuple(names[part]) for part in _by_group(profile, plan))


def _caps(profile: Profile, plan: Plan) -> list[float]:
    sizes = _sizes(profile)
    return [sum(sizes[part]) / MEGABYTE for part in _by_group(profile, plan)]
