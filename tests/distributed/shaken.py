"""Short runs in which every rank pauses at random wherever it can: before a bucket, a stage, a collective."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from typing import Any

from distributed.odd_model import FEW_SIZES, SMALL_BUCKETS_MB, Setting, Training, count_buckets
from terngrad.ddp.task import BucketTask
from terngrad.exchange import Channel, channel

_LONGEST_S = 0.02
_STEPS = 3


def _delayed(function: Callable[..., Any], generator: random.Random) -> Callable[..., Any]:
    """`function` behind a pause; every other one is none, so that ranks overtake each other."""

    def wrapper(*args: Any) -> Any:
        time.sleep(max(0.0, generator.uniform(-_LONGEST_S, _LONGEST_S)))
        return function(*args)

    return wrapper


def _shake_the_lane(rank: int) -> None:
    for owner, names in ((BucketTask, ("send", "forward", "finish")), (Channel, ("all_gather", "all_to_all"))):
        for name in names:
            generator = random.Random(f"{rank} {name}")
            setattr(owner, name, _delayed(getattr(owner, name), generator))


def shaken_runs(rank: int, world_size: int, num_runs: int) -> list[list[int]]:
    """The checksums of that many runs, a new model and handle each; two that follow each other differ in exchange."""
    warnings.simplefilter("error")
    _shake_the_lane(rank)
    return [_run_one(rank, number) for number in range(num_runs)]


def _run_one(rank: int, number: int) -> list[int]:
    channel.SMALL_BYTES = (1 << 15, 600)[number // 2 % 2]  # all by torch's collectives, or codes by direct sends
    exchange = ("all-gather", "two-shot")[number % 2]
    setting = Setting(exchange=exchange, bucket_cap_mb=SMALL_BUCKETS_MB, sizes=FEW_SIZES, seed=number // 2)
    training = Training(rank, setting)
    handle = training.handle
    counts = count_buckets(handle)
    handle.reduce = _delayed(handle.reduce, random.Random(f"{rank} {number}"))  # type: ignore[method-assign]
    checksums = []
    for _ in range(_STEPS):
        training.step()
        checksums.append(training.checksum())
    assert counts[-1] >= 4, f"{counts} buckets are too few for an order to go wrong"
    handle.detach()
    return checksums
