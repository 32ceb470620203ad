"""The examination of a running cluster: places, speeds, wires and a model's step, put together on every rank."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

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
    Finding,
    Trial,
    cluster_of,
    contention_with,
    cores_for,
    described,
    in_ddp,
    odd_settings,
    predict_all,
    slow_hosts,
    slow_links,
    slowest_cast,
    unreachable,
    verdict,
)
from terngrad.perf.network import Cluster, Link
from terngrad.perf.places import Place, find_place, tell_all
from terngrad.perf.probes import Codec, Slowest, Speeds, measure_codec, measure_speeds, slowest_codecs
from terngrad.perf.profile import Profile
from terngrad.perf.step import Prediction
from terngrad.perf.trial import Attach, try_small
from terngrad.perf.wires import Wire, measure_link, measure_wires, slowest_rank

MEETING = dt.timedelta(minutes=3)  # for all ranks to start
PATIENCE = dt.timedelta(minutes=30)  # for the slowest: to find it is what this is for
TRIAL_BYTES, LONGEST_TRIAL_S = 1 << 21, 0.5  # of the gradients of a trial, and of a step with plain DDP

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
            "codecs": {name: asdict(codec) for name, codec in self.codecs.items()},
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
    places = tell_all(PrefixStore("doctor", store), place, world_size)
    findings = unreachable(places)
    if findings:
        names = ", ".join(str(finding.ranks[0]) for finding in findings)
        return Examination(
            places, findings, verdict=f"Rank {names} cannot be reached; training would wait for its timeout."
        )
    dist.init_process_group(
        "gloo", store=PrefixStore("group", store), rank=rank, world_size=world_size, timeout=PATIENCE
    )
    try:
        return _together(places, place, methods, look, attach)
    finally:
        dist.destroy_process_group()


def _meet() -> Any:
    """The store in which all ranks meet."""
    try:
        return next(rendezvous("env://", timeout=MEETING))[0]
    except ValueError as error:  # what the environment lacks
        raise ConfigurationError(f"{error}; start every rank by torchrun, or by `terngrad lab`") from error
    except RuntimeError as error:
        raise ExchangeError(f"ranks did not meet within {MEETING.total_seconds():.0f} s: {error}") from error


def _alone(place: Place, methods: Mapping[str, Method], look: Look) -> Examination:
    profile, sample = look(lambda seconds: seconds)
    codecs = _measure_codecs(methods, profile, sample)
    text = (
        "One rank: there is nothing to send. Start it on every rank, by torchrun or `terngrad lab`, to see its links."
    )
    return Examination([place], odd_settings([place]), [measure_speeds()], [], None, profile, codecs, verdict=text)


def _measure_codecs(methods: Mapping[str, Method], profile: Profile, sample: Tensor) -> dict[str, Codec]:
    largest = largest_bucket(profile, default_plan(profile))
    return {name: measure_codec(method, sample, largest) for name, method in methods.items()}


def _together(
    places: list[Place], place: Place, methods: Mapping[str, Method], look: Look, attach: Attach
) -> Examination:
    world_size = len(places)
    dist.barrier()
    wires = measure_wires(place.rank, world_size, torch.device("cpu"))
    profile, sample = look(slowest_rank)
    dist.barrier()
    mine = measure_speeds(), profile, _measure_codecs(methods, profile, sample)
    everyone: list[Any] = [None] * world_size
    dist.all_gather_object(everyone, mine)
    speeds = [found[0] for found in everyone]
    slowest = max((found[1] for found in everyone), key=lambda found: found.compute_s)
    codecs = slowest_codecs([found[2] for found in everyone])
    link = measure_link(Channel(dist.distributed_c10d._get_default_group()), torch.device("cpu"))
    cluster = cluster_of(places, wires, link)
    contention = contention_with(min(cores_for(found, places) for found in places))
    known = {name: (methods[name], codecs[name]) for name in methods}
    # On a slow link the trial would take long, and what a bucket costs by itself would not matter.
    trial = try_small(methods, attach) if Cluster(world_size, link).all_reduce(TRIAL_BYTES) < LONGEST_TRIAL_S else None
    overheads = trial.overheads(speeds, cluster, methods, contention) if trial else {}
    predictions = predict_all(in_ddp(slowest, speeds), cluster, known, contention, slowest_cast(speeds), overheads)
    findings = [*odd_settings(places), *slow_hosts(places, speeds), *slow_links(places, wires)]
    return Examination(places, findings, speeds, wires, link, slowest, codecs, trial, predictions, verdict(predictions))
