"""Steps of a small model with every method: what they take beyond the parts that the performance model knows of."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from terngrad.methods import Method
from terngrad.perf.buckets import default_plan, largest_bucket
from terngrad.perf.choice import PLAIN, PLAIN_FP16
from terngrad.perf.diagnosis import Trial
from terngrad.perf.probes import Codec, is_short, measure_codec, measure_profile, sample_of, settled, slowest_codecs
from terngrad.perf.profile import Profile
from terngrad.perf.wires import slowest_rank

DEPTH, WIDTH = 8, 256  # layers of a quarter of a megabyte each: DDP makes two buckets of them
BATCH = 128
SETTLING = 3  # steps: DDP arranges its buckets anew after the first
REPEATS = 5  # or more

Attach = Callable[..., Any]  # terngrad.attach


def try_small(methods: Mapping[str, Method], attach: Attach) -> Trial:
    """On all ranks of the default group, which all get the same: a step is as long as the slowest rank's."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net, loss_of = _small_net(rank)
    profile = measure_profile(net, lambda: loss_of(net), slowest=slowest_rank)
    largest, sample = largest_bucket(profile, default_plan(profile)), sample_of(net)
    own: tuple[Profile, dict[str, Codec]] = (
        profile,
        {name: measure_codec(method, sample, largest) for name, method in methods.items()},
    )
    everyone: list[Any] = [None] * world_size
    dist.all_gather_object(everyone, own)
    ways: dict[str, Method | None] = {PLAIN: None, PLAIN_FP16: None, **methods}
    steps = {}
    for name, method in ways.items():
        steps[name] = _step_seconds(name, method, net, loss_of, attach)
        gc.collect()  # DDP refers to itself, and takes its hooks off the parameters only when it is gone
    return Trial(everyone[0][0], slowest_codecs([codecs for _, codecs in everyone]), steps)


def _small_net(rank: int) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """The same on all ranks, and a loss with inputs of this one."""
    like: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
    with torch.random.fork_rng(devices=[]):
        net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, **like) for _ in range(DEPTH)))
    generator = torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=WIDTH**-0.5, generator=generator)
    inputs = torch.randn(BATCH, WIDTH, generator=generator.manual_seed(1 + rank), **like)
    return net, lambda model: model(inputs).square().sum()


def _step_seconds(
    name: str, method: Method | None, net: nn.Module, loss_of: Callable[[nn.Module], Tensor], attach: Attach
) -> float:
    """The median of forward and backward, by a method or by torch alone."""
    model = DistributedDataParallel(net)
    handle = None
    if name == PLAIN_FP16:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method is not None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # for those that want momentum; it has none
        handle = attach(model, settled(method), optimizer=optimizer, measure_every=0)

    def step() -> float:
        model.zero_grad(set_to_none=True)
        slowest_rank(0.0)  # all begin at once
        start = time.perf_counter()
        torch.autograd.backward(loss_of(model))
        return slowest_rank(time.perf_counter() - start)

    steps: list[float] = []
    try:
        for _ in range(SETTLING):
            step()
        while is_short(steps, REPEATS):
            steps.append(step())
    finally:
        if handle is not None:
            handle.detach()
    return statistics.median(steps[1:])
