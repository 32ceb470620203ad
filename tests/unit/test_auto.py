"""How "auto" chooses: estimates, the watch on steps, and a pilot that flies a scripted cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from examinations import CODECS, LINK, saved
from hypothesis import given
from hypothesis import strategies as st

import terngrad as tg
from terngrad.ddp.auto import as_auto
from terngrad.ddp.pilot import FEWEST, MOST, SETTLING, Pilot
from terngrad.ddp.watch import Watch
from terngrad.perf import AllReduce, Cluster, Gradient, Link, ParameterInfo, Prediction, Profile
from terngrad.perf.choice import PLAIN, Estimate, calibrated, choose, choose_next, level_of
from terngrad.perf.saved import Saved
from terngrad.perf.step import LEAST_BACKWARD

FAST, SLOW = Link(1e-6, 1e12), Link(1e-4, 1e6)
PARAMETERS = [ParameterInfo("a.weight", 40_000, False), ParameterInfo("b.weight", 60_000, False)]
LEVELS = {PLAIN: "lossless", "fp16": "unbiased", "terngrad": "unbiased", "sdagc": "sparse"}


# What a user can say


def test_candidates_are_those_that_lose_no_more_than_is_allowed() -> None:
    assert set(tg.Auto("lossless").methods) == set()
    assert {level_of(method) for method in tg.Auto().methods.values()} == {"unbiased"}
    assert "sdagc" in tg.Auto("sparse").methods
    assert set(tg.Auto("sparse", candidates=("terngrad", "fp32")).methods) == {"terngrad", "fp32"}


@pytest.mark.parametrize(
    "auto", [tg.Auto(), tg.Auto("sparse"), tg.Auto(candidates=("fp16", "terngrad:codec=entropy"), review_every=50)]
)
def test_a_spec_means_what_it_was_made_of(auto: tg.Auto) -> None:
    assert as_auto(auto.spec) == auto


def test_candidates_are_texts_of_one_form() -> None:
    assert tg.Auto(candidates=("terngrad:codec=base3",)).candidates == ("terngrad",)
    with pytest.raises(tg.ConfigurationError, match="tuple of specs"):
        tg.Auto(candidates=(tg.TernGrad(),))  # type: ignore[arg-type]


def test_methods_are_not_auto() -> None:
    assert as_auto("terngrad") is None
    assert as_auto(tg.TernGrad()) is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("auto:allow=anything", ["'anything'", "lossless, unbiased, sparse"]),
        ("auto:review_every=1", ["review_every=1", "at least 10"]),
        ("auto:candidates=morse", ["'morse'", "terngrad"]),
        ("auto:speed=11", ["speed=11", "allow=..."]),
    ],
)
def test_what_it_cannot_mean_is_refused(spec: str, words: list[str]) -> None:
    with pytest.raises(tg.ConfigurationError) as caught:
        as_auto(spec)
    assert all(word in str(caught.value) for word in words)


# Choosing


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({PLAIN: 1.0, "fp16": 1.1, "terngrad": 1.2, "sdagc": 1.3}, PLAIN),
        ({PLAIN: 1.0, "fp16": 0.97, "terngrad": 0.96, "sdagc": 0.955}, PLAIN),  # less than a twentieth
        ({PLAIN: 1.0, "fp16": 0.6, "terngrad": 0.2, "sdagc": 0.195}, "terngrad"),
        ({PLAIN: 1.0, "fp16": 0.6, "terngrad": 0.2, "sdagc": 0.1}, "sdagc"),
        ({PLAIN: 1.0}, PLAIN),
    ],
)
def test_more_loss_must_gain_a_twentieth(seconds: dict[str, float], chosen: str) -> None:
    estimates = {name: Estimate(value, "all-gather") for name, value in seconds.items()}
    assert choose(estimates, LEVELS) == chosen


@pytest.mark.parametrize(
    ("found", "current", "expected"),
    [
        ({PLAIN: (1.0, 1), "fp16": (1.2, 0)}, PLAIN, ("fp16", False)),  # of 0.8 beyond computing half may be true
        ({PLAIN: (1.0, 2), "fp16": (2.0, 0)}, PLAIN, (PLAIN, True)),  # 1.2 at best
        ({PLAIN: (1.0, 1), "fp16": (2.0, 0)}, PLAIN, (PLAIN, False)),  # for the second time
        ({PLAIN: (1.0, 1), "fp16": (0.9, 1)}, "fp16", ("fp16", False)),  # the second time
        ({PLAIN: (1.0, 1), "fp16": (0.9, 2)}, "fp16", (PLAIN, False)),  # it is close
        ({PLAIN: (1.0, 2), "fp16": (0.9, 2)}, PLAIN, ("fp16", True)),
        ({PLAIN: (1.0, 1), "fp16": (0.5, 1), "terngrad": (0.7, 1)}, "terngrad", ("fp16", False)),
        ({PLAIN: (1.0, 1), "fp16": (0.5, 2), "terngrad": (0.7, 1)}, "fp16", ("fp16", True)),  # nothing is close
        ({PLAIN: (1.0, 2), "fp16": (0.5, 1), "terngrad": (0.55, 0)}, "fp16", ("terngrad", False)),
    ],
)
def test_what_might_be_best_is_tried_and_what_is_close_is_measured_twice(
    found: dict[str, tuple[float, int]], current: str, expected: tuple[str, bool]
) -> None:
    estimates = {name: Estimate(seconds, "all-gather", measured) for name, (seconds, measured) in found.items()}
    assert choose_next(estimates, LEVELS, 0.4, current) == expected


@given(st.lists(st.floats(0.01, 10.0), min_size=12, max_size=12), st.floats(0.0, 0.1))
def test_measuring_ends_after_two_for_each(times: list[float], compute_s: float) -> None:
    """Whatever is measured, and in which order: predictions of one second each, four candidates."""
    estimates = dict.fromkeys(LEVELS, Estimate(1.0, "all-gather"))
    current, counts = PLAIN, dict.fromkeys(LEVELS, 0)
    for seconds in times:
        now = Estimate(seconds, "all-gather", 1, seconds)
        before = estimates[current]
        estimates[current] = before.and_again(now) if before.measured else now
        counts[current] += 1
        current, final = choose_next(estimates, LEVELS, compute_s, current)
        if final:
            break
    assert final
    assert max(counts.values()) <= 2
    assert estimates[current].measured == 2


# Watching


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watched(watch: Watch, clock: Clock, rest: float, gaps: list[float], tail: float) -> None:
    """A step: some time, then buckets one after the other, then the end."""
    watch.begin()
    clock.now += rest
    for index, gap in enumerate(gaps):
        clock.now += gap
        watch.ready((index,))
    clock.now += tail
    watch.end()
    watch.end()  # DDP's callbacks come once for every bucket


def test_a_watch_finds_the_median_step() -> None:
    clock = Clock()
    watch = Watch(clock)
    assert watch.period_s is None
    assert watch.profile(PARAMETERS) is None
    watched(watch, clock, 9.0, [0.0, 1.0], 1.0)  # of the first step the beginning is not known
    assert watch.period_s is None
    for rest in (2.0, 3.0, 50.0):
        watched(watch, clock, rest, [0.0, 0.5], 1.5)
    assert watch.period_s == 5.0
    assert watch.total_s == 4.0 + 5.0 + 52.0
    found = watch.profile(PARAMETERS)
    assert found is not None
    profile, plan = found
    assert (profile.forward_s, profile.backward_s, profile.update_s) == (3.0, 0.5, 0.0)
    assert [gradient.parameter.name for gradient in profile.gradients] == ["a.weight", "b.weight"]
    assert plan == (1, 1)


def test_a_watch_leaves_out_steps_with_other_buckets() -> None:
    clock = Clock()
    watch = Watch(clock)
    watched(watch, clock, 1.0, [0.0], 1.0)
    watched(watch, clock, 1.0, [0.0], 1.0)
    watched(watch, clock, 7.0, [0.0, 1.0], 1.0)
    found = watch.profile(PARAMETERS)
    assert found is not None
    assert found[0].forward_s == 7.0
    assert found[1] == (1, 1)


# Deciding


class Crew:
    """Two ranks that measure the same."""

    rank, world_size = 0, 2

    def __init__(self, link: Link) -> None:
        self.link = link
        self.num_probes = 0

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def measure_link(self) -> Link:
        self.num_probes += 1
        return self.link


class Flight:
    """A pilot, and steps that take what a test says of the method in use."""

    def __init__(self, link: Link, auto: tg.Auto | None = None) -> None:
        self.clock = Clock()
        self.crew = Crew(link)
        auto = auto or tg.Auto()
        self.pilot = Pilot(
            auto, auto.methods, PARAMETERS, 100_000, ["all-gather", "two-shot"], self.crew, Watch(self.clock)
        )
        self.pilot.start(0)
        self.step = 0

    def fly(self, steps: int, seconds: Callable[[str], float], compute: float = 0.0) -> None:
        """So many steps, with what communication adds to computing."""
        gradient = torch.linspace(-1, 1, 1000)
        for _ in range(steps):
            self.clock.now += compute
            self.pilot.begin(self.step)
            self.pilot.ready((1,), gradient)
            self.clock.now += 0.002
            self.pilot.ready((0,), gradient)
            self.clock.now += seconds(self.pilot.choice)
            self.pilot.end()
            self.step += 1

    @property
    def chosen(self) -> list[str]:
        return [decision.method for decision in self.pilot.decisions]


def test_it_starts_with_plain_ddp_and_measures_that() -> None:
    flight = Flight(SLOW)
    flight.fly(SETTLING + FEWEST, lambda name: 0.01)
    assert flight.chosen == [PLAIN]
    assert flight.crew.num_probes == 0


def test_on_a_slow_link_it_takes_what_is_predicted_to_be_best_and_stays_with_it() -> None:
    flight = Flight(SLOW, tg.Auto(candidates=("fp16", "terngrad")))  # 0.4 s there in fp32, 20 ms in ternary codes
    flight.fly(60, lambda name: 0.4 if name == PLAIN else 0.02)
    assert flight.chosen == [PLAIN, "terngrad"]
    decision = flight.pilot.decisions[-1]
    assert decision.step <= SETTLING + MOST + 1
    assert decision.estimates[PLAIN].measured
    assert not decision.estimates[decision.method].measured
    assert "ddp 402.0 ms (measured)" in decision.reason
    assert json.dumps(decision.describe())


def test_steps_of_seconds_are_not_measured_more_often_than_needed() -> None:
    flight = Flight(SLOW, tg.Auto(candidates=("terngrad",)))
    flight.fly(SETTLING + FEWEST + 2, lambda name: 20.0 if name == PLAIN else 0.02)
    assert len(flight.chosen) == 2


def test_on_a_fast_link_it_stays_with_plain_ddp() -> None:
    flight = Flight(FAST)
    flight.fly(60, lambda name: 0.001, compute=0.4)
    assert flight.chosen == [PLAIN]
    assert flight.crew.num_probes == 1


def test_what_cannot_be_explained_is_tried() -> None:
    """Plain DDP waits, and the link is not to blame: perhaps its all-reduce is, so others get their chance."""
    flight = Flight(FAST, tg.Auto(candidates=("fp16",)))
    flight.fly(60, lambda name: 0.4)
    assert flight.chosen == [PLAIN, "fp16", PLAIN]


def test_what_is_close_is_measured_twice_and_the_shorter_counts() -> None:
    """While plain DDP is measured first, and then fp16, something else is going on in one of the two."""
    flight = Flight(SLOW, tg.Auto(candidates=("fp16",)))
    block = SETTLING + MOST
    flight.fly(block, lambda name: 0.40)
    flight.fly(block, lambda name: 0.42)  # with fp16, disturbed
    assert flight.chosen == [PLAIN, "fp16"]
    assert flight.pilot.choosing
    flight.fly(60, lambda name: 0.40 if name == PLAIN else 0.36)
    assert flight.chosen == [PLAIN, "fp16", PLAIN, "fp16"]
    assert not flight.pilot.choosing
    assert all(one.measured == 2 for one in flight.pilot.decisions[-1].estimates.values())


def test_a_backward_pass_that_sending_slows_down_is_not_slowed_down_twice() -> None:
    """Two ranks on a core: half of a watched backward pass is all that is left of it without sending."""
    parameters = [ParameterInfo("a.weight", 1_000_000, False), ParameterInfo("b.weight", 1_000_000, False)]
    alone = Profile(1.0, (Gradient(parameters[0], 0.2), Gradient(parameters[1], 1.0)), 0.1)
    cluster = Cluster(2, Link(1e-6, 1e9, cpu_s=1e-7))
    real = Prediction(alone, (1, 1), AllReduce(), cluster, contention=2.0)
    watched = replace(real, profile=alone.with_backward(real.timeline.backward_s / alone.backward_s))
    assert watched.step_s > 1.1 * real.step_s
    assert watched.undisturbed(real.step_s).backward_s == pytest.approx(alone.backward_s, rel=1e-3)
    assert watched.undisturbed(100.0) == watched.profile  # nothing that a shorter backward pass could explain
    for contention in (1.2, 2.0):  # and it does not explain more than it can
        least = LEAST_BACKWARD / contention * watched.profile.backward_s
        assert replace(watched, contention=contention).undisturbed(0.1).backward_s == pytest.approx(least)


def test_what_the_model_does_not_know_makes_all_steps_longer() -> None:
    assert calibrated(3.0, 2.0, 4.0, 1.0) == 6.0
    assert calibrated(3.0, 4.0, 2.5, 1.0) == 2.0  # it gave twice as much for sending as that takes
    assert calibrated(3.0, 4.0, 0.5, 1.0) == 1.0


def test_what_does_not_keep_its_promise_is_left_and_nothing_is_tried_twice() -> None:
    flight = Flight(SLOW)
    flight.fly(300, lambda name: 0.4 if name == PLAIN else 5.0)
    assert flight.chosen[0] == flight.chosen[-1] == PLAIN
    tried = flight.chosen[1:-1]
    assert len(tried) == len(set(tried)) == len(tg.Auto().methods)


def test_the_next_best_is_taken_if_it_keeps_its() -> None:
    flight = Flight(SLOW, tg.Auto(candidates=("fp16", "terngrad")))
    flight.fly(100, lambda name: {PLAIN: 0.4, "terngrad": 5.0, "fp16": 0.2}[name])
    assert flight.chosen == [PLAIN, "terngrad", "fp16"]


def test_when_steps_change_it_looks_anew() -> None:
    flight = Flight(SLOW, tg.Auto(candidates=("terngrad",), review_every=20))
    flight.fly(50, lambda name: 0.4 if name == PLAIN else 0.02)
    assert flight.chosen == [PLAIN, "terngrad"]
    flight.crew.link = FAST  # the network is no longer slow, but something else takes time
    flight.fly(40, lambda name: 0.1 if name == PLAIN else 0.2)
    assert flight.chosen == [PLAIN, "terngrad", PLAIN]
    assert flight.crew.num_probes == 2
    assert "a step took" in flight.pilot.decisions[-1].reason


def test_a_pinned_choice_stays() -> None:
    flight = Flight(SLOW)
    flight.pilot.pin(tg.Decision(0, PLAIN, "all-reduce", "pinned"))
    flight.fly(60, lambda name: 0.4)
    assert flight.chosen == [PLAIN, PLAIN]
    assert flight.crew.num_probes == 0


def test_with_nothing_to_choose_from_plain_ddp_is_the_last_word() -> None:
    flight = Flight(SLOW, tg.Auto("lossless"))
    flight.fly(60, lambda name: 0.4)
    assert flight.chosen == [PLAIN]
    assert flight.crew.num_probes == 0


def resumed(link: Link, world_size: int = 2) -> Flight:
    """A flight that goes on with the choice of one over a slow link."""
    auto = tg.Auto(candidates=("terngrad",))
    before = Flight(SLOW, auto)
    before.fly(60, lambda name: 0.4 if name == PLAIN else 0.02)
    assert before.pilot.choice == "terngrad"
    after = Flight(link, auto)
    state = {**before.pilot.state_dict(), "world_size": world_size}
    assert after.pilot.load_state_dict(state, "terngrad", 60).method == "terngrad"
    return after


def test_a_saved_choice_that_takes_what_it_took_needs_no_probes() -> None:
    flight = resumed(SLOW)
    flight.fly(60, lambda name: 0.4 if name == PLAIN else 0.021)
    assert flight.chosen == [PLAIN, "terngrad"]
    assert flight.crew.num_probes == 0


def test_how_often_was_measured_is_saved() -> None:
    """Both were measured twice, and are close: nothing is left to do but to see that steps take what they took."""
    auto = tg.Auto(candidates=("fp16",))
    before = Flight(SLOW, auto)
    before.fly(100, lambda name: 0.4 if name == PLAIN else 0.36)
    assert not before.pilot.choosing
    after = Flight(SLOW, auto)
    after.pilot.load_state_dict(before.pilot.state_dict(), "fp16", 100)
    after.fly(60, lambda name: 0.4 if name == PLAIN else 0.36)
    assert after.chosen == [PLAIN, "fp16"]
    assert not after.pilot.choosing


def test_a_review_compares_with_disturbed_steps_as_well() -> None:
    """One block was disturbed, the other not; to be between the two is no change."""
    flight = Flight(SLOW, tg.Auto("lossless", candidates=("fp32",), review_every=20))
    block = SETTLING + MOST
    flight.fly(block + 1, lambda name: 0.40)
    flight.fly(MOST, lambda name: 0.56)
    flight.fly(60, lambda name: 0.53)  # more than 1.3 times 0.40
    assert flight.crew.num_probes == 1
    flight.fly(60, lambda name: 0.80)
    assert flight.crew.num_probes == 2


def test_estimates_of_another_cluster_are_not_believed() -> None:
    flight = resumed(FAST)
    flight.fly(60, lambda name: 0.05 if name == PLAIN else 0.1)
    assert flight.chosen == [PLAIN, "terngrad", PLAIN]
    assert flight.crew.num_probes == 1


def test_estimates_of_another_number_of_ranks_are_not_taken_up() -> None:
    flight = resumed(SLOW, world_size=8)
    flight.fly(60, lambda name: 0.4 if name == PLAIN else 0.02)
    assert flight.crew.num_probes == 1
    assert flight.chosen[-1] == "terngrad"


def test_a_state_without_choices_gives_its_method_if_that_may_be_chosen() -> None:
    flight = Flight(SLOW)
    assert flight.pilot.load_state_dict(None, "terngrad", 5).method == "terngrad"
    assert flight.pilot.load_state_dict(None, "fp32", 5).method == PLAIN
    assert flight.pilot.load_state_dict(None, "terngrad:clip=3.0", 5).method == PLAIN
    assert not flight.pilot.pinned


def test_a_probe_that_fails_on_one_rank_is_told_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room for a probe")

    monkeypatch.setattr("terngrad.ddp.pilot.measure_codec", fail)
    flight = Flight(SLOW)
    flight.fly(60, lambda name: 0.4)
    assert flight.chosen == [PLAIN]
    assert not flight.pilot.choosing


def test_a_model_with_sparse_gradients_gets_no_method_that_moves_momentum() -> None:
    flight = Flight(SLOW, tg.Auto("sparse", candidates=("terngrad", "sdagc")))
    gradient = torch.sparse_coo_tensor([[1]], torch.ones(1), (10,), check_invariants=True)
    flight.pilot.ready((0,), gradient)
    flight.fly(60, lambda name: 0.4 if name == PLAIN else 0.02)
    assert set(flight.chosen) == {PLAIN, "terngrad"}


def test_what_the_pilot_does_itself_is_not_part_of_a_step() -> None:
    clock = Clock()
    watch = Watch(clock)
    watched(watch, clock, 1.0, [0.0], 1.0)
    clock.now += 1.0
    with watch.aside():
        clock.now += 100.0
    watched(watch, clock, 0.0, [0.0], 1.0)
    assert watch.period_s == 2.0


# A profile of the doctor's


def test_a_profile_saves_the_dense_steps(tmp_path: Path) -> None:
    flight = Flight(SLOW, tg.Auto(profile=str(saved(tmp_path / "doctor.json"))))
    assert flight.chosen == ["terngrad"]
    flight.fly(60, lambda name: 0.03)
    assert flight.chosen == ["terngrad"]
    assert flight.crew.num_probes == 0


def test_a_profile_that_promised_too_much_is_not_believed_for_long(tmp_path: Path) -> None:
    auto = tg.Auto(candidates=("terngrad",), profile=str(saved(tmp_path / "doctor.json")))
    flight = Flight(SLOW, auto)
    flight.fly(60, lambda name: 0.4 if name == PLAIN else 5.0)
    assert flight.chosen == ["terngrad", PLAIN]


@pytest.mark.parametrize(
    ("numel", "ranks", "words"), [(7, 2, ["7 parameters", "100,000"]), (100_000, 3, ["3 ranks", "on 2"])]
)
def test_a_profile_of_something_else_is_refused(tmp_path: Path, numel: int, ranks: int, words: list[str]) -> None:
    path = saved(tmp_path / "doctor.json", numel=numel, ranks=ranks)
    with pytest.raises(tg.ConfigurationError) as caught:
        Flight(SLOW, tg.Auto(profile=str(path)))
    assert all(word in str(caught.value) for word in words)


def test_a_profile_is_read_as_it_was_saved(tmp_path: Path) -> None:
    found = Saved.read(saved(tmp_path / "doctor.json", ranks=3))
    assert found.cluster.num_workers == found.cluster.num_nodes == 3
    assert found.cluster.between == LINK
    assert found.profile.numel == 100_000
    assert found.codecs == CODECS
    assert found.overheads["ddp"] > found.overheads["terngrad"] > 0
    older = json.loads((tmp_path / "doctor.json").read_text())
    del older["trial"]
    (tmp_path / "older.json").write_text(json.dumps(older))
    assert Saved.read(tmp_path / "older.json").overheads == {}


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "doctor.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(tg.ConfigurationError, match="terngrad doctor --save"):
        Flight(SLOW, tg.Auto(profile=str(path)))
