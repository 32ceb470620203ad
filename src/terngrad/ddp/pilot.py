"""Choosing while training: plain DDP is measured, methods are predicted from that, and what is chosen is measured too.

There is one estimate of a step for every candidate. At first all but plain DDP's are predictions. What would be best,
if predictions were somewhat too long, is tried: after some steps its prediction is replaced by what these took, and the
choice is made again. When nothing is left that might be better, the best of what was measured is; but those that are
close to it are measured a second time before that. Then steps are watched, and all begins anew, from predictions, when
they change.

Ranks decide at the same steps, from the same figures: those of the slowest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from terngrad.ddp.auto import Auto, Decision
from terngrad.ddp.watch import Watch
from terngrad.errors import ConfigurationError
from terngrad.methods import Method, ParameterInfo, Sparse
from terngrad.perf import (
    AllReduce,
    Cluster,
    Link,
    Prediction,
    Profile,
    by_bucket,
    largest_bucket,
    plan_buckets,
)
from terngrad.perf.choice import (
    ALL_REDUCE,
    LOSSLESS,
    PLAIN,
    WORTH_IT,
    Estimate,
    calibrated,
    choose,
    choose_next,
    level_of,
    predict_methods,
)
from terngrad.perf.diagnosis import contention_with, cores_for, in_bits
from terngrad.perf.places import Place, find_place
from terngrad.perf.probes import Codec, measure_codec, measure_speeds, slowest_codecs

log = logging.getLogger("terngrad.auto")

SETTLING = 2  # steps with a method that are not measured: buckets, buffers and connections are made
FEWEST, MOST = 3, 8  # steps that are
ENOUGH_S = 4.0  # of seconds, between these
DRIFT = 1.3  # times a step that was measured, or less than that part of it: something has changed
SAMPLE = 1 << 18  # elements of a gradient, to measure codecs with
SAVED = "as it was saved"

Local = tuple[Place, tuple[Profile, tuple[int, ...]] | None, dict[str, Codec], float]


class Crew(Protocol):
    """What is done together with the other ranks, on all of them alike."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def gather(self, value: object) -> list[Any]:
        """Everyone's, by rank."""

    def measure_link(self) -> Link: ...


