"""The examination of a running cluster: places, speeds, wires and a model's step, put together on every rank."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from terngrad.errors import ConfigurationError, ExchangeError
from terngrad.exchange import Channel
from terngrad.methods import Method
from terngrad.perf.buckets import default_plan, largest_bucket
from terngrad.perf.diagnosis import (
    Trial,
    cluster_of,
    codec_rates,
    contention_with,
    cores_for,
    described,
    in_ddp,
    predict_all,
    slowest_cast,
    step_parts,
    verdict,
)
from terngrad.perf.findings import (
    Finding,
    mixed_networks,
    odd_settings,
    slow_hosts,
    slow_links,
    slow_threads,
    told_ranks,
    unreachable,
    unreached,
)
from terngrad.perf.network import Cluster, Link
from terngrad.perf.places import Place, find_place, tell_all
from terngrad.perf.probes import (
    Codec,
    Slowest,
    Speeds,
    measure_codec,
    measure_single,
    measure_speeds,
    slowest_codecs,
)
from terngrad.perf.profile import Profile
from terngrad.perf.reach import find_misses
from terngrad.perf.step import Prediction
from terngrad.perf.trial import Attach, try_small
from terngrad.perf.wires import Wire, measure_link, measure_wires, slowest_rank

MEETING = dt.timedelta(minutes=3)  # for all ranks to start, and to connect to each other
PATIENCE = dt.timedelta(minutes=30)  # for the slowest: to find it is what this is for
TRIAL_BYTES, LONGEST_TRIAL_S = 1 << 21, 0.5  # of the gradients of a trial, and of a step with plain DDP

MOST_LOOKS, PAUSE_S = 4, 0.3  # at speeds, before a rank is called slow: other work comes and goes

T = TypeVar("T")
Look = Callable[[Slowest], tuple[Profile, Tensor]]


@dataclass(frozen=True)
class Examination:
    """All that was found. `profile` and predictions are missing where ranks cannot reach each other."""

    places: list[Place]
    findings: list[Finding]
    speeds: list[Speeds] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    link: Link | None = None  # of all ranks at once
    profile: Profile | None = None
    codecs: Mapping[str, Codec] = field(default_factory=dict)
    trial: Trial | None = None
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    verdict: str = ""

    def describe(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "places": [place.describe() for place in self.places],
            "findings": [asdict(finding) for finding in self.findings],
            "speeds": [asdict(speed) for speed in self.speeds],
            "wires": [asdict(wire) for wire in self.wires],
            "link": asdict(self.link) if self.link else None,
            "profile": self.profile.describe() if self.profile else None,
            "parts": step_parts(self.profile) if self.profile else None,
            "codecs": {name: asdict(codec) for name, codec in self.codecs.items()},
            "rates": codec_rates(self.codecs, self.profile) if self.profile else [],
            "trial": self.trial.describe() if self.trial else None,
            "predictions": described(self.predictions),
            "verdict": self.verdict,
        }


def examine(
    rank: int,
    world_size: int,
    methods: Mapping[str, Method],
    look: Look,
    attach: Attach,
) -> Examination:
    """On all ranks, which all get the same; steps are the slowest rank's. Makes a process group of its own.

    `look` gives the profile of a step of the model, and a piece of its gradient; after each step it tells others what
    that took. `attach` is terngrad's, for steps of a small model with each method.
    """
    place = find_place(rank)
    if world_size == 1:
        return _alone(place, methods, look)
    store = _meet()
    desk = PrefixStore("doctor", store)
    places = tell_all(desk, place, world_size)
    findings = unreachable(places) or unreached(places, find_misses(desk, place, places))
    if findings:
        names = told_ranks(findings).capitalize()
        text = f"{names} cannot be reached; training fails, or waits for its timeout, as soon as others connect there."
        return Examination(places, findings, verdict=text)
    try:
        _connect(store, rank, world_size)
        return _together(places, place, methods, look, attach)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _meet() -> Any:
    """The store in which all ranks meet."""
    try:
        return next(rendezvous("env://", timeout=MEETING))[0]
    except ValueError as error:  # what the environment lacks
        raise ConfigurationError(f"{error}; start every rank by torchrun, or by `terngrad lab`") from error
    except RuntimeError as error:
        raise ExchangeError(f"ranks did not meet within {MEETING.total_seconds():.0f} s: {error}") from error


def _connect(store: Any, rank: int, world_size: int) -> None:
    """Makes the process group. It waits long for the slowest, but not for a connection."""
    try:
        dist.init_process_group(
            "gloo", store=PrefixStore("group", store), rank=rank, world_size=world_size, timeout=MEETING
        )
        dist.barrier()
    except RuntimeError as error:
        raise ExchangeError(
            f"rank {rank} could not connect to all of {world_size} ranks, though those that were tried could be "
            f"reached: {error}; look for a rank that has ended, and for a firewall between ranks"
        ) from error
    dist.distributed_c10d._set_pg_timeout(PATIENCE, dist.group.WORLD)


def _alone(place: Place, methods: Mapping[str, Method], look: Look) -> Examination:
    profile, sample = look(lambda seconds: seconds)
    codecs = _measure_codecs(methods, profile, sample)
    text = (
        "One rank: there is nothing to send. Start it on every rank, by torchrun or `terngrad lab`, to see its links."
    )
    speeds = look_at_speeds([place], lambda mine: [mine])
    findings = [*odd_settings([place]), *slow_threads([place], speeds)]
    return Examination([place], findings, speeds, [], None, profile, codecs, verdict=text)


def _measure_codecs(methods: Mapping[str, Method], profile: Profile, sample: Tensor) -> dict[str, Codec]:
    largest = largest_bucket(profile, default_plan(profile))
    return {name: measure_codec(method, sample, largest) for name, method in methods.items()}


def look_at_speeds(places: Sequence[Place], tell: Callable[[Speeds], list[Speeds]]) -> list[Speeds]:
    """Everyone's, in a look of all ranks at once in which none seems slow; if there is no such, each one's best."""
    best: list[Speeds] = []
    for number in range(MOST_LOOKS):
        time.sleep(PAUSE_S if number else 0.0)
        looked = tell(replace(measure_speeds(), single_s=measure_single()))
        best = [one.or_better(other) for one, other in zip(best or looked, looked, strict=True)]
        for found in (looked, best):
            if not slow_hosts(places, found) and not slow_threads(places, found):  # the same on all ranks
                return found
    return best


def _tell_everyone(mine: T) -> list[T]:
    """Everyone's, by rank; all begin at once with what follows."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    dist.barrier()
    return found


