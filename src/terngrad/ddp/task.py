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


class BucketWork:
    """What the parts of a bucket have in common."""

    def __init__(
        self,
        open_code: Callable[[], tuple[AnyBucket, Exchange]],
        channel: Channel,
        scratch: Scratch,
        stage: Stage,
        measured: bool,
        others_follow: bool,
        complete: Complete,
    ) -> None:
        self._open_code = open_code
        self._channel = channel
        self._scratch = scratch
        self.stage = stage
        self.measured = measured
        self.others_follow = others_follow
        self.complete = complete

    def open(self) -> None:
        """Starts its code and shares its scalers."""
        with self.stage.phases("encode"):
            self.code, exchange = self._open_code()
        self.transfer = exchange.open(self.code, self._channel, self._take, self.stage.phases)
        if self.code.scaled is not None:
            self._share_scalers(self.code.scaled)

    @property
    def on_cpu(self) -> bool:
        return self.code.buffer.device.type == "cpu"

    def close(self) -> None:
        """The transfer refers to this bucket in turn. Left to the garbage collector, they would hold on to a buffer
        that DDP has replaced: a whole second gradient.
        """
        del self.transfer, self.code

    def _take(self, role: str, rows: int, row_bytes: int) -> Tensor:
        return self._scratch.take(self.code.buffer.device, role, rows, row_bytes)

    def _share_scalers(self, code: BucketCode) -> None:
        size = code.frame.scalers_nbytes
        received = self._take("scalers", self._channel.world_size, size)
        with self.stage.phases("encode"):
            code.scalers_message(received[self._channel.rank])
        with self.stage.phases("exchange"):
            self._channel.all_gather(received).wait()
        with self.stage.phases("encode"):
            code.take_scalers(received)


class BucketTask:
    """Takes a bucket, or one part of it, through scalers, codes and sums."""

    def __init__(self, bucket: BucketWork, number: int = 0) -> None:
        self.following: BucketTask | None = None
        self._bucket = bucket
        self._number = number

    def send(self) -> None:
        bucket = self._bucket
        with bucket.stage():
            if self._number == 0:
                bucket.open()
            bucket.transfer.send()
            if bucket.measured:
                with bucket.stage.phases("measure"):
                    bucket.code.measure()
        if self._number + 1 < bucket.transfer.num_parts:
            self.following = BucketTask(bucket, self._number + 1)

    def forward(self) -> None:
        with self._bucket.stage():
            self._bucket.transfer.forward()

    def arrival(self) -> Callable[[], None] | None:
        """After the last bucket there is nothing else to do, and on an accelerator waiting does not block."""
        bucket = self._bucket
        return bucket.transfer.arriving.wait if bucket.others_follow and bucket.on_cpu else None

    def finish(self) -> None:
        with self._bucket.stage():
            self._bucket.transfer.receive()
        if self.following is None:
            self._bucket.close()

    def complete(self, error: BaseException | None) -> None:
        """The bucket is done with its last part, or with the one that failed, which has none that follows."""
        if self.following is None:
            self._bucket.complete(error)


def sparse_bytes(gradient: Tensor, world_size: int) -> int:
    """What one rank sends of a sparse gradient, in torch's all-reduce: all of it to everyone."""
    found = gradient.coalesce()
    return (world_size - 1) * (found.indices().nbytes + found.values().nbytes)


class SparseTask:
    """Passes a sparse gradient through: summed by torch, divided by the world size."""

    following = None

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

    def arrival(self) -> None:
        return

    def finish(self) -> None:
        with self._stage(), self._stage.phases("exchange"):
            self._pending.wait()
            self._buffer.div_(self._channel.world_size)


class CallTask:
    """A collective that belongs to the step but to no bucket."""

    following = None

    def __init__(self, function: Callable[[], None], stage: Stage) -> None:
        self._function = function
        self._stage = stage

    def send(self) -> None:
        with self._stage():
            self._function()

    def forward(self) -> None:
        return

    def arrival(self) -> None:
        return

    def finish(self) -> None:
        return

    def complete(self, error: BaseException | None) -> None:
        return
