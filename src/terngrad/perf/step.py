"""The time of a training step: a profile, a plan of buckets, a cluster, and how messages are made and exchanged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

import torch

from terngrad.codecs import Frame, Segment
from terngrad.exchange import EXCHANGES, HEAD_BYTES, LENGTH_BYTES, SMALL_BYTES
from terngrad.methods import Coder, Method, ParameterInfo
from terngrad.perf.grouping import check_plan
from terngrad.perf.network import HERE, Cluster
from terngrad.perf.profile import Gradient, Profile
from terngrad.perf.timeline import Timeline, Work, simulate

LEAST_BACKWARD = 0.8  # of a backward pass that was slowed down all the time: alone it takes no less
SMALL_SHARE = 0.02  # of a step: what is exposed below that bounds nothing


@dataclass(frozen=True)
class Line:
    """Seconds for so many elements."""

    fixed_s: float = 0.0
    element_s: float = 0.0

    def __call__(self, numel: float) -> float:
        return self.fixed_s + self.element_s * numel


NOTHING = Line()


class Sending(ABC):
    """A way to average gradients, on any cluster: what it costs for a bucket of these parameters."""

    name: str
    exchange: str
    overhead_s: float  # of a bucket, whatever its size: hooks, and threads that wake each other up

    @abstractmethod
    def work(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> Work:
        """Of one bucket."""

    def num_parts(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> int:
        """In how many parts a bucket is sent, one after the other."""
        return 1

    @abstractmethod
    def bytes_sent(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> float:
        """By one worker, for one bucket."""

    @abstractmethod
    def without_codec(self) -> Sending:
        """The same, if making and reading messages took no time."""

    @abstractmethod
    def without_overhead(self) -> Sending:
        """The same, if a bucket cost nothing by itself."""


@dataclass(frozen=True)
class AllReduce(Sending):
    """Every bucket is summed while it goes round: torch's own way, in a type of so many bytes.

    With a `method`, messages have the size of its codes instead. No collective that sums can carry them, but the
    paper's model assumes that there is one.
    """

    name: str = "fp32"
    value_bytes: int = 4
    method: Method | None = None
    exchange: str = "all-reduce"
    cast: Line = NOTHING  # of a bucket, there and back each
    by_nodes: bool = False  # first in every node, then between nodes
    tree: bool = False  # and there not as a ring
    overhead_s: float = 0.0

    @property
    def _halves(self) -> bool:
        return self.method is None and self.value_bytes == 2

    def _num_bytes(self, parameters: Sequence[ParameterInfo]) -> float:
        if self.method is not None:
            return message_sizes(self.method, parameters, 1, 1).message
        return self.value_bytes * sum(parameter.numel for parameter in parameters)

    def work(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> Work:
        codec = self.cast(sum(parameter.numel for parameter in parameters))
        num_bytes = self._num_bytes(parameters)
        if self.by_nodes:
            send_s = cluster.all_reduce_by_nodes(num_bytes, tree=self.tree)
        else:
            send_s = cluster.all_reduce(num_bytes, halves=self._halves)
        link = cluster.between.in_ring(self._halves)
        alone = cluster.num_workers == 1
        return Work(
            codec + (0.0 if alone else self.overhead_s),
            send_s,
            codec,
            handling_s=link.cpu_s * self.bytes_sent(parameters, cluster),
            delay_s=0.0 if alone else 2 * link.busy_s,  # parts are summed, then sums passed on
            at_once=True,
        )

    def bytes_sent(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> float:
        num_bytes = self._num_bytes(parameters)
        if not self.by_nodes:
            return _round_a_ring(cluster.num_workers, num_bytes)
        between = _round_a_ring(cluster.num_nodes, num_bytes) / cluster.devices  # a device's share of its node's
        return between + _round_a_ring(cluster.devices, num_bytes)

    def without_codec(self) -> AllReduce:
        return replace(self, cast=NOTHING)

    def without_overhead(self) -> AllReduce:
        return replace(self, overhead_s=0.0)


def _round_a_ring(count: int, num_bytes: float) -> float:
    """What one of so many sends; on average also as a tree."""
    return 2 * (count - 1) / count * num_bytes


@dataclass(frozen=True)
class Sizes:
    """Bytes of a bucket's messages."""

    message: float
    total: float  # of a sum
    scalers: float
    varies: bool


def message_sizes(method: Method, parameters: Sequence[ParameterInfo], world_size: int, num_shards: int) -> Sizes:
    """Of a bucket of these parameters, from the layout that is really used."""
    coder = Coder(method, parameters, 0, world_size, 0)
    starts = accumulate((parameter.numel for parameter in parameters), initial=0)
    segments = tuple(
        Segment(i, start, parameter.numel) for i, (parameter, start) in enumerate(zip(parameters, starts, strict=False))
    )
    frame = coder.frame(segments, torch.float32, False, num_shards)
    expected = frame.expected
    return Sizes(expected.nbytes, expected.sum_nbytes, frame.scalers_nbytes, not isinstance(frame, Frame))


