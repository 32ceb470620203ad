"""What is measured, not computed: this machine's speeds, codecs, and a model's backward pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from terngrad.codecs import Segment
from terngrad.methods import Coder, Method, ParameterInfo, describe, open_bucket
from terngrad.perf.profile import Gradient, Profile
from terngrad.perf.step import Line

LEAST_PROBED, MOST_PROBED = 1 << 14, 1 << 22  # elements that codecs are measured with,
NUM_PROBED = 2  # and ranks
CACHE_BYTES = 1 << 24  # more than a core has to itself
MOST_REPEATS = 30  # of a step,
ENOUGH_S = 0.5  # if they do not take so long before
BEGINNINGS = ("warmup_steps", "dense_every_steps", "dense_every_epochs")  # with which a method is not yet as usual

Clock = Callable[[], float]
Slowest = Callable[[float], float]  # of everyone's number the largest, when all have told theirs


def median_seconds(action: Callable[[], Any], repeats: int, clock: Clock = time.perf_counter) -> float:
    """Of one call, after one that does not count."""
    action()
    found = []
    for _ in range(repeats):
        start = clock()
        action()
        found.append(clock() - start)
    return statistics.median(found)


def finish_work(device: torch.device) -> None:
    """Waits for what an accelerator has been given to do."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


# This machine


@dataclass(frozen=True)
class Speeds:
    """Of one rank."""

    copy_bytes_per_s: float  # of memory
    compute_s: float  # of a fixed amount of arithmetic
    cast_s: float = 0.0  # of an element to 16 bits, or back
    single_s: float = 0.0  # of the same arithmetic with one thread; 0 if that was not measured

    def or_better(self, other: Speeds) -> Speeds:
        """Of two measurements the best of each: what disturbs one makes it slower."""
        return Speeds(
            max(self.copy_bytes_per_s, other.copy_bytes_per_s),
            min(self.compute_s, other.compute_s),
            min(self.cast_s, other.cast_s),
            min(self.single_s, other.single_s),
        )


