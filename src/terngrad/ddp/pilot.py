"""Choosing while training: plain DDP is measured, methods are predicted from that, and what is chosen is measured too.

There is one estimate of a step for every candidate. At first all but plain DDP's are predictions. The choice follows
from the estimates; after some steps its own is replaced by what these took, and the choice is made again: one that does
not keep what was predicted of it is left for the next, and nothing is measured twice. Then steps are watched, and all
begins anew, from predictions, when they change.

Ranks decide at the same steps, from the same figures: those of the slowest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from terngrad.ddp.auto import Auto, Decision
from terngrad.ddp.watch import Watch
from terngrad.errors import ConfigurationError
from terngrad.methods import Method, ParameterInfo
from terngrad.perf import AllReduce, Cluster, Link, Prediction, Profile, largest_bucket, plan_buckets
from terngrad.perf.choice import LOSSLESS, PLAIN, Estimate, choose, level_of, predict_methods
from terngrad.perf.diagnosis import contention_with, cores_for, in_bits
from terngrad.perf.places import Place, find_place
from terngrad.perf.probes import Codec, measure_codec

log = logging.getLogger("terngrad.auto")

SETTLING = 2  # steps with a method that are not measured: buckets, buffers and connections are made
FEWEST, MOST = 3, 8  # steps that are
ENOUGH_S = 4.0  # of seconds, between these
DRIFT = 1.3  # times a step that was measured, or less than that part of it: something has changed
SAMPLE = 1 << 18  # elements of a gradient, to measure codecs with
ALL_REDUCE = "all-reduce"


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
        exchanges: Sequence[str],
        crew: Crew,
        watch: Watch,
    ) -> None:
        self._auto = auto
        self._methods = methods  # those that can be used here
        self._levels = {PLAIN: LOSSLESS, **{spec: level_of(method) for spec, method in methods.items()}}
        self._parameters = parameters
        self._exchanges = exchanges
        self._crew = crew
        self._watch = watch
        self._sample: Tensor | None = None
        self._estimates: dict[str, Estimate] = {}
        self._plain_ratio = 1.0  # of what plain DDP takes to what is predicted of it
        self._steps = 0  # since the last decision
        self._settled = False
        self.pinned = False
        self.decisions: list[Decision] = []

    @property
    def choice(self) -> str:
        """What is used: a spec, or PLAIN."""
        return self.decisions[-1].method

    @property
    def choosing(self) -> bool:
        """Whether the choice has not been measured yet."""
        return not (self._settled or self.pinned)

    def start(self, step: int) -> Decision:
        """The first decision: plain DDP, or what a profile says."""
        if not self._methods:
            self.pinned = True
            return self._take(Decision(step, PLAIN, ALL_REDUCE, "no candidate can be used: see what was said before"))
        if self._auto.profile:
            self._estimates = self._read_profile()
            decision: Decision = self._crew.gather(self._decide(step, f"by {self._auto.profile}: "))[0]
            return self._take(decision)
        return self._take(Decision(step, PLAIN, ALL_REDUCE, "to measure a step as it is"))

    def _read_profile(self) -> dict[str, Estimate]:
        """Raises on all ranks if one of them cannot read it."""
        numel = sum(parameter.numel for parameter in self._parameters)
        problem: str | None = None
        found: dict[str, Estimate] = {}
        try:
            found = self._auto.read_profile(numel, self._crew.world_size)
        except ConfigurationError as error:
            problem = str(error)
        problems = [(rank, text) for rank, text in enumerate(self._crew.gather(problem)) if text is not None]
        if problems:
            rank, text = problems[0]
            raise ConfigurationError(f"rank {rank}: {text}")
        return {name: one for name, one in found.items() if name in self._levels}

    # In every step

    def begin(self, step: int) -> Decision | None:
        """At the first bucket of a step, on all ranks: what holds from it on, if that changes."""
        self._watch.begin()
        if self.pinned:
            return None
        self._steps += 1
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
        if self.choosing and self._steps == SETTLING + 1 and not buffer.is_sparse:
            piece = buffer.detach().flatten()[:SAMPLE]
            if self._sample is None or piece.numel() > self._sample.numel():
                self._sample = piece.clone()

    def end(self) -> None:
        """Averages have arrived."""
        self._watch.end()

    # Decisions

    def _conclude(self, step: int) -> Decision | None:
        """The step of what is used is known: does the choice stand?"""
        self._note_measured()
        if len(self._estimates) == 1:  # nothing is known of the others yet
            self._predict()
        return self._choose(step, "")

    def _review(self, step: int) -> Decision | None:
        """Do steps still take what they took?"""
        before = self._estimates[self.choice]
        self._note_measured()
        now = self._estimates[self.choice]
        if now.seconds < DRIFT * before.seconds and before.seconds < DRIFT * now.seconds:
            self._estimates[self.choice] = before  # or slow changes would never be seen
            self._watch.clear()
            return None
        self._estimates = {self.choice: now}
        self._predict()
        self._watch.clear()
        return self._choose(step, f"a step took {before}, now {now}; ")

    def _note_measured(self) -> None:
        mine = self._watch.period_s
        slowest = max(self._crew.gather(mine if mine is not None else 0.0))  # a rank that has joined measures nothing
        self._estimates[self.choice] = Estimate(slowest, self.decisions[-1].exchange, measured=True)

    def _predict(self) -> None:
        """Estimates for all that has none, from the steps that were watched and from probes, which take a second."""
        link = self._crew.measure_link()
        sample = self._sample
        profiled = self._watch.profile(self._parameters)
        codecs: dict[str, Codec] = {}
        if sample is not None and profiled is not None:
            largest = largest_bucket(*profiled)
            codecs = {spec: measure_codec(method, sample, largest) for spec, method in self._methods.items()}
        mine = find_place(self._crew.rank), profiled, codecs
        everyone: list[tuple[Place, tuple[Profile, tuple[int, ...]] | None, dict[str, Codec]]]
        everyone = self._crew.gather(mine)
        places = [place for place, _, _ in everyone]
        profiles = [found for _, found, _ in everyone if found is not None]
        known = [found for _, _, found in everyone if found]
        if not profiles or not known:
            return
        profile, plan = max(profiles, key=lambda found: found[0].compute_s)
        slowest = max(known, key=lambda found: sum(codec.encode(1 << 20) for codec in found.values()))
        contention = contention_with(min(cores_for(place, places) for place in places))
        cluster = Cluster(self._crew.world_size, link)
        plain = Prediction(profile, plan, AllReduce(), cluster, contention)
        if PLAIN in self._estimates:
            self._plain_ratio = self._estimates[PLAIN].seconds / plain.step_s
        found = predict_methods(
            profile,
            plan,
            cluster,
            {spec: (method, slowest[spec]) for spec, method in self._methods.items()},
            contention,
            self._exchanges,
        )
        predicted = {PLAIN: Estimate(self._plain_ratio * plain.step_s, ALL_REDUCE)}
        predicted |= {spec: Estimate(one.step_s, one.sending.exchange) for spec, one in found.items()}  # type: ignore[attr-defined]
        self._estimates = {**predicted, **self._estimates}
        self._tell(
            f"links carry {in_bits(link.bytes_per_s)} with a latency of {1e6 * link.latency_s:,.0f} us; the model is "
            f"off by {100 * (1 / self._plain_ratio - 1):+.0f} % for plain DDP"
        )
        self._advise(found, profile, cluster, contention)

    def _advise(self, found: Mapping[str, Prediction], profile: Profile, cluster: Cluster, contention: float) -> None:
        """Says so if other buckets would be better; only DDP itself can make them, when it is made."""
        name = choose(self._estimates, self._levels)
        if name not in found:
            return
        plan = plan_buckets(profile, cluster, found[name].sending, contention)
        if plan.step_s < 0.95 * found[name].step_s:
            caps = ", ".join(f"{cap:.3g}" for cap in plan.caps_mb)
            self._tell(
                f"with DistributedDataParallel(..., bucket_cap_mb_list=[{caps}]) {name} would take "
                f"{1e3 * plan.step_s:,.1f} ms instead of {1e3 * found[name].step_s:,.1f}"
            )

    def _choose(self, step: int, why: str) -> Decision | None:
        decision: Decision = self._crew.gather(self._decide(step, why))[0]
        if decision.method == self.choice:
            self._settled = True
            self._tell(f"stays with {decision.method}: {decision.reason}")
            return None
        self._settled = self._estimates[decision.method].measured
        return self._take(decision)

    def _decide(self, step: int, why: str) -> Decision:
        name = choose(self._estimates, self._levels)
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
            "plain_ratio": self._plain_ratio,
            "estimates": {name: (one.seconds, one.exchange) for name, one in self._estimates.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any] | None, method: str, step: int) -> Decision:
        """Goes on with what was chosen, or with the method of a state without choices; that is measured anew."""
        self._settled = False
        if state is None:
            self._estimates, self.pinned = {}, method not in self._levels
            return self._take(Decision(step, method, "auto", "as it was saved"))
        self._estimates = {
            name: Estimate(*values) for name, values in state["estimates"].items() if name in self._levels
        }
        self.pinned = state["pinned"] or state["choice"] not in self._levels
        self._plain_ratio = state["plain_ratio"]
        return self._take(Decision(step, state["choice"], state["exchange"], "as it was saved", dict(self._estimates)))
