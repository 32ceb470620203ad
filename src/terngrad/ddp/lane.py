"""One ordered lane: a thread from which every collective of a handle is issued, in bucket order.

Ranks finish their layers at different times. If a collective were issued when a local event happens to complete, ranks
would disagree on the order and hang or mix up data. Here the order is fixed by the order of buckets alone:

    scalers(0) codes(0) [sums(0)] scalers(1) codes(1) [sums(1)] ...

and what is free to move is local work: bucket i is received and decoded while bucket i+1's codes are on the wire, or
when it has arrived, if no other bucket is there by then. Parts of a large bucket take their turns as buckets do.
Backward runs on in its own thread all the while, and a third one waits for what arrives, so that the lane is free for
the next bucket.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

REST_S = 2.0  # how long the end of the process waits for lanes, all of them together


class Task(Protocol):
    """A bucket or a part of one. send() and forward() issue collectives; finish() waits for the last and only computes.

    Once it has been sent, `following` is the next part of the same bucket, if there is one.
    """

    @property
    def following(self) -> Task | None: ...

    def send(self) -> None: ...
    def forward(self) -> None: ...
    def arrival(self) -> Callable[[], None] | None:
        """Waits, on another thread, for what finish() waits for; None if there is no use in that."""

    def finish(self) -> None: ...
    def complete(self, error: BaseException | None) -> None: ...


class _Call:
    """A function to run on the lane, between buckets."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function
        self.result: object = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:  # handed to the thread that waits for it
            self.error = error
        self.done.set()


class _Arrival:
    """What a task waits for. It does not know the task, so that whoever still waits keeps no bucket alive."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


class Lane:
    """Runs tasks in the order of their submission. After the first failure every task fails with that error."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._queue: queue.SimpleQueue[Task | _Call | _Arrival | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._awaited: queue.SimpleQueue[_Arrival | None] = queue.SimpleQueue()
        self._waiter: threading.Thread | None = None
        _lanes.add(self)

    def submit(self, task: Task) -> None:
        self._start()
        self._queue.put(task)

    def call(self, function: Callable[[], T]) -> T:
        """Runs a function on the lane after all that was submitted, and gives its result or raises its error."""
        self._start()
        item = _Call(function)
        self._queue.put(item)
        item.done.wait()
        if item.error is not None:
            raise item.error
        return item.result  # type: ignore[return-value]

    def release(self) -> None:
        """Lets the thread end after all that was submitted, without waiting for it."""
        if self._thread is not None:
            self._queue.put(None)

    def close(self) -> None:
        """Ends the thread after all that was submitted."""
        self.release()
        self.rest(None)

    def rest(self, timeout_s: float | None) -> None:
        """After `release`: waits for the threads' end, but no longer than this, as a peer may never answer."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        if self._thread is not None:
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._thread = None  # whoever still has something to do gets another one
        if self._waiter is not None and end is not None:
            self._waiter.join(max(0.0, end - time.monotonic()))

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: a process that is about to die of an error must not wait for its peers for long.
            self._thread = threading.Thread(target=self._loop, name="terngrad-lane", daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        previous: Task | None = None
        following: Task | None = None
        awaited: _Arrival | None = None  # of the previous one
        while True:
            if previous is not None and awaited is None and following is None and self._queue.empty():
                awaited = self._await(previous)
                if awaited is None:
                    self._finish(previous)
                    previous = None
            item = self._queue.get() if following is None else following
            if isinstance(item, _Arrival) and item is not awaited:
                continue  # of one that was finished meanwhile
            awaited = None
            if isinstance(item, _Arrival):
                if previous is not None:
                    self._finish(previous)
                    previous = None
                continue
            if isinstance(item, _Call) or item is None:
                if previous is not None:
                    self._finish(previous)
                    previous = None
                if item is None:
                    self._end_waiter()
                    return
                item.run()
                item = None
                continue
            sent = self._attempt(item, item.send)
            if previous is not None:
                self._finish(previous)
            previous = item if sent and self._attempt(item, item.forward) else None
            following = item.following
            item = None  # or the next wait would keep a finished bucket alive

    def _await(self, task: Task) -> _Arrival | None:
        """Has the end of a task's wait put on the queue, if it has one that is worth it."""
        wait = task.arrival() if self.error is None else None
        if wait is None or not self._has_waiter():
            return None
        awaited = _Arrival(wait)
        self._awaited.put(awaited)
        return awaited

    def _has_waiter(self) -> bool:
        if self._waiter is None:
            waiter = threading.Thread(target=self._wait_for_arrivals, name="terngrad-waiter", daemon=True)
            try:
                waiter.start()
            except RuntimeError:  # no more threads: the lane waits itself
                return False
            self._waiter = waiter
        return True

    def _wait_for_arrivals(self) -> None:
        while (awaited := self._awaited.get()) is not None:
            with contextlib.suppress(BaseException):  # finish() will meet it
                awaited.wait()
            self._queue.put(awaited)
            del awaited

    def _end_waiter(self) -> None:
        if self._waiter is not None:
            self._awaited.put(None)
            if self.error is None:  # or it may wait for a peer that is gone, for as long as the group's timeout
                self._waiter.join()
                self._waiter = None

    def _attempt(self, task: Task, stage: Callable[[], None]) -> bool:
        """Runs one stage of a task; on failure completes the task with the lane's first error."""
        if self.error is None:
            try:
                stage()
            except BaseException as error:  # the lane must outlive any failure, or backward would wait for ever
                self.error = error
        if self.error is None:
            return True
        self._complete(task, self.error)
        return False

    def _finish(self, task: Task) -> None:
        if self._attempt(task, task.finish):
            self._complete(task, None)

    def _complete(self, task: Task, error: BaseException | None) -> None:
        try:
            task.complete(error)
        except BaseException as failure:  # as above
            self.error = self.error or failure


_lanes: weakref.WeakSet[Lane] = weakref.WeakSet()


@atexit.register
def _rest_all() -> None:
    """A thread that comes back from native code while the interpreter is being taken down aborts the process: so lanes
    that have something left to do, were it only to return from the last bucket, do it first.
    """
    lanes = list(_lanes)
    for lane in lanes:
        lane.release()
    end = time.monotonic() + REST_S
    for lane in lanes:
        lane.rest(max(0.0, end - time.monotonic()))
