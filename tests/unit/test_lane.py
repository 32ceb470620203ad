"""The lane: one thread, one order, and every task ends whatever happens to it."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time

import pytest

from terngrad.ddp.lane import Lane


class Recorder:
    """A task that writes down what it does and where it is on the lane."""

    def __init__(self, number: int, log: list[str], fails_in: str = "", pauses: random.Random | None = None) -> None:
        self.number = number
        self.log = log
        self.fails_in = fails_in
        self.pauses = pauses
        self.threads: set[str] = set()
        self.outcome: list[BaseException | None] = []
        self.done = threading.Event()

    def _stage(self, name: str) -> None:
        if self.pauses is not None:
            time.sleep(self.pauses.uniform(0, 0.002))
        self.threads.add(threading.current_thread().name)
        self.log.append(f"{name} {self.number}")
        if name == self.fails_in:
            raise OSError(f"{name} of task {self.number}")

    def send(self) -> None:
        self._stage("scalers")
        self._stage("codes")

    def forward(self) -> None:
        self._stage("sums")

    def finish(self) -> None:
        self._stage("finish")

    def complete(self, error: BaseException | None) -> None:
        self.outcome.append(error)
        self.done.set()


def _collectives(log: list[str]) -> list[str]:
    return [entry for entry in log if not entry.startswith("finish")]


@pytest.mark.parametrize("seed", range(20))
def test_collectives_go_scalers_codes_sums_by_bucket_whatever_the_timing(seed: int) -> None:
    generator = random.Random(seed)
    log: list[str] = []
    lane = Lane()
    tasks = [Recorder(number, log, pauses=random.Random(f"{seed} {number}")) for number in range(12)]
    for task in tasks:
        time.sleep(generator.choice([0, 0, 0.001, 0.01]))
        lane.submit(task)
    lane.close()
    assert _collectives(log) == [f"{kind} {i}" for i in range(12) for kind in ("scalers", "codes", "sums")]
    assert [entry for entry in log if entry.startswith("finish")] == [f"finish {i}" for i in range(12)]
    assert [task.outcome for task in tasks] == [[None]] * 12
    assert {name for task in tasks for name in task.threads} == {"terngrad-lane"}


class Gate(Recorder):
    """Holds the lane in its first stage until it is opened."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(0, log)
        self.open = threading.Event()

    def send(self) -> None:
        assert self.open.wait(timeout=60)
        super().send()


def test_a_bucket_is_received_while_the_next_ones_codes_are_on_the_wire() -> None:
    log: list[str] = []
    lane = Lane()
    gate = Gate(log)
    lane.submit(gate)
    lane.submit(Recorder(1, log))
    gate.open.set()
    lane.close()
    assert log == [
        "scalers 0", "codes 0", "sums 0", "scalers 1", "codes 1", "finish 0", "sums 1", "finish 1",
    ]  # fmt: skip


def test_a_bucket_is_finished_at_once_if_none_is_waiting() -> None:
    lane = Lane()
    task = Recorder(0, [])
    lane.submit(task)
    assert task.done.wait(timeout=60)
    assert task.outcome == [None]
    lane.close()


@pytest.mark.parametrize("waiting", [True, False], ids=["all submitted at once", "one after another"])
@pytest.mark.parametrize("stage", ["scalers", "codes", "sums", "finish"])
def test_a_failing_task_completes_itself_and_all_that_follow_with_the_same_error(stage: str, waiting: bool) -> None:
    log: list[str] = []
    lane = Lane()
    gate = Gate(log)
    tasks = [gate, Recorder(1, log), Recorder(2, log, fails_in=stage), *(Recorder(i, log) for i in range(3, 6))]
    if not waiting:
        gate.open.set()
    for task in tasks:
        lane.submit(task)
        if not waiting:
            assert task.done.wait(timeout=60)
    gate.open.set()
    lane.close()

    assert all(len(task.outcome) == 1 for task in tasks), "a task completes once"
    assert tasks[0].outcome == [None]
    error = tasks[2].outcome[0]
    assert isinstance(error, OSError)
    assert str(error) == f"{stage} of task 2"
    assert all(task.outcome[0] is error for task in tasks[3:])
    assert lane.error is error
    assert not [entry for entry in log if entry.endswith(("4", "5"))], "no collective follows a failure"


def test_a_failure_that_is_no_exception_of_the_ordinary_kind_ends_no_lane() -> None:
    class Quits(Recorder):
        def send(self) -> None:
            raise SystemExit(3)

    lane = Lane()
    tasks = [Quits(0, []), Recorder(1, [])]
    for task in tasks:
        lane.submit(task)
    lane.close()
    assert isinstance(lane.error, SystemExit)
    assert [task.outcome for task in tasks] == [[lane.error], [lane.error]]


def test_a_call_runs_on_the_lane_after_what_was_submitted_and_gives_its_result() -> None:
    log: list[str] = []
    lane = Lane()
    for number in range(3):
        lane.submit(Recorder(number, log, pauses=random.Random(number)))

    def function() -> str:
        log.append("call")
        return threading.current_thread().name

    assert lane.call(function) == "terngrad-lane"
    assert log[-1] == "call"
    assert "finish 2" in log
    lane.close()


def test_a_call_that_raises_does_so_in_the_calling_thread_and_leaves_the_lane_sound() -> None:
    def function() -> None:
        raise KeyError("mine")

    lane = Lane()
    with pytest.raises(KeyError, match="mine"):
        lane.call(function)
    task = Recorder(0, [])
    lane.submit(task)
    lane.close()
    assert task.outcome == [None]


def test_closing_ends_the_thread_after_what_was_submitted() -> None:
    lane = Lane()
    before = threading.active_count()
    task = Recorder(0, [], pauses=random.Random(0))
    lane.submit(task)
    assert threading.active_count() == before + 1
    lane.close()
    assert threading.active_count() == before
    assert task.outcome == [None]
    lane.close()


def test_a_lane_that_was_brought_to_rest_still_does_what_it_is_asked() -> None:
    lane = Lane()
    assert lane.call(lambda: 1) == 1
    lane.release()
    lane.rest(60.0)
    assert lane.call(lambda: 2) == 2
    lane.close()


def test_an_unused_lane_has_no_thread() -> None:
    before = threading.active_count()
    lane = Lane()
    assert threading.active_count() == before
    lane.close()


# Native code gives the interpreter's lock away and takes it back, which while the interpreter ends aborts the process.
_ENDS_AT_ONCE = """
import sys, threading, time
import torch
from terngrad.ddp import lane as lanes

class Task:
    def send(self):
        begun.set()
        rounds = range(20_000) if sys.argv[1] == "busy" else []
        for _ in rounds:
            torch.ones(64).sort()
        if sys.argv[1] == "stuck":
            time.sleep(600)
        print("sent", flush=True)

    def forward(self): pass
    def finish(self): pass
    def complete(self, error): pass

lanes.REST_S = 60.0 if sys.argv[1] == "busy" else 0.1
begun = threading.Event()
lane = lanes.Lane()
lane.submit(Task())
begun.wait()
"""


@pytest.mark.parametrize(("what", "printed"), [("busy", "sent\n"), ("stuck", "")])
def test_the_end_of_the_process_waits_for_work_under_way_but_not_for_ever(what: str, printed: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS_AT_ONCE, what], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, printed), ended.stderr
