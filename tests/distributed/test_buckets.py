"""Buckets as planned: DistributedDataParallel makes them of the caps that a plan gives it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import terngrad as tg
from distributed.harness import run_ranks, values
from terngrad.perf import AllReduce, Cluster, Gradient, Link
from terngrad.perf.probes import measure_profile

pytestmark = pytest.mark.distributed


def planned(rank: int, world_size: int) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The groups of a plan, and those that DDP made of its caps."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(40 + 10 * i, 50 + 10 * i) for i in range(6)))
    inputs = torch.ones(4, 40)
    profile = measure_profile(net, lambda: net(inputs).sum(), repeats=2)
    # Gradients of one moment after the other, so that all ranks plan alike, whatever they measured.
    steady = [Gradient(found.parameter, 0.001 * (i + 1)) for i, found in enumerate(profile.gradients)]
    plan = tg.plan_buckets(replace(profile, gradients=tuple(steady)), Cluster(world_size, Link(5e-4, 1e8)), AllReduce())
    model = DistributedDataParallel(net, bucket_cap_mb_list=plan.caps_mb)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    made: list[tuple[str, ...]] = []

    def note(state, bucket):  # type: ignore[no-untyped-def] # DDP takes no annotations that are postponed
        made.append(tuple(names[id(parameter)] for parameter in bucket.parameters()))
        found = torch.futures.Future()
        found.set_result(bucket.buffer())
        return found

    model.register_comm_hook(None, note)
    for _ in range(3):
        made.clear()
        model(inputs).sum().backward()
    return [tuple(sorted(group)) for group in plan.groups], [tuple(sorted(group)) for group in made]


def test_ddp_makes_the_buckets_of_a_plan() -> None:
    for wanted, made in values(run_ranks(2, planned)):
        assert 1 < len(wanted) < 12
        assert made == wanted
