"""Real gloo processes for tests: start them, collect what each rank returns, never hang."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass
class Outcome:
    """What one rank returned, or the text of what it raised; neither if it was killed."""

    value: Any = None
    error: str | None = None
    error_type: str | None = None


def _rank_main(
    rank: int, world_size: int, store: str, timeout_s: float, results: Any, function: Any, args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=dt.timedelta(seconds=timeout_s),
        )
        results.put((rank, Outcome(value=function(rank, world_size, *args))))
    except BaseException as error:
        results.put((rank, Outcome(error=traceback.format_exc(), error_type=type(error).__name__)))
    results.close()
    results.join_thread()
    os._exit(0)  # a broken process group must not hold up the exit


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    group_timeout_s: float = 60.0,
    deadline_s: float = 120.0,
    expect_dead: tuple[int, ...] = (),
) -> list[Outcome]:
    """Runs `function(rank, world_size, *args)` in as many processes, each in a gloo group, and gives their outcomes.

    `function` must be importable. Ranks in `expect_dead` need not answer. Fails rather than hang.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "terngrad"])  # DDP imports _dynamo, which takes seconds
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        processes = [
            context.Process(
                target=_rank_main,
                args=(rank, world_size, store, group_timeout_s, results, function, args),
                daemon=True,
            )
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        outcomes = [Outcome() for _ in range(world_size)]
        missing = set(range(world_size)) - set(expect_dead)
        end = time.monotonic() + deadline_s
        try:
            while missing and time.monotonic() < end:
                try:
                    rank, outcome = results.get(timeout=0.5)
                except queue.Empty:
                    continue
                outcomes[rank] = outcome
                missing.discard(rank)
        finally:
            for rank, process in enumerate(processes):
                process.join(timeout=0.1 if missing or rank in expect_dead else 5)
                if process.is_alive():
                    process.kill()
                    process.join()
        assert not missing, f"ranks {sorted(missing)} gave no answer within {deadline_s} s"
    return outcomes


def values(outcomes: list[Outcome]) -> list[Any]:
    """What all ranks returned; fails with the first rank's error if one raised."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, f"rank {rank} raised:\n{outcome.error}"
    return [outcome.value for outcome in outcomes]
