"""Plans of buckets: never worse than DDP's own by prediction, and made of every gradient once."""

from __future__ import annotations

import random
from itertools import accumulate, chain

import pytest

import terngrad as tg
from terngrad.methods import ParameterInfo
from terngrad.perf import AllReduce, Cluster, Coded, Gradient, Line, Link, Profile, Sending

LINES = (Line(1e-4, 1e-9), Line(1e-4, 5e-10), Line(1e-4, 5e-10))
WAYS = (AllReduce(), AllReduce("fp16", 2, cast=Line(1e-4, 1e-9)), Coded(tg.TernGrad(), "all-gather", *LINES))


def random_profile(seed: int) -> Profile:
    draw = random.Random(seed)
    sizes = [int(10 ** draw.uniform(1, 6.5)) for _ in range(draw.randint(1, 30))]
    ready = accumulate(draw.expovariate(1.0) * 10 ** draw.uniform(-4, -2) for _ in sizes)
    gradients = [
        Gradient(ParameterInfo(f"p{i}", n, False), t) for i, (n, t) in enumerate(zip(sizes, ready, strict=True))
    ]
    return Profile(0.01, tuple(gradients), 0.01)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("rate", [1e8, 1e9, 1e10])
def test_plans_are_never_worse_than_the_default_and_often_better(way: Sending, rate: float) -> None:
    better = 0
    for seed in range(20):
        profile = random_profile(seed)
        found = tg.plan_buckets(profile, Cluster(4, Link.of(rate)), way)
        assert found.step_s <= found.default_step_s
        better += found.step_s < 0.999 * found.default_step_s
        assert list(chain(*found.groups)) == [gradient.parameter.name for gradient in profile.gradients]
        assert len(found.caps_mb) == len(found.groups)
        assert sum(found.caps_mb) * (1 << 20) == pytest.approx(4 * profile.numel)
    assert better > 5


def test_a_dear_message_makes_one_bucket_and_a_free_one_many() -> None:
    gradients = tuple(Gradient(ParameterInfo(f"p{i}", 1000, False), 0.01 * (i + 1)) for i in range(10))
    profile = Profile(0.0, gradients, 0.0)
    assert len(tg.plan_buckets(profile, Cluster(2, Link(10.0, 1e9)), AllReduce()).groups) == 1
    assert len(tg.plan_buckets(profile, Cluster(2, Link(0.0, 1e6)), AllReduce()).groups) > 5