class Pilot:
    """Makes the decisions of one handle."""

    def __init__(
        self,
        auto: Auto,
        methods: Mapping[str, Method],
        parameters: Sequence[ParameterInfo],
        num_trained: int,
        exchanges: Sequence[str],
        crew: Crew,
        watch: Watch,
    ) -> None:
        self._auto = auto
        self._methods = dict(methods)  # those that can be used here
        self._parameters = parameters
        self._num_trained = num_trained  # elements of those that have a gradient
        self._exchanges = exchanges
        self._crew = crew
        self._watch = watch
        self._sample: Tensor | None = None
        self._sampled = 0, 0  # the step it was taken in, and the elements of its bucket
        self._saw_sparse = False
        self._estimates: dict[str, Estimate] = {}
        self._compute_s = 0.0  # of a step without communication, as far as it is known
        self._steps = 0  # since the last decision
        self._settled = False
        self._resumed = False  # estimates are those of another run
        self.pinned = False
        self.decisions: list[Decision] = []

    @property
    def choice(self) -> str:
        """What is used: a spec, or PLAIN."""
        return self.decisions[-1].method

    @property
    def choosing(self) -> bool:
        """Whether something is still to be measured before the choice is final."""
        return not (self._settled or self.pinned)

    @property
    def _levels(self) -> dict[str, str]:
        return {PLAIN: LOSSLESS, **{spec: level_of(method) for spec, method in self._methods.items()}}

    def start(self, step: int) -> Decision:
        """The first decision: plain DDP, or what a profile says."""
        if not self._methods:
            self.pinned = True
            return self._take(Decision(step, PLAIN, ALL_REDUCE, f"allow={self._auto.allow!r} leaves nothing else"))
        if self._auto.profile:
            self._estimates, self._compute_s = self._read_profile()
            name = choose(self._estimates, self._levels)
            return self._take(self._decision(step, name, f"by {self._auto.profile}: "))
        return self._take(Decision(step, PLAIN, ALL_REDUCE, "to measure a step as it is"))

    def _read_profile(self) -> tuple[dict[str, Estimate], float]:
        """As the first rank has it, with what computing takes. Raises on all ranks if one of them cannot read it."""
        problem: str | None = None
        found: tuple[dict[str, Estimate], float] = {}, 0.0
        try:
            found = self._auto.read_profile(self._num_trained, self._crew.world_size)
        except Exception as error:  # whatever it is, the others wait for this rank
            problem = str(error)
        everyone = self._crew.gather((problem, found))
        for rank, (text, _) in enumerate(everyone):
            if text is not None:
                raise ConfigurationError(f"rank {rank}: {text}")
        estimates, compute_s = everyone[0][1]
        return {name: one for name, one in estimates.items() if name in self._levels}, compute_s

    # In every step

    def begin(self, step: int) -> Decision | None:
        """At the first bucket of a step, on all ranks: what holds from it on, if that changes."""
        self._watch.begin(precise=self.choosing)
        if self.pinned:
            return None
        self._steps += 1
        with self._watch.aside():
            decision = self._look(step)
        if decision is not None:
            self._steps = 1  # this one is the first
        return decision

    def _look(self, step: int) -> Decision | None:
        measured = self._steps - 1 - SETTLING  # the step that begins is not over
        if measured == 0:
            self._watch.clear()
        if self._settled:
            return self._review(step) if self._steps % self._auto.review_every == 0 else None
        if measured < FEWEST:
            return None
        if measured < MOST and max(self._crew.gather(self._watch.total_s)) < ENOUGH_S:
            return None
        return self._conclude(step)

    def ready(self, indices: tuple[int, ...], buffer: Tensor) -> None:
        """A bucket of these parameters is ready."""
        self._watch.ready(indices)
        if not self.choosing:
            return
        self._saw_sparse |= buffer.is_sparse
        step, numel = self._sampled
        if self._steps > SETTLING and not buffer.is_sparse and step in (0, self._steps) and buffer.numel() > numel:
            piece = buffer.detach().flatten()[:SAMPLE].clone()
            if bool(torch.isfinite(piece).all()):  # a scale of the loss that is too high is usual at first
                self._sample, self._sampled = piece, (self._steps, buffer.numel())

    def end(self) -> None:
        """Averages have arrived."""
        self._watch.end()

    # Decisions

    def _conclude(self, step: int) -> Decision | None:
        """The step of what is used is known: does the choice stand?"""
        before = self._estimates.get(self.choice)
        now = self._measured()
        if self._resumed and (before is None or not _alike(before, now)):  # it was another cluster
            self._estimates = {}
        elif before is not None and before.measured:
            now = before.and_again(now)
        self._resumed = False
        self._estimates[self.choice] = now
        if len(self._estimates) == 1:  # nothing is known of the others
            self._predict()
        return self._choose(step, "")

    def _review(self, step: int) -> Decision | None:
        """Do steps still take what they took?"""
        before = self._estimates[self.choice]
        now = self._measured()
        if _alike(before, now):  # the older one stays, or slow changes would never be seen
            self._watch.clear()
            return None
        self._estimates = {self.choice: now}
        self._predict()
        return self._choose(step, f"a step took {before}, now {now}; ")

    def _measured(self) -> Estimate:
        """Of the slowest rank; one that has joined early measures nothing."""
        everyone = self._crew.gather((self._watch.period_s or 0.0, self._saw_sparse))
        if any(saw for _, saw in everyone):
            self._leave_out_compensating()
        slowest = max(seconds for seconds, _ in everyone)
        return Estimate(slowest, self.decisions[-1].exchange, measured=1, longest_s=slowest)

    def _leave_out_compensating(self) -> None:
        """Sparse gradients pass through, and their momentum cannot."""
        for spec, method in list(self._methods.items()):
            if isinstance(method, Sparse) and method.compensates and spec != self.choice:
                self._tell(f"{spec} is no candidate: the model has sparse gradients, whose momentum cannot be moved")
                del self._methods[spec]
                self._estimates.pop(spec, None)

    def _predict(self) -> None:
        """Estimates for all that has none, from the steps that were watched and from probes of some seconds."""
        link = self._crew.measure_link()
        problem: str | None = None
        mine: Local | None = None
        try:
            mine = self._look_around()
        except Exception as error:  # whatever it is, the others wait for this rank, and training can go on
            problem = repr(error)
        everyone: list[tuple[str | None, Local | None]] = self._crew.gather((problem, mine))
        for rank, (text, _) in enumerate(everyone):
            if text is not None:
                self._tell(f"nothing can be predicted: rank {rank} failed with {text}")
                return
        told = [local for _, local in everyone if local is not None]
        profiles = [profiled for _, profiled, _, _ in told if profiled is not None]
        codecs = [found for _, _, found, _ in told if found]
        if profiles and codecs:
            self._estimate(link, told, profiles, codecs)

    def _look_around(self) -> Local:
        """On this rank alone."""
        profiled = self._watch.profile(self._parameters)
        codecs: dict[str, Codec] = {}
        if self._sample is not None and profiled is not None:
            largest = largest_bucket(*profiled)
            codecs = {spec: measure_codec(method, self._sample, largest) for spec, method in self._methods.items()}
        return find_place(self._crew.rank), profiled, codecs, measure_speeds().copy_bytes_per_s

    def _estimate(
        self,
        link: Link,
        told: Sequence[Local],
        profiles: Sequence[tuple[Profile, tuple[int, ...]]],
        everyones_codecs: Sequence[dict[str, Codec]],
    ) -> None:
        places = [place for place, _, _, _ in told]
        contention = contention_with(min(cores_for(place, places) for place in places))
        profile, plan = max(profiles, key=lambda found: found[0].compute_s)
        profile = profile.with_copies_back(min(rate for _, _, _, rate in told))
        codecs = slowest_codecs(everyones_codecs)
        cluster = Cluster(self._crew.world_size, link)
        known = {spec: (method, codecs[spec]) for spec, method in self._methods.items()}

        def predict(profile: Profile, exchanges: Sequence[str]) -> dict[str, Prediction]:
            plain = Prediction(profile, plan, AllReduce(), cluster, contention)
            return {PLAIN: plain, **predict_methods(profile, plan, cluster, known, contention, exchanges)}

        used = self.decisions[-1].exchange
        in_use = [used] if used in self._exchanges else self._exchanges
        took = self._estimates[self.choice].seconds
        running = predict(profile, in_use)[self.choice]
        profile = running.undisturbed(took)
        found, model_s = predict(profile, self._exchanges), replace(running, profile=profile).step_s
        self._compute_s = profile.compute_s
        for spec, one in found.items():
            seconds = calibrated(one.step_s, model_s, took, profile.compute_s)
            self._estimates.setdefault(spec, Estimate(seconds, one.exchange))
        self._tell(
            f"links carry {in_bits(link.bytes_per_s)} with a latency of {1e6 * link.latency_s:,.0f} us; "
            f"computing takes {1e3 * self._compute_s:,.1f} ms of a step; the model is off by "
            f"{100 * model_s / took - 100:+.0f} %"
        )
        if self._crew.rank == 0:
            self._advise(found, profile, plan, cluster, contention)

    def _advise(
        self,
        found: Mapping[str, Prediction],
        profile: Profile,
        plan: tuple[int, ...],
        cluster: Cluster,
        contention: float,
    ) -> None:
        """Says so if fewer buckets would be better; only DDP itself can make them, when it is made."""
        name = choose(self._estimates, self._levels)
        if name not in found:
            return
        joined = plan_buckets(by_bucket(profile, plan), cluster, found[name].sending, contention)
        if joined.step_s < WORTH_IT * found[name].step_s:
            caps = ", ".join(f"{cap:.3g}" for cap in joined.caps_mb)
            self._tell(
                f"with DistributedDataParallel(..., bucket_cap_mb_list=[{caps}]) a step with {name} would be "
                f"{100 - 100 * joined.step_s / found[name].step_s:.0f} % shorter"
            )

    def _choose(self, step: int, why: str) -> Decision | None:
        decision, self._settled = self._decide(step, why)
        if decision.method != self.choice:
            return self._take(decision)
        self._watch.clear()
        if not self._settled:
            self._steps = 1 + SETTLING  # there is nothing to settle
        self._tell(f"{'stays with' if self._settled else 'measures again'} {decision.method}: {decision.reason}")
        return None

    def _decide(self, step: int, why: str) -> tuple[Decision, bool]:
        """And whether that is final. What the first rank says."""
        name, final = choose_next(self._estimates, self._levels, self._compute_s, self.choice)
        first: tuple[Decision, bool] = self._crew.gather((self._decision(step, name, why), final))[0]
        return first

    def _decision(self, step: int, name: str, why: str) -> Decision:
        ordered = sorted(self._estimates, key=lambda other: self._estimates[other].seconds)
        reason = why + ", ".join(f"{other} {self._estimates[other]}" for other in ordered)
        return Decision(step, name, self._estimates[name].exchange, reason, dict(self._estimates))

    def _take(self, decision: Decision) -> Decision:
        self.decisions.append(decision)
        self._steps = 0
        self._watch.clear()
        self._tell(f"step {decision.step}: {decision.method} by {decision.exchange}: {decision.reason}")
        return decision

    def _tell(self, text: str) -> None:
        if self._crew.rank == 0:
            log.info(text)

    def pin(self, decision: Decision) -> None:
        """No more choices: this holds."""
        self.pinned = True
        self._take(decision)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What is known, so that a resumed training need not measure plain DDP again."""
        return {
            "choice": self.choice,
            "exchange": self.decisions[-1].exchange,
            "pinned": self.pinned,
            "world_size": self._crew.world_size,
            "compute_s": self._compute_s,
            "estimates": {name: astuple(one) for name, one in self._estimates.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any] | None, method: str, step: int) -> Decision:
        """Goes on with what was chosen, or with the method of a state without choices; that is measured anew.

        If it is none of what may be chosen here, it begins with plain DDP.
        """
        self._settled, self._resumed, self._estimates = False, False, {}
        choice, exchange = (PLAIN if method == "fp32" else method), ALL_REDUCE if method == "fp32" else "auto"
        if state is not None:
            choice, exchange, self.pinned = state["choice"], state["exchange"], state["pinned"]
            self._compute_s = state["compute_s"]
        if choice not in self._levels and not self.pinned:
            return self._take(Decision(step, PLAIN, ALL_REDUCE, f"{choice}, {SAVED}, may not be chosen here"))
        if state is not None and state["world_size"] == self._crew.world_size:
            self._resumed = True
            known = state["estimates"].items()
            self._estimates = {name: Estimate(*values) for name, values in known if name in self._levels}
        return self._take(Decision(step, choice, exchange, SAVED, dict(self._estimates)))


def _alike(before: Estimate, now: Estimate) -> bool:
    """Whether a step takes about what it took, quiet or disturbed."""
    return before.seconds < DRIFT * now.seconds and now.seconds < DRIFT * max(before.seconds, before.longest_s)
