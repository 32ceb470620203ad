"""The lane: one thread, one order, and every task ends whatever happens to it."""

from __future__ import annotations

import gc
import itertools
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch

from terngrad.ddp.lane import Lane
from terngrad.ddp.phases import Phases
from terngrad.ddp.stage import Stage
from terngrad.ddp.task import BucketTask, BucketWork
from terngrad.exchange.base import Transfer
from terngrad.exchange.channel import Pending


class Recorder:
    """A task that writes down what it does and where it is on the lane."""

    def __init__(
        self,
        number: int,
        log: list[str],
        fails_in: str = "",
        pauses: random.Random | None = None,
        arrived: threading.Event | None = None,
    ) -> None:
        self.number = number
        self.arrived = arrived
        self.log = log
        self.fails_in = fails_in
        self.pauses = pauses
        self.following: Recorder | None = None
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

    def arrival(self) -> Callable[[], None] | None:
        return None if self.arrived is None else self._wait

    def _wait(self) -> None:
        assert self.arrived is not None
        assert self.arrived.wait(timeout=60)

    def finish(self) -> None:
        if self.arrived is not None:
            self._wait()
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


def test_a_bucket_that_comes_while_another_is_on_the_wire_is_sent_at_once() -> None:
    log: list[str] = []
    lane = Lane()
    first, second = Recorder(0, log, arrived=threading.Event()), Recorder(1, log)
    lane.submit(first)
    while "sums 0" not in log:
        time.sleep(0.001)
    time.sleep(0.02)  # the lane has nothing to do, and waits
    lane.submit(second)
    while "codes 1" not in log:
        time.sleep(0.001)
    assert "finish 0" not in log
    assert first.arrived is not None
    first.arrived.set()
    lane.close()
    assert log == ["scalers 0", "codes 0", "sums 0", "scalers 1", "codes 1", "finish 0", "sums 1", "finish 1"]


def test_a_bucket_that_arrives_before_another_one_comes_is_finished_at_once() -> None:
    lane = Lane()
    for number in range(3):
        arrived = threading.Event()
        task = Recorder(number, [], arrived=arrived)
        lane.submit(task)
        assert not task.done.wait(timeout=0.02)
        arrived.set()
        assert task.done.wait(timeout=60)
        assert task.outcome == [None]
    lane.close()


@pytest.mark.parametrize("seed", range(10))
def test_arrivals_at_any_time_change_neither_the_order_nor_the_number_of_stages(seed: int) -> None:
    generator = random.Random(seed)
    log: list[str] = []
    lane = Lane()
    tasks = []
    for number in range(20):
        arrived = threading.Event() if generator.random() < 0.7 else None
        tasks.append(Recorder(number, log, arrived=arrived))
        lane.submit(tasks[-1])
        if arrived is not None:
            threading.Timer(generator.choice([0.0, 0.001, 0.005]), arrived.set).start()
        time.sleep(generator.choice([0, 0, 0.001, 0.004]))
    lane.close()
    assert _collectives(log) == [f"{kind} {i}" for i in range(20) for kind in ("scalers", "codes", "sums")]
    assert [entry for entry in log if entry.startswith("finish")] == [f"finish {i}" for i in range(20)]
    assert [task.outcome for task in tasks] == [[None]] * 20


def test_what_fails_to_arrive_fails_its_task_and_closing_does_not_wait_for_what_never_comes() -> None:
    class Lost(Recorder):
        def _wait(self) -> None:
            raise OSError("the peer is gone")

    class Silent(Recorder):
        def _wait(self) -> None:
            time.sleep(600)

        def send(self) -> None:
            pass

    lane = Lane()
    lost = Lost(0, [], arrived=threading.Event())
    lane.submit(lost)
    assert lost.done.wait(timeout=60)
    assert str(lost.outcome[0]) == "the peer is gone"
    silent = Silent(1, [], arrived=threading.Event())
    lane.submit(silent)
    lane.close()
    assert silent.outcome == lost.outcome


