"""Futures and callbacks in the forms that DDP and autograd take."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


def done(value: Tensor) -> torch.futures.Future[Tensor]:
    """A future that has its value already."""
    future: torch.futures.Future[Tensor] = torch.futures.Future(
        devices=[] if value.device.type == "cpu" else [value.device]
    )
    future.set_result(value)
    return future


def plain_average(group: dist.ProcessGroup, buffer: Tensor) -> torch.futures.Future[Tensor]:
    """DDP's own way, to the bit: times one over the number of ranks, then all-reduce on its process group."""
    buffer.mul_(1 / dist.get_world_size(group))
    work = dist.all_reduce(buffer, group=group, async_op=True)
    assert work is not None
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return summed


def after_backward(function: Callable[[], None]) -> None:
    """Calls `function` at the end of the running backward pass, after DDP has finished its own part.

    An exception it raises comes out of backward() as it is, with its type. DDP queues its own callback once the last
    bucket is under way; one that is queued by a callback runs behind all of those.
    """
    engine = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(function))