def _together(
    places: list[Place], place: Place, methods: Mapping[str, Method], look: Look, attach: Attach
) -> Examination:
    world_size = len(places)
    wires = measure_wires(place.rank, world_size, torch.device("cpu"))
    profile, sample = look(slowest_rank)
    dist.barrier()
    speeds = look_at_speeds(places, _tell_everyone)
    everyone = _tell_everyone((profile, _measure_codecs(methods, profile, sample)))
    slowest = max((found[0] for found in everyone), key=lambda found: found.compute_s)
    codecs = slowest_codecs([found[1] for found in everyone])
    link = measure_link(Channel(dist.distributed_c10d._get_default_group()), torch.device("cpu"))
    cluster = cluster_of(places, wires, link)
    contention = contention_with(min(cores_for(found, places) for found in places))
    known = {name: (methods[name], codecs[name]) for name in methods}
    # On a slow link the trial would take long, and what a bucket costs by itself would not matter.
    trial = try_small(methods, attach) if Cluster(world_size, link).all_reduce(TRIAL_BYTES) < LONGEST_TRIAL_S else None
    overheads = trial.overheads(speeds, cluster, methods, contention) if trial else {}
    predictions = predict_all(in_ddp(slowest, speeds), cluster, known, contention, slowest_cast(speeds), overheads)
    findings = [
        *mixed_networks(places),
        *odd_settings(places),
        *slow_threads(places, speeds),
        *slow_hosts(places, speeds),
        *slow_links(places, wires),
    ]
    return Examination(places, findings, speeds, wires, link, slowest, codecs, trial, predictions, verdict(predictions))