def test_nothing_keeps_a_finished_bucket_alive() -> None:
    lane = Lane()
    arrived = threading.Event()
    tasks = [Recorder(0, [], arrived=arrived), Recorder(1, [])]
    gone = [weakref.ref(task) for task in tasks]
    done = [task.done for task in tasks]
    lane.submit(tasks[0])
    arrived.set()
    assert done[0].wait(timeout=60)
    lane.submit(tasks[1])
    tasks.clear()
    assert done[1].wait(timeout=60)
    lane.call(lambda: None)  # behind it the lane has let go
    gc.collect()
    assert [task() for task in gone] == [None, None]
    lane.close()


def test_without_another_thread_the_lane_waits_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane()
    assert lane.call(lambda: 1) == 1
    monkeypatch.setattr(threading.Thread, "start", _no_more_threads)
    arrived = threading.Event()
    arrived.set()
    task = Recorder(0, [], arrived=arrived)
    lane.submit(task)
    assert task.done.wait(timeout=60)
    assert task.outcome == [None]
    lane.close()


def _no_more_threads(thread: threading.Thread) -> None:
    raise RuntimeError(f"can't start {thread.name}")


class Shards(Transfer):
    """A transfer in parts that writes down what it does."""

    def __init__(self, num_parts: int, log: list[str], fails: str = "") -> None:
        self.num_parts = num_parts
        self.log = log
        self.fails = fails
        self._numbers = {name: itertools.count() for name in ("send", "forward", "receive")}

    def _stage(self, name: str) -> None:
        self.log.append(f"{name} {next(self._numbers[name])}")
        if self.log[-1] == self.fails:
            raise OSError(self.fails)

    def send(self) -> None:
        self._stage("send")

    def forward(self) -> None:
        self._stage("forward")

    @property
    def arriving(self) -> Pending:
        return Pending([])

    def receive(self) -> None:
        self._stage("receive")


class Parts(BucketWork):
    """A bucket with this transfer, and nothing in it."""

    def __init__(self, transfer: Transfer, complete: Callable[[BaseException | None], None]) -> None:
        self.stage = Stage(0, 0, 0, Phases(), torch.device("cpu"))
        self.measured = self.others_follow = False
        self.complete = complete
        self.transfer = transfer
        self.code = None  # type: ignore[assignment]

    def open(self) -> None:
        pass


def run_in_parts(transfer: Shards) -> tuple[list[BaseException | None], Recorder]:
    """How often and how the bucket was completed, and a task that was submitted behind it."""
    outcome: list[BaseException | None] = []
    lane = Lane()
    gate, after = Gate([]), Recorder(9, transfer.log)
    lane.submit(gate)
    lane.submit(BucketTask(Parts(transfer, outcome.append)))
    lane.submit(after)
    gate.open.set()
    lane.close()
    return outcome, after


def test_parts_of_a_bucket_take_their_turns_and_nothing_comes_between() -> None:
    log: list[str] = []
    outcome, after = run_in_parts(Shards(3, log))
    assert log == [
        "send 0", "forward 0", "send 1", "receive 0", "forward 1", "send 2", "receive 1", "forward 2",
        "scalers 9", "codes 9", "receive 2", "sums 9", "finish 9",
    ]  # fmt: skip
    assert (outcome, after.outcome) == ([None], [None])


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("stage", ["send", "forward", "receive"])
def test_a_bucket_whose_part_fails_is_completed_once_with_that_error(stage: str, number: int) -> None:
    log: list[str] = []
    outcome, after = run_in_parts(Shards(4, log, f"{stage} {number}"))
    (error,) = outcome
    assert str(error) == f"{stage} {number}"
    assert after.outcome == [error]
    assert not [entry for entry in log if entry.startswith("send") and int(entry[-1]) > number + 1]


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
    following = None

    def send(self):
        begun.set()
        rounds = range(20_000) if sys.argv[1] == "busy" else []
        for _ in rounds:
            torch.ones(64).sort()
        if sys.argv[1] == "stuck":
            time.sleep(600)
        print("sent", flush=True)

    def forward(self): pass
    def arrival(self): return None
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
