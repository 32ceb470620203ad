"""Which gradients travel together: the greedy rule of MG-WFBP (Shi, Chu, Li, INFOCOM 2019), and the best plan there is.

Gradients become ready one after the other, in the order of the backward pass, and neighbours in that order may be sent
as one group. A group is sent when its last gradient is ready and the group before it has arrived. Large groups save
what every message costs by itself; small ones can leave early.

A plan is the sizes of its groups, in order: (3, 1) of four gradients sends three of them together, then the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from terngrad.errors import ConfigurationError

Cost = Callable[[int, int], float]  # seconds to send gradients first .. last - 1 as one group
Plan = tuple[int, ...]


def finish(plan: Sequence[int], ready: Sequence[float], cost: Cost) -> float:
    """When the last group of a plan has arrived."""
    check_plan(plan, len(ready))
    now = 0.0
    for first, last in _bounds(plan):
        now = max(now, ready[last - 1]) + cost(first, last)
    return now


def best_plan(ready: Sequence[float], cost: Cost) -> Plan:
    """The plan that arrives first, by dynamic programming; of several, one with the fewest groups.

    That nothing is lost by looking at prefixes one by one: an earlier arrival of a prefix never makes what follows
    arrive later. It takes a number of calls of `cost` that is quadratic in the number of gradients.
    """
    count = len(ready)
    arrival = [(0.0, 0)] + [(float("inf"), 0)] * count  # of the first k gradients, and in how many groups
    before = [0] * (count + 1)
    for last in range(1, count + 1):
        for first in range(last):
            found = max(arrival[first][0], ready[last - 1]) + cost(first, last), arrival[first][1] + 1
            if found < arrival[last]:
                arrival[last], before[last] = found, first
    ends = [count]
    while ends[-1]:
        ends.append(before[ends[-1]])
    return tuple(last - first for first, last in pairwise(reversed(ends)))


def greedy_plan(ready: Sequence[float], cost: Cost, startup_s: float) -> Plan:
    """The published rule: a gradient that is ready less than `startup_s` after the group before it could be sent joins
    that group.

    The comparison is with when the group could start, not with when it would end; the rule looks at one gradient at a
    time and can be far from the best plan.
    """
    sizes: list[int] = []
    first = 0
    free = 0.0  # when the groups before this one have arrived
    for last in range(1, len(ready) + 1):
        start = max(free, ready[last - 1])
        if last < len(ready) and ready[last] - start < startup_s:
            continue
        sizes.append(last - first)
        free = start + cost(first, last)
        first = last
    return tuple(sizes)


def capped_plan(sizes: Sequence[int], cap: int, first_cap: int) -> Plan:
    """What DistributedDataParallel does by itself: a group is closed as soon as its bytes reach the cap."""
    plan: list[int] = []
    count = held = 0
    for size in sizes:
        count, held = count + 1, held + size
        if held >= (cap if plan else first_cap):
            plan.append(count)
            count = held = 0
    return (*plan, count) if count else tuple(plan)


def _bounds(plan: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for size in plan:
        yield first, first + size
        first += size


def check_plan(plan: Sequence[int], count: int) -> None:
    """Raises unless it is a plan for so many gradients."""
    if sum(plan) != count or any(size < 1 for size in plan):
        raise ConfigurationError(
            f"plan {tuple(plan)} for {count} gradients: groups must have one gradient or more, and all together {count}"
        )