def exchanges_for(method: Method) -> list[str]:
    """Those that can carry it."""
    return [name for name, exchange in EXCHANGES.items() if method.has_sums or exchange.num_rounds == 1]


def _small_round(cluster: Cluster, num_bytes: float) -> float:
    """Everyone's small message to everyone: what is small goes round a ring, as it does on the channel."""
    return cluster.around(num_bytes) if num_bytes <= SMALL_BYTES else cluster.to_all(num_bytes)


@dataclass(frozen=True)
class Coded(Sending):
    """A method of this package, over an exchange. Sizes are those of its messages."""

    method: Method
    exchange: str = "all-gather"
    encode: Line = NOTHING  # a bucket, to all of one worker's messages
    decode: Line = NOTHING  # one payload, into the average
    add: Line = NOTHING  # one payload of a shard, into a sum
    size_ratio: float = 1.0  # of messages, where they vary, to the size that is expected
    sum_ratio: float = 1.0  # likewise of sums
    overhead_s: float = 0.0

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.method.spec

    def num_parts(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> int:
        if cluster.num_workers == 1 or EXCHANGES[self.exchange].num_rounds > 1:
            return 1
        return self.method.num_parts(sum(parameter.numel for parameter in parameters))

    def _sizes(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> Sizes:
        """Of a shard."""
        count, num_parts = cluster.num_workers, self.num_parts(parameters, cluster)
        num_shards = EXCHANGES[self.exchange].num_shards(count, num_parts)
        found = message_sizes(self.method, parameters, count, num_shards)
        return replace(found, message=self.size_ratio * found.message, total=self.sum_ratio * found.total)

    def work(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> Work:
        count = cluster.num_workers
        numel = sum(parameter.numel for parameter in parameters)
        if count == 1:
            return Work(0.0, 0.0, 0.0)
        sizes = self._sizes(parameters, cluster)
        room = HEAD_BYTES - LENGTH_BYTES if sizes.varies else 0.0  # what goes with the length, at once

        def head(num_bytes: float) -> float:
            return cluster.to_all(LENGTH_BYTES + min(num_bytes, room)) if sizes.varies else 0.0

        gathered = Work(
            self.encode(numel) + self.overhead_s,
            cluster.to_all(self.num_parts(parameters, cluster) * max(sizes.message - room, 0.0)),
            count * self.decode(numel),
            round_s=_small_round(cluster, sizes.scalers) if sizes.scalers else 0.0,
            lengths_s=head(sizes.message),
            handling_s=cluster.between.cpu_s * self.bytes_sent(parameters, cluster),
            delay_s=cluster.between.busy_s,
        )
        if EXCHANGES[self.exchange].num_rounds == 1:
            return gathered
        return replace(
            gathered,
            decode_s=self.decode(numel),
            in_two=True,
            add_s=count * self.add(numel / count),
            sum_lengths_s=head(sizes.total),
            sums_s=cluster.to_all(max(sizes.total - room, 0.0)),
        )

    def bytes_sent(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> float:
        count = cluster.num_workers
        sizes, parts = self._sizes(parameters, cluster), self.num_parts(parameters, cluster)
        rounds = EXCHANGES[self.exchange].num_rounds
        lengths = rounds * LENGTH_BYTES if sizes.varies else 0
        return (count - 1) * (parts * (sizes.message + lengths) + (sizes.total if rounds > 1 else 0) + sizes.scalers)

    def without_codec(self) -> Coded:
        return replace(self, encode=NOTHING, decode=NOTHING, add=NOTHING)

    def without_overhead(self) -> Coded:
        return replace(self, overhead_s=0.0)


@dataclass(frozen=True)
class Served(Coded):
    """The same through parameter servers, each on a node of its own: codes go there, sums come back."""

    num_servers: int = 1

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.method.spec}, {self.num_servers} servers"

    def num_parts(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> int:
        return 1

    def _messages(self, parameters: Sequence[ParameterInfo], count: int) -> Sizes:
        """All that a worker sends to servers, and what it gets from them."""
        found = message_sizes(self.method, parameters, count, self.num_servers)
        servers = self.num_servers
        return replace(
            found, message=servers * self.size_ratio * found.message, total=servers * self.sum_ratio * found.total
        )

    def work(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> Work:
        count = cluster.num_workers
        numel = sum(parameter.numel for parameter in parameters)
        sizes = self._messages(parameters, count)
        there_and_back = cluster.through_servers(sizes.message, sizes.total, self.num_servers)
        return Work(
            self.encode(numel) + self.overhead_s,
            there_and_back + count * self.add(numel / self.num_servers),
            self.decode(numel),
            round_s=_small_round(cluster, sizes.scalers) if sizes.scalers and count > 1 else 0.0,
            lengths_s=cluster.through_servers(LENGTH_BYTES, LENGTH_BYTES, self.num_servers) if sizes.varies else 0.0,
            handling_s=cluster.between.cpu_s * self.bytes_sent(parameters, cluster),
            delay_s=cluster.between.busy_s,
        )

    def bytes_sent(self, parameters: Sequence[ParameterInfo], cluster: Cluster) -> float:
        sizes = self._messages(parameters, cluster.num_workers)
        lengths = self.num_servers * LENGTH_BYTES if sizes.varies else 0
        return sizes.message + lengths + (cluster.num_workers - 1) * sizes.scalers


@dataclass(frozen=True)
class Prediction:
    """One step, with what bounds it: "compute", "codec", "latency" or "bandwidth"."""

    profile: Profile
    plan: tuple[int, ...]
    sending: Sending
    cluster: Cluster
    contention: float = 1.0

    def __post_init__(self) -> None:
        check_plan(self.plan, len(self.profile.gradients))

    @cached_property
    def timeline(self) -> Timeline:
        return self._timeline(self.sending, self.cluster)

    def _timeline(self, sending: Sending, cluster: Cluster) -> Timeline:
        return simulate(*self._works(sending, cluster), self.contention)

    @property
    def _groups(self) -> list[tuple[Gradient, ...]]:
        """The gradients of each bucket."""
        ends = list(accumulate(self.plan, initial=0))
        return [self.profile.gradients[first:last] for first, last in pairwise(ends)]

    def _works(self, sending: Sending, cluster: Cluster) -> tuple[list[float], list[Work]]:
        """When each part of a bucket is ready, and what it takes."""
        ready, works = [], []
        for group in self._groups:
            parameters = [gradient.parameter for gradient in group]
            parts = sending.work(parameters, cluster).cut(sending.num_parts(parameters, cluster))
            works += parts
            ready += [group[-1].ready_s] * len(parts)
        return ready, works

    def undisturbed(self, step_s: float) -> Profile:
        """The profile of a step that took `step_s`, if this one's was watched while gradients were sent.

        Sending slows backward down where both share cores, and the model would count that again. So backward is
        shortened until the prediction is the step as it was, but by no more than contention explains.
        """
        ready, works = self._works(self.sending, self.cluster)
        low, high = LEAST_BACKWARD / max(self.contention, 1.0), 1.0
        for _ in range(30):
            share = (low + high) / 2
            timeline = simulate([share * moment for moment in ready], works, self.contention)
            low, high = (low, share) if self._step_s(timeline) > step_s else (share, high)
        return self.profile.with_backward(high)

    @property
    def exchange(self) -> str:
        """How it is sent: the name of an exchange, or "all-reduce"."""
        return self.sending.exchange

    @property
    def step_s(self) -> float:
        return self._step_s(self.timeline)

    def _step_s(self, timeline: Timeline) -> float:
        return self.profile.forward_s + timeline.end_s + self.profile.update_s

    @property
    def bytes_sent(self) -> float:
        """By one worker."""
        return sum(
            self.sending.bytes_sent([gradient.parameter for gradient in group], self.cluster) for group in self._groups
        )

    @cached_property
    def bound(self) -> str:
        """That without which the step would be shortest."""
        if self.step_s - self.profile.compute_s < SMALL_SHARE * self.step_s:
            return "compute"
        cluster = self.cluster

        def with_links(**changes: float) -> Cluster:
            return replace(
                cluster, between=cluster.between.changed(**changes), within=cluster.within.changed(**changes)
            )

        quick, wide = with_links(latency_s=0.0, busy_s=0.0), with_links(bytes_per_s=HERE.bytes_per_s, cpu_s=0.0)
        without = {
            "bandwidth": self._timeline(self.sending, wide),
            "latency": self._timeline(self.sending.without_overhead(), quick),
            "codec": self._timeline(self.sending.without_codec(), cluster),
        }
        return min(without, key=lambda part: self._step_s(without[part]))


def break_even(
    profile: Profile, plan: tuple[int, ...], one: Sending, other: Sending, cluster: Cluster, contention: float = 1.0
) -> float | None:
    """The rate between nodes, in bytes a second, below which `one` takes a shorter step than `other`.

    None if it does not at 1 kB/s, infinity if it still does at 1 TB/s.
    """

    def gains(rate: float) -> bool:
        at = replace(cluster, between=cluster.between.changed(bytes_per_s=rate))
        return (
            Prediction(profile, plan, one, at, contention).step_s
            < Prediction(profile, plan, other, at, contention).step_s
        )

    low, high = 1e3, 1e12
    if not gains(low):
        return None
    if gains(high):
        return float("inf")
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if gains(middle) else (low, middle)
    return low
