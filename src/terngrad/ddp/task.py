"""One bucket of one step, on the lane."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from terngrad.ddp.scratch import Scratch
from terngrad.ddp.stage import Stage
from terngrad.ddp.statistics import Counters
from terngrad.exchange import Channel, Exchange
from terngrad.methods import AnyBucket, BucketCode

Complete = Callable[[BaseException | None], None]


class BucketTask:
    """Takes a bucket through scalers, codes and sums."""

    def __init__(
        self,
        open_code: Callable[[], tuple[AnyBucket, Exchange]],
        channel: Channel,
        scratch: Scratch,
        stage: Stage,
        measured: bool,
        complete: Complete,
    ) -> None:
        self._open_code = open_code
        self._channel = channel
        self._scratch = scratch
        self._stage = stage
        self._measured = measured
        self.complete = complete

    def send(self) -> None:
        with self._stage():
            with self._stage.phases("encode"):
                self._code, exchange = self._open_code()
            self._transfer = exchange.open(self._code, self._channel, self._take, self._stage.phases)
            if self._code.scaled is not None:
                self._share_scalers(self._code.scaled)
            self._transfer.send()
            if self._measured:
                with self._stage.phases("measure"):
                    self._code.measure()

    def forward(self) -> None:
        with self._stage():
            self._transfer.forward()

    def finish(self) -> None:
        with self._stage():
            self._transfer.receive()
        # They refer to this task in turn. Left to the garbage collector, they would hold on to buckets that DDP has
        # replaced: a whole second gradient.
        del self._transfer, self._code

    def _take(self, role: str, rows: int, row_bytes: int) -> Tensor:
        return self._scratch.take(self._code.buffer.device, role, rows, row_bytes)

    def _share_scalers(self, code: BucketCode) -> None:
        size = code.frame.scalers_nbytes
        received = self._take("scalers", self._channel.world_size, size)
        with self._stage.phases("encode"):
            code.scalers_message(received[self._channel.rank])
        with self._stage.phases("exchange"):
            self._channel.all_gather(received).wait()
        with self._stage.phases("encode"):
            code.take_scalers(received)


def sparse_bytes(gradient: Tensor, world_size: int) -> int:
    """What one rank sends of a sparse gradient, in torch's all-reduce: all of it to everyone."""
    found = gradient.coalesce()
    return (world_size - 1) * (found.indices().nbytes + found.values().nbytes)


class SparseTask:
    """Passes a sparse gradient through: summed by torch, divided by the world size."""

    def __init__(self, buffer: Tensor, channel: Channel, counters: Counters, stage: Stage, complete: Complete) -> None:
        self._buffer = buffer
        self._counters = counters
        self._channel = channel
        self._stage = stage
        self.complete = complete

    def send(self) -> None:
        with self._stage():
            num_bytes = sparse_bytes(self._buffer, self._channel.world_size)
            self._counters.dense_bytes += num_bytes  # nothing is saved here, and nothing claimed
            self._pending = self._channel.all_reduce(self._buffer, num_bytes)

    def forward(self) -> None:
        return

    def finish(self) -> None:
        with self._stage(), self._stage.phases("exchange"):
            self._pending.wait()
            self._buffer.div_(self._channel.world_size)


class CallTask:
    """A collective that belongs to the step but to no bucket."""

    def __init__(self, function: Callable[[], None], stage: Stage) -> None:
        self._function = function
        self._stage = stage

    def send(self) -> None:
        with self._stage():
            self._function()

    def forward(self) -> None:
        return

    def finish(self) -> None:
        return

    def complete(self, error: BaseException | None) -> None:
        return