def measure_speeds(num_bytes: int = 1 << 26, repeats: int = 5) -> Speeds:
    source = torch.zeros(num_bytes, dtype=torch.uint8)
    target = torch.empty_like(source)
    values = torch.zeros(num_bytes // 16)
    return Speeds(
        num_bytes / median_seconds(lambda: target.copy_(source), repeats),
        _arithmetic_seconds(repeats),
        median_seconds(lambda: values.copy_(values.half()), repeats) / (2 * values.numel()),
    )


def measure_single(repeats: int = 5) -> float:
    """The arithmetic of `measure_speeds` with one thread. Not for a process that computes something else meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _arithmetic_seconds(repeats)
    finally:
        torch.set_num_threads(threads)


def _arithmetic_seconds(repeats: int) -> float:
    matrix = torch.full((384, 384), 1 / 384)  # random numbers are the user's
    return median_seconds(lambda: matrix @ matrix @ matrix @ matrix, repeats)


@dataclass(frozen=True)
class Codec:
    """What a method's messages take to make and to read, and how large they are."""

    encode: Line  # a bucket
    decode: Line  # one payload
    add: Line  # one payload of a shard, into a sum
    size_ratio: float = 1.0  # of messages to the size that the layout expects; not 1 only where they vary
    sum_ratio: float = 1.0  # likewise of sums

    @property
    def figures(self) -> tuple[Line, Line, Line, float, float]:
        """As `Coded` takes them."""
        return self.encode, self.decode, self.add, self.size_ratio, self.sum_ratio

    def seconds(self, numel: int) -> float:
        """Of everything, for so many elements."""
        return self.encode(numel) + self.decode(numel) + self.add(numel)

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Codec:
        """What `asdict` has made of one."""
        lines = {name: Line(**found[name]) for name in ("encode", "decode", "add")}
        return cls(**{**found, **lines})


def slowest_codecs(everyones: Sequence[dict[str, Codec]]) -> dict[str, Codec]:
    """Those of the rank that takes longest with them."""
    return max(everyones, key=lambda found: sum(codec.seconds(1 << 20) for codec in found.values()))


def settled(method: Any) -> Any:
    """As it is after its first steps."""
    return replace(method, **{name: 0 for name in BEGINNINGS if hasattr(method, name)})


def probed_numel(largest: int) -> int:
    """Elements of the bucket that codecs are measured with, where the model's largest has so many."""
    return min(max(largest, LEAST_PROBED), MOST_PROBED)


def measure_codec(method: Method, sample: Tensor, largest: int, repeats: int = 3) -> Codec:
    """Lines through two sizes of bucket, which `sample`, a piece of a real gradient, is repeated to fill.

    Of a method that has settled: in a warm-up messages are larger.

    `largest` is that of the model's largest bucket, in elements: what fits a cache is quicker than what does not.
    """
    most = probed_numel(largest)
    sizes = (most // 16, most)
    found = [_codec_seconds(settled(method), sample, numel, repeats) for numel in sizes]
    shards = (sizes[0] // NUM_PROBED, sizes[1] // NUM_PROBED)  # what is added up is a shard of a bucket
    times = {
        name: _line(shards if name == "add" else sizes, (found[0][0][name], found[1][0][name])) for name in found[0][0]
    }
    return Codec(**times, size_ratio=found[1][1], sum_ratio=found[1][2])


def _line(sizes: tuple[int, int], seconds: tuple[float, float]) -> Line:
    slope = max(0.0, (seconds[1] - seconds[0]) / (sizes[1] - sizes[0]))
    return Line(max(0.0, seconds[0] - slope * sizes[0]), slope)


def _codec_seconds(method: Method, sample: Tensor, numel: int, repeats: int) -> tuple[dict[str, float], float, float]:
    """Of a bucket with one parameter, exchanged by two ranks; and its messages and sums to the sizes expected.

    Over several steps, since a sparse method has to fill its residuals first.
    """
    world_size = NUM_PROBED
    infos = [ParameterInfo("probe.weight", numel, False)]
    segments = (Segment(0, 0, numel),)
    gradient = sample.flatten().float().repeat(-(-numel // sample.numel()))[:numel]
    spent: dict[str, list[float]] = {"encode": [], "decode": [], "add": []}
    coders = [Coder(method, infos, rank, world_size, 0) for rank in range(world_size)]
    ratio = sum_ratio = 1.0

    cache = torch.zeros(CACHE_BYTES, dtype=torch.uint8, device=sample.device)

    def now() -> float:
        finish_work(sample.device)
        return time.perf_counter()

    def forget() -> float:
        """Between encoding and decoding backward goes on, and takes the caches."""
        cache.add_(1)
        return now()

    for step in range(repeats + 1):
        for num_shards in (1, world_size):
            frame = coders[0].frame(segments, torch.float32, False, num_shards)
            codes = [open_bucket(coder, frame, gradient.clone(), 0, step) for coder in coders]
            start = forget()
            messages = _encode(codes)
            encoding = now() - start
            start = forget()
            if num_shards == 1:
                _decode(codes[0], [row[0] for row in messages])
                spent["decode"].append((now() - start) / world_size)
                spent["encode"].append(encoding / world_size)
                ratio = messages[0][0].numel() / frame.expected.nbytes
            else:
                total = _add(codes[0], [row[0] for row in messages])
                sum_ratio = total.numel() / frame.expected.sum_nbytes
                spent["add"].append((now() - start) / world_size)
            for coder in coders:
                coder.end_step()
    return {name: statistics.median(times[1:]) for name, times in spent.items()}, ratio, sum_ratio


def _encode(codes: Sequence[Any]) -> list[list[Tensor]]:
    """The messages of all ranks, by sender and shard."""
    scaled = [code.scaled for code in codes if code.scaled is not None]
    if scaled:
        rows = torch.zeros(
            len(codes), scaled[0].frame.scalers_nbytes, dtype=torch.uint8, device=scaled[0].buffer.device
        )
        for one, row in zip(scaled, rows, strict=True):
            one.scalers_message(row)
        for one in scaled:
            one.take_scalers(rows)
    return [_messages(code) for code in codes]


def _messages(code: Any) -> list[Tensor]:
    if code.varies:
        return list(code.pack())
    messages = torch.empty(code.frame.num_shards, code.frame.nbytes, dtype=torch.uint8, device=code.buffer.device)
    code.encode(messages)
    return list(messages)


def _decode(code: Any, messages: list[Tensor]) -> None:
    if code.varies:
        code.unpack(messages)
    else:
        code.decode(torch.stack(messages))


def _add(code: Any, messages: list[Tensor]) -> Tensor:
    if code.varies:
        total: Tensor = code.add(messages)
    else:
        total = torch.empty(code.frame.sum_nbytes, dtype=torch.uint8, device=code.buffer.device)
        code.sum_shard(torch.stack(messages), total)
    return total


# A model


def sample_of(module: nn.Module, most: int = 1 << 18) -> Tensor:
    """The gradient of the largest parameter, or the first of its elements."""
    found = [p.grad.flatten() for p in module.parameters() if p.grad is not None and not p.grad.is_sparse]
    return max(found, key=Tensor.numel, default=torch.zeros(1))[:most].clone()


def measure_profile(
    module: nn.Module,
    loss_of: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    repeats: int = 5,
    clock: Clock = time.perf_counter,
    slowest: Slowest = lambda seconds: seconds,
) -> Profile:
    """A step of a bare module: forward, when each gradient is ready in backward, and the update; medians.

    `repeats` is the least number of steps; there are more where they are short. Ranks take them at the same time, since
    some may share processors, and as many. Each is as long as it was on the slowest rank: all wait for that.
    """
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    ready: dict[str, list[float]] = {name: [] for name in parameters}
    forward, update, start = [], [], [0.0]
    own: list[float] = []  # seconds of each step here,
    steps: list[float] = []  # and where it took longest

    def noting(moments: list[float]) -> Callable[[Tensor], None]:
        return lambda _: moments.append(clock() - start[0])

    hooks = [
        parameter.register_post_accumulate_grad_hook(noting(ready[name]))  # type: ignore[no-untyped-call]
        for name, parameter in parameters.items()
    ]
    try:
        slowest(0.0)
        while is_short(steps, repeats):
            module.zero_grad(set_to_none=True)
            begin = clock()
            loss = loss_of()
            start[0] = clock()
            forward.append(start[0] - begin)
            torch.autograd.backward(loss)
            end = clock()
            if optimizer is not None:
                optimizer.step()
            update.append(clock() - end)
            own.append(end + update[-1] - begin)
            steps.append(slowest(own[-1]))
    finally:
        for hook in hooks:
            hook.remove()
    infos = describe(parameters)
    used = [info for info in infos if len(ready[info.name]) == len(steps)]
    gradients = sorted(
        (Gradient(info, statistics.median(ready[info.name][1:])) for info in used), key=lambda found: found.ready_s
    )
    here = Profile(statistics.median(forward[1:]), tuple(gradients), statistics.median(update[1:]))
    return here.times(statistics.median(steps[1:]) / statistics.median(own[1:]))


def is_short(steps: Sequence[float], repeats: int) -> bool:
    """Whether there should be more of them; the first does not count."""
    return len(steps) <= repeats or (len(steps) <= MOST_REPEATS and sum(steps[1:]) < ENOUGH_S)
