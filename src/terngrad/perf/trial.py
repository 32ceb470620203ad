"""Steps of a small model with every method: what they take beyond the parts that the performance model knows of."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from terngrad.perf.choice import PLAIN, PLAIN_FP16
from terngrad.perf.diagnosis import Trial
from terngrad.perf.probes import is_short, measure_profile
from terngrad.perf.wires import slowest_rank

DEPTH, WIDTH = 8, 256  # layers of a quarter of a megabyte each: DDP makes two buckets of them
BATCH = 128
SETTLING = 3  # steps: DDP arranges its buckets anew after the first
REPEATS = 5  # or more

Attach = Callable[..., Any]  # terngrad.attach


def try_small(specs: Iterable[str], attach: Attach) -> Trial:
    """On all ranks of the default group, which all get the same: a step is as long as the slowest rank's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
        inputs = torch.randn(BATCH, WIDTH)
    profile = measure_profile(net, lambda: net(inputs).square().mean(), slowest=slowest_rank)
    return Trial(profile, {name: _step_seconds(name, net, inputs, attach) for name in (PLAIN, PLAIN_FP16, *specs)})


def _step_seconds(name: str, net: nn.Module, inputs: torch.Tensor, attach: Attach) -> float:
    """The median of forward and backward."""
    model = DistributedDataParallel(net)
    handle = None
    if name == PLAIN_FP16:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name != PLAIN:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # for those that want momentum; it has none
        handle = attach(model, name, optimizer=optimizer, measure_every=0)
    steps: list[float] = []
    for _ in range(SETTLING):
        torch.autograd.backward(model(inputs).square().mean())
    while is_short(steps, REPEATS):
        model.zero_grad(set_to_none=True)
        slowest_rank(0.0)
        start = time.perf_counter()
        torch.autograd.backward(model(inputs).square().mean())
        steps.append(slowest_rank(time.perf_counter() - start))
    if handle is not None:
        handle.detach()
    del model
    gc.collect()  # DDP refers to itself, and takes its hooks off the parameters only when it is gone
    return statistics.median(steps[1:])
