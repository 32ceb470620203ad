"""The report of runs that stopped, were resumed, went wrong, or hold next to nothing: it shows what there is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_page import Page, assert_drawn, chart_data_of, comparison, page_of, read_new
from run_folders import Event, eval_event, events_of_a_run, layers_event, step_event

from terngrad.report.page import render
from terngrad.report.records import Trace
from terngrad.report.summary import group_runs
from terngrad.train import Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


START: Event = {"event": "start", "parameters": 10, "metric": "accuracy", "target": 0.9}
ODD_RUNS: dict[str, list[Event]] = {
    "nothing at all": [],
    "a start only": [START],
    "one step": [START, step_event(10)],
    "one evaluation": [START, eval_event(10, 0.5)],
    "no start": [step_event(10), step_event(20), eval_event(20, 0.5)],
    "step zero": [START, step_event(0), eval_event(0, 0.1)],
    "all the same": [START, *(step_event(step, loss=1.0, seconds=0.0, bytes_sent=0) for step in (10, 20, 30))],
    "no phases": [START, *(step_event(s, encode_s=None, exchange_s=None, decode_s=None) for s in (10, 20))],
    "no split of the step": [START, *(step_event(s, compute_s=None, exposed_s=None) for s in (10, 20))],
    "no times": [START, {"event": "step", "step": 10, "loss": 1.0}],
    "loss not finite": [
        START, step_event(10), step_event(20, loss=math.nan), step_event(30, loss=math.inf), step_event(40),
    ],
    "loss never finite": [START, *(step_event(step, loss=math.nan) for step in (10, 20))],
    "value not finite": [START, eval_event(10, math.nan), eval_event(20, 0.3)],
    "numbers too large for a float": [START, step_event(10, loss=10**400), step_event(20, loss=1e308)],
    "layers without numbers": [START, step_event(10), {"event": "layers", "step": 10, "layers": {"a": {"numel": 3}}}],
    "one measurement of layers": [START, step_event(10), layers_event(10)],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_RUNS)
def test_a_run_of_which_little_is_known_is_shown(folder: Path, name: str) -> None:
    odd = read_new(folder, ODD_RUNS[name], "odd")
    page = page_of([odd], folder)
    assert "not finished" in page.row("terngrad")[0]
    if len(ODD_RUNS[name]) > 1 and name != "loss never finite":
        assert_drawn(page)
    assert_drawn(page_of([*comparison(folder), odd], folder))


def test_an_unfinished_run_is_summarised_as_far_as_it_got(folder: Path) -> None:
    events = [event for event in events_of_a_run() if event["event"] != "end" and event.get("step", 0) <= 150]
    page = page_of([read_new(folder, events)], folder)
    row = page.row("terngrad")
    assert "not finished: step 150 of 200" in row[0]
    assert row[1:] == ["92.61%", "92.61%", "1.00", "1.00", "20.0", "3.00"]


def test_a_resumed_run_counts_the_later_account_of_a_step(folder: Path) -> None:
    first, second = events_of_a_run(), events_of_a_run(step_s=0.04)
    killed = [event for event in first if event.get("step", 0) <= 120 and event["event"] != "end"]
    resumed = [event for event in second if event.get("step", 0) > 100]
    trace = Trace(read_new(folder, killed + resumed))
    assert [point.step for point in trace.loss] == list(range(10, 201, 10))
    assert [event["step_s"] for event in trace.intervals] == 10 * [0.02] + 10 * [0.04]
    assert trace.end is not None


def test_a_run_resumed_beyond_its_end_has_not_ended(folder: Path) -> None:
    events = [*events_of_a_run(), step_event(210)]
    assert Trace(read_new(folder, events)).end is None


def test_a_loss_that_is_not_finite_is_a_gap_and_a_cross(folder: Path) -> None:
    page = page_of([read_new(folder, ODD_RUNS["loss not finite"])], folder)
    assert len(page.of_class("lost")) == 3  # one stretch, on each axis
    assert "loss not finite at step 20" in page.row("terngrad")[0]


numbers = st.one_of(st.floats(), st.integers(-(10**30), 10**30), st.none(), st.just("text"))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 10**9), numbers, numbers, numbers, numbers), min_size=1, max_size=8))
def test_whatever_the_numbers_are_they_can_be_drawn(rows: list[Any]) -> None:
    events: list[Event] = [START]
    for step, seconds, loss, sent, value in rows:
        events.append(step_event(step) | {"seconds": seconds, "loss": loss, "bytes_sent": sent, "compute_s": value})
        events.append(eval_event(step, 0.5) | {"seconds": seconds, "bytes_sent": sent, "value": value})
        measured = {"numel": 3, "density": value, "scaler": loss}
        events.append({"event": "layers", "step": step, "layers": {"weight": measured}})
    odd = Run(Path("odd"), {"recipe": "digits", "method": "odd"}, {}, events)
    plain = Run(Path("plain"), {"recipe": "digits", "method": "plain"}, {}, events_of_a_run())
    for runs in ([odd], [plain, odd]):
        assert_drawn(Page(render(group_runs(runs))))


def test_a_page_of_long_runs_is_small_and_keeps_the_extremes() -> None:
    events = [step_event(step, loss=2 + math.sin(step)) for step in range(1, 20_001)]
    events[511]["loss"], events[1_234]["loss"] = 77.125, 0.03125
    layers = [layers_event(step) for step in range(1, 2000)]
    runs = [
        Run(
            Path(f"run{index}"),
            {"recipe": "digits", "method": f"method{index}"},
            {},
            [START, *events[:length], *layers],
        )
        for index, length in enumerate([20_000] * 3 + [2_000] * 9)
    ]
    page = Page(render(group_runs(runs)))
    assert len(page.text.encode()) < 2_000_000
    for run in chart_data_of(page)["0-loss"]["runs"]:
        assert (max(run["value"]), min(run["value"])) == (77.125, 0.03125)
