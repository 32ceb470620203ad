"""What measurements mean: what is wrong with a cluster, what each method would take on it, and what to do."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from terngrad.methods import Method
from terngrad.perf.buckets import default_plan
from terngrad.perf.choice import PLAIN, PLAIN_FP16, WORTH_IT, predict_methods
from terngrad.perf.network import HERE, Cluster, Link
from terngrad.perf.places import Place
from terngrad.perf.probes import Codec, Speeds
from terngrad.perf.profile import Profile
from terngrad.perf.step import AllReduce, Line, Prediction
from terngrad.perf.wires import Wire

SLOW_HOST = 1.3  # times the median rank: as slow as that it holds all others up
SLOW_LINK = 0.5  # of the median rank's rate
SHARED_CORE = 2.0  # contention, where the lane and backward have one core
OWN_CORES = 1.2  # and where they have more, but the same memory

_HARMFUL = {
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): "every collective is checked against all other ranks",
    ("CUDA_LAUNCH_BLOCKING", "1"): "every kernel is waited for, so that nothing overlaps",
    ("NCCL_IB_DISABLE", "1"): "InfiniBand is not used",
    ("NCCL_P2P_DISABLE", "1"): "devices of a node talk through the host",
    ("NCCL_SHM_DISABLE", "1"): "processes of a node talk through sockets",
    ("NCCL_DEBUG", "TRACE"): "NCCL writes a line for everything it does",
}


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    what: str  # a word for programs
    text: str  # what it is, and what to do
    ranks: tuple[int, ...]
    fatal: bool = False  # nothing works like that


# What is wrong


def unreachable(places: Sequence[Place]) -> list[Finding]:
    """Ranks that others cannot reach: there is no use in trying to connect."""
    found = []
    for place in places:
        others = [name for name, address in place.interfaces.items() if not address.startswith("127.")]
        there = f"rank {place.rank} on {place.host}"
        if not place.address:
            names = ", ".join(place.interfaces)
            text = f"{there} has no interface {place.interface}, only {names}; set GLOO_SOCKET_IFNAME to one of these"
            found.append(Finding("interface", text, (place.rank,), fatal=True))
        elif place.is_loopback and any(other.node != place.node for other in places):
            name = others[0] if others else "NAME, once it has an interface that others reach"
            text = (
                f"{there} is reached by {place.interface or 'loopback'} ({place.address}), which no other host can; "
                f"set GLOO_SOCKET_IFNAME={name} there"
            )
            found.append(Finding("interface", text, (place.rank,), fatal=True))
    return found


def odd_settings(places: Sequence[Place]) -> list[Finding]:
    found = []
    for (name, value), why in _HARMFUL.items():
        ranks = tuple(place.rank for place in places if place.settings.get(name, "").upper() == value)
        if ranks:
            found.append(Finding("setting", f"{name}={value} on {_ranks(ranks)}: {why}; unset it", ranks))
    crowded = [place.rank for place in places if place.threads > cores_for(place, places)]
    if crowded:
        first = places[crowded[0]]
        own = cores_for(first, places)
        few = f"set OMP_NUM_THREADS={max(1, int(own))} or less"
        text = f"{_ranks(crowded)}: {first.threads} threads each, and {own:.3g} cores; {few}"
        found.append(Finding("threads", text, tuple(crowded)))
    return found


def cores_for(place: Place, places: Sequence[Place]) -> float:
    """A rank's share of the cores that it may use, with others of the same machine."""
    sharing = [other for other in places if other.host == place.host and set(other.cores) & set(place.cores)]
    return len(place.cores) / max(1, len(sharing))


def contention_with(cores: float) -> float:
    """How much the lane and backward slow each other down on so many cores."""
    return SHARED_CORE if cores < 2 else OWN_CORES


def slow_hosts(places: Sequence[Place], speeds: Sequence[Speeds]) -> list[Finding]:
    """Ranks that compute, or move memory, much slower than most."""
    usual = statistics.median(speed.compute_s for speed in speeds)
    usual_copy = statistics.median(speed.copy_bytes_per_s for speed in speeds)
    found = []
    for place, speed in zip(places, speeds, strict=True):
        ratio = max(speed.compute_s / usual, usual_copy / speed.copy_bytes_per_s)
        if ratio > SLOW_HOST:
            text = (
                f"rank {place.rank} on {place.host} ({place.address}) is {ratio:.1f} times slower than most, and all "
                "wait for it: look for other work on that host, throttling, or another kind of processor"
            )
            found.append(Finding("slow-host", text, (place.rank,)))
    return found


def slow_links(places: Sequence[Place], wires: Sequence[Wire]) -> list[Finding]:
    """Ranks that send, or receive, much slower than most even where they are quickest."""
    if len({place.node for place in places}) > 1:  # then those within a node say nothing about links
        nodes = {place.rank: place.node for place in places}
        wires = [wire for wire in wires if nodes[wire.sender] != nodes[wire.receiver]]
    if len(places) < 3:  # whose link it is cannot be told
        return []
    found = []
    for does, end in (("sends", "sender"), ("receives", "receiver")):
        best: dict[int, float] = {}  # of the ranks that have such a wire: of many ranks not all pairs are measured
        for wire in wires:
            best[getattr(wire, end)] = max(wire.bytes_per_s, best.get(getattr(wire, end), 0.0))
        usual = statistics.median(best.values())
        found += [
            Finding(
                "slow-link",
                f"rank {place.rank} on {place.host} ({place.interface} {place.address}) {does} at "
                f"{in_bits(best[place.rank])}, most at {in_bits(usual)}: check its cable, port and interface",
                (place.rank,),
            )
            for place in places
            if best.get(place.rank, usual) < SLOW_LINK * usual
        ]
    return found


# What methods would take


