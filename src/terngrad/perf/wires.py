"""What is measured between ranks: every wire by itself, and all of them at once."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations

import torch
import torch.distributed as dist

from terngrad.exchange import Channel, Pending
from terngrad.perf.network import Link
from terngrad.perf.probes import finish_work, median_seconds

FIRST_BYTES, MOST_BYTES = 1 << 18, 1 << 28  # of the messages that a wire is measured with
ROUND_BYTES = 1 << 26  # of all messages that a rank receives in a round, at most
FEWEST_ROUNDS, MOST_ROUNDS = 10, 40  # that a latency is the mean of
LONGEST_S = 20.0  # for a thread to compute beside something, if that does not end


@dataclass(frozen=True)
class Wire:
    """From one rank to another."""

    sender: int
    receiver: int
    latency_s: float  # half of there and back
    bytes_per_s: float


def pairs_of(world_size: int, most: int = 8) -> list[tuple[int, int]]:
    """All pairs of few ranks; of many, neighbours on a ring, and the first with every other one."""
    if world_size <= most:
        return list(combinations(range(world_size), 2))
    ring = {tuple(sorted((rank, (rank + 1) % world_size))) for rank in range(world_size)}
    return sorted((a, b) for a, b in ring | {(0, rank) for rank in range(1, world_size)})


def measure_wires(rank: int, world_size: int, device: torch.device, seconds: float = 0.4) -> list[Wire]:
    """Of every pair, one after the other and in both directions; on all ranks, which all get the result."""
    mine: list[Wire] = []
    for pair in pairs_of(world_size):
        for sender, receiver in (pair, pair[::-1]):
            dist.barrier()
            if rank in pair:
                wire = _measure_wire(rank, sender, receiver, device, seconds)
                if wire is not None:
                    mine.append(wire)
    everyone: list[list[Wire]] = [[] for _ in range(world_size)]
    dist.all_gather_object(everyone, mine)
    return sorted((wire for part in everyone for wire in part), key=lambda wire: (wire.sender, wire.receiver))


def _measure_wire(rank: int, sender: int, receiver: int, device: torch.device, seconds: float) -> Wire | None:
    """On both ranks at once; the sender gets the result."""
    other = receiver if rank == sender else sender
    word = torch.zeros(1, dtype=torch.uint8, device=device)

    def there_and_back() -> None:
        for turn in (sender, receiver):
            if rank == turn:
                dist.send(word, other)
            else:
                dist.recv(word, other)

    latency = median_seconds(there_and_back, 20) / 2
    size = FIRST_BYTES
    while True:
        message = torch.zeros(size, dtype=torch.uint8, device=device)
        start = time.perf_counter()
        if rank == sender:
            dist.send(message, other)
            dist.recv(word, other)  # it has arrived
            took = max(time.perf_counter() - start - latency, 1e-9)
            wire = Wire(sender, receiver, latency, size / took)
            size = 0 if took > seconds / 2 or size == MOST_BYTES else _next_size(size, seconds / took)
            dist.send(torch.tensor([size], device=device), other)  # one clock decides: both must expect the same next
        else:
            dist.recv(message, other)
            dist.send(word, other)
            wire = None
            following = torch.zeros(1, dtype=torch.int64, device=device)
            dist.recv(following, other)
            size = int(following)
        if size == 0:
            return wire


def _next_size(size: int, wanted: float) -> int:
    """So many times larger, but neither less than double nor more than sixteen times."""
    return min(MOST_BYTES, int(size * min(max(wanted, 2.0), 16.0)))


def measure_link(channel: Channel, device: torch.device, seconds: float = 0.1) -> Link:
    """Of rounds in which every rank sends to every other one, and of rings, by the slowest rank; on all ranks alike.

    In about forty times as many seconds.
    """
    count = channel.world_size
    round_bytes, ring_share = count - 1, 2 * (count - 1) / count  # that a rank sends, for a byte of a message

    def slowest(post: Callable[[], Pending]) -> tuple[float, float]:
        """Seconds, by the clock and of the processor."""
        finish_work(device)
        start, worked = time.perf_counter(), time.process_time()
        post().wait()
        finish_work(device)
        took = torch.zeros(count, 2, dtype=torch.float64)
        took[channel.rank, 0] = time.perf_counter() - start
        took[channel.rank, 1] = time.process_time() - worked
        everyone = took.to(device)
        channel.all_gather(everyone.view(torch.uint8)).wait()
        found = everyone.cpu().max(dim=0).values
        return float(found[0]), float(found[1])

    def to_all(num_bytes: int) -> Callable[[], Pending]:
        received = torch.zeros(count, num_bytes, dtype=torch.uint8, device=device)
        messages = torch.zeros_like(received[:1]).expand_as(received)
        return lambda: channel.all_to_all(received, messages)

    def around(num_bytes: int, dtype: torch.dtype = torch.float32) -> Callable[[], Pending]:
        values = torch.zeros(num_bytes // dtype.itemsize, dtype=dtype, device=device)
        return lambda: channel.all_reduce(values, num_bytes)

    def usual(post: Callable[[], Pending]) -> float:
        """A mean, since a step has many rounds, but without the tenths at both ends; all ranks stop at the same one."""
        found: list[float] = []
        while len(found) < FEWEST_ROUNDS or (len(found) < MOST_ROUNDS and sum(found) < 2 * seconds):
            found.append(slowest(post)[0])
        tenth = len(found) // 10
        return statistics.fmean(sorted(found)[tenth : len(found) - tenth])

    def rate(make: Callable[[int], Callable[[], Pending]], latency: float, share: float) -> tuple[float, float]:
        """Bytes that a rank sends in a second, and the processor's seconds for one."""
        size, most = FIRST_BYTES, ROUND_BYTES // count
        while True:
            rounds = [slowest(make(size)) for _ in range(3)]
            took = max(statistics.median(clock for clock, _ in rounds) - latency, 1e-9)
            if took > seconds / 2 or size >= most:
                worked = statistics.median(cpu for _, cpu in rounds)
                return share * size / took, worked / (share * size)
            size = min(most, _next_size(size, seconds / took))

    small = torch.zeros(count, 1, dtype=torch.uint8, device=device)
    kinds = (to_all(1), lambda: channel.all_gather(small))
    slowest(to_all(FIRST_BYTES))  # connections are made
    alone = [usual(post) for post in kinds]
    busy = alone
    if device.type == "cpu":  # else backward is not on the processors
        with computing():
            busy = [usual(post) for post in kinds]
    more = [max(0.0, after - before) for before, after in zip(alone, busy, strict=True)]
    hop, twice = alone[1] / (count - 1), 2 * alone[1]
    ring = Link(hop, *rate(around, twice, ring_share), more[1])
    half_ring = Link(hop, *rate(lambda size: around(size, torch.float16), twice, ring_share), more[1])
    return Link(alone[0], *rate(to_all, alone[0], round_bytes), more[0], ring, half_ring)


def slowest_rank(seconds: float) -> float:
    """Of everyone's the largest, when all have told theirs."""
    longest = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return float(longest)


@contextmanager
def computing() -> Iterator[None]:
    """Has another thread compute all the while, as backward does."""
    ended = threading.Event()

    def compute() -> None:
        matrix = torch.full((256, 256), 1 / 256)
        end = time.monotonic() + LONGEST_S
        while not ended.is_set() and time.monotonic() < end:
            matrix @ matrix

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
