"""What measurements mean: what each method would take on a cluster, and which to use."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from terngrad.methods import Method, ParameterInfo, from_spec
from terngrad.perf.buckets import default_plan, largest_bucket
from terngrad.perf.choice import (
    LOSSLESS,
    PLAIN,
    PLAIN_FP16,
    SPARSE,
    UNBIASED,
    WORTH_IT,
    Estimate,
    choose,
    level_of,
    predict_methods,
)
from terngrad.perf.network import HERE, Cluster, Link
from terngrad.perf.places import Place
from terngrad.perf.probes import NUM_PROBED, Codec, Speeds, probed_numel, settled
from terngrad.perf.profile import VALUE_BYTES, Profile
from terngrad.perf.step import AllReduce, Coded, Line, Prediction, Sending, message_sizes
from terngrad.perf.wires import Wire

SHARED_CORE = 2.0  # contention, where the lane and backward have one core
OWN_CORES = 1.2  # and where they have more, but the same memory


def cores_for(place: Place, places: Sequence[Place]) -> float:
    """A rank's share of the cores that it may use, with others of the same machine."""
    sharing = [other for other in places if other.host == place.host and set(other.cores) & set(place.cores)]
    return len(place.cores) / max(1, len(sharing))


def contention_with(cores: float) -> float:
    """How much the lane and backward slow each other down on so many cores."""
    return SHARED_CORE if cores < 2 else OWN_CORES


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
    """What to do, in a sentence or two. Sparse methods are named beside the best of the others: they lose more."""
    plain = found[PLAIN]
    levels = {name: _level(one.sending) for name, one in found.items()}
    steps = {name: Estimate(one.step_s, one.exchange) for name, one in found.items()}
    dense = {name: one for name, one in steps.items() if levels[name] != SPARSE}
    mild, best = choose(dense, levels), choose(steps, levels)
    if found[mild].step_s > WORTH_IT * plain.step_s:
        mild = PLAIN

    def told(name: str) -> str:
        step_s = found[name].step_s
        return f"{name}: {_in_ms(step_s)}, {plain.step_s / step_s:.1f} times as fast"

    share = (plain.step_s - plain.profile.compute_s) / plain.step_s
    exposed = f"Of a step of plain DDP, {_in_ms(plain.step_s)}, communication is {100 * share:.0f} %."
    if levels[best] == SPARSE and found[best].step_s < WORTH_IT * found[mild].step_s:
        first = f"Use {told(mild)}; with" if mild != PLAIN else "Only sparse methods would make it much shorter: with"
        return f"{exposed} {first} sparse gradients, which need SGD, {told(best)}."
    if mild == PLAIN:
        return f"{exposed} Do not compress: no method would make it shorter by more than {100 * (1 - WORTH_IT):.0f} %."
    return f"{exposed} Use {told(mild)}."


def _level(sending: Sending) -> str:
    if isinstance(sending, Coded):
        return level_of(sending.method)
    return LOSSLESS if sending.name == AllReduce.name else UNBIASED


def codec_rates(codecs: Mapping[str, Codec], profile: Profile) -> list[dict[str, Any]]:
    """For JSON: fp32 bytes of a gradient that each encodes and decodes in a second, in buckets of the size that it was
    measured with, and how many of them a byte of a message stands for.
    """
    numel = probed_numel(largest_bucket(profile, default_plan(profile)))
    dense = VALUE_BYTES * numel
    one = [ParameterInfo("bucket", numel, False)]
    sizes = {
        name: codec.size_ratio * message_sizes(settled(from_spec(name)), one, NUM_PROBED, 1).message
        for name, codec in codecs.items()
    }
    return [
        {
            "method": name,
            "encode_bytes_per_s": _rate(dense, codec.encode(numel)),
            "decode_bytes_per_s": _rate(dense, codec.decode(numel)),
            "ratio": dense / sizes[name],
        }
        for name, codec in codecs.items()
    ]


def _rate(num_bytes: float, seconds: float) -> float | None:
    """None of what took no time that could be measured."""
    return num_bytes / seconds if seconds > 0 else None


def step_parts(profile: Profile) -> dict[str, Any]:
    """For JSON: what a step without communication consists of, and when gradients are ready, from backward's begin."""
    sent = accumulate(gradient.parameter.numel for gradient in profile.gradients)
    half = next(i for i, numel in enumerate(sent) if 2 * numel >= profile.numel)
    return {
        "forward_s": profile.forward_s,
        "backward_s": profile.backward_s,
        "update_s": profile.update_s,
        "gradients": len(profile.gradients),
        "numel": profile.numel,
        "first_ready_s": profile.gradients[0].ready_s,
        "half_ready_s": profile.gradients[half].ready_s,
    }


def _in_ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.3g} ms"


def in_bits(bytes_per_s: float) -> str:
    bits = 8 * bytes_per_s
    for unit, name in ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if bits >= unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits:.3g} b/s"


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