def cluster_of(places: Sequence[Place], wires: Sequence[Wire], link: Link | None) -> Cluster:
    """As alpha and beta: of all ranks at once where each has a node of its own, else medians over the wires between
    nodes, and within. Unequal nodes count as one for each rank.
    """
    nodes = [place.node for place in places]
    home = dict(enumerate(nodes))
    near = [wire for wire in wires if home[wire.sender] == home[wire.receiver]]
    far = [wire for wire in wires if home[wire.sender] != home[wire.receiver]]
    devices = {nodes.count(node) for node in nodes}
    if len(devices) > 1:
        return Cluster(len(places), link or link_of(far))
    (each,) = devices
    if link is not None and (each == 1 or not far):
        return Cluster(len(places), link)
    between = link_of(far or near)
    if link is not None:
        between = replace(between, cpu_s=link.cpu_s, busy_s=link.busy_s)
    return Cluster(len(places) // each, between, each, link_of(near))


def in_ddp(profile: Profile, speeds: Sequence[Speeds]) -> Profile:
    """A bare model's step as it is inside DDP, which copies gradients to its buckets and back."""
    return profile.with_copies(min(speed.copy_bytes_per_s for speed in speeds))


def link_of(wires: Sequence[Wire]) -> Link:
    """The median wire."""
    if not wires:
        return HERE
    return Link(
        statistics.median(wire.latency_s for wire in wires), statistics.median(wire.bytes_per_s for wire in wires)
    )


def predict_all(
    profile: Profile,
    cluster: Cluster,
    codecs: Mapping[str, tuple[Method, Codec]],
    contention: float,
    cast_s: float = 0.0,
    overheads: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Prediction]:
    """The step of plain DDP, of torch's fp16 hook, which casts elements, and of methods with what their codecs take,
    by name; with what a bucket costs by itself, where that is known.
    """
    plan = default_plan(profile)
    return {
        **{
            name: Prediction(profile, plan, way, cluster, contention)
            for name, way in plain_ways(cast_s, overheads).items()
        },
        **predict_methods(profile, plan, cluster, codecs, contention, overheads=overheads),
    }


def plain_ways(cast_s: float, overheads: Mapping[str, float]) -> dict[str, AllReduce]:
    """What torch has by itself."""
    return {
        PLAIN: AllReduce(overhead_s=overheads.get(PLAIN, 0.0)),
        PLAIN_FP16: AllReduce("fp16", 2, cast=Line(0.0, cast_s), overhead_s=overheads.get(PLAIN_FP16, 0.0)),
    }


@dataclass(frozen=True)
class Trial:
    """Of a small model in DDP."""

    profile: Profile  # of the bare model, without communication
    codecs: Mapping[str, Codec]  # on its gradient
    steps: Mapping[str, float]  # seconds of forward and backward with a method, by name

    def overheads(
        self,
        speeds: Sequence[Speeds],
        cluster: Cluster,
        methods: Mapping[str, Method],
        contention: float,
    ) -> dict[str, float]:
        """What a bucket costs whatever its size, by name: with so much, these steps are predicted as they were."""
        profile, cast_s = in_ddp(self.profile, speeds), slowest_cast(speeds)
        codecs = {name: (methods[name], codec) for name, codec in self.codecs.items()}

        def late(overheads: Mapping[str, float]) -> dict[str, float]:
            """How much longer than predicted steps took."""
            found = predict_all(profile, cluster, codecs, contention, cast_s, overheads)
            return {name: self.steps[name] - one.step_s for name, one in found.items() if name in self.steps}

        high = {name: max(0.0, seconds) for name, seconds in late({}).items()}  # the last bucket's is never hidden
        low = dict.fromkeys(high, 0.0)
        for _ in range(20):
            middle = {name: (low[name] + high[name]) / 2 for name in high}
            for name, seconds in late(middle).items():
                (low if seconds > 0 else high)[name] = middle[name]
        return high

    def describe(self) -> dict[str, Any]:
        """For a file; `read` makes an equal one of it."""
        return asdict(self)

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Trial:
        codecs = {name: Codec.read(one) for name, one in found["codecs"].items()}
        return cls(Profile.read(found["profile"]), codecs, found["steps"])


def slowest_cast(speeds: Sequence[Speeds]) -> float:
    """Of an element to 16 bits, or back, on the slowest rank."""
    return max(speed.cast_s for speed in speeds)


def verdict(found: Mapping[str, Prediction]) -> str:
    """What to do, in a sentence or two."""
    plain = found[PLAIN]
    share = (plain.step_s - plain.profile.compute_s) / plain.step_s
    best = min(found, key=lambda name: found[name].step_s)
    exposed = f"Of a step of plain DDP, {1e3 * plain.step_s:,.0f} ms, communication is {100 * share:.0f} %."
    if best == PLAIN or found[best].step_s > WORTH_IT * plain.step_s:
        return f"{exposed} Do not compress: no method would make it shorter by more than {100 * (1 - WORTH_IT):.0f} %."
    gain = plain.step_s / found[best].step_s
    return f"{exposed} Use {best}: {1e3 * found[best].step_s:,.0f} ms, {gain:.1f} times as fast."


def in_bits(bytes_per_s: float) -> str:
    bits = 8 * bytes_per_s
    for unit, name in ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if bits >= unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits:.3g} b/s"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def described(found: Mapping[str, Prediction]) -> list[dict[str, Any]]:
    """Predictions, for JSON, quickest first."""
    return [
        {
            "method": name,
            "step_s": one.step_s,
            "exposed_s": one.timeline.exposed_s,
            "bytes_sent": one.bytes_sent,
            "bound": one.bound,
            "exchange": one.exchange,
        }
        for name, one in sorted(found.items(), key=lambda item: item[1].step_s)
    ]
