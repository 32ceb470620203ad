"""The workers of a run as the training loop sees them: each step they leave the averaged gradient in the parameters.

`DDPWorker` is one of several processes; `virtual.OneProcess` computes all of them in one.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from terngrad.recipes import Task
from terngrad.train.config import TrainConfig
from terngrad.train.methods import Options, connection_of
from terngrad.train.wire import SocketMeter

_PATIENCE_S = 3600.0  # for rank 0 to evaluate or save, where a collective's timeout is shorter


@dataclass(frozen=True)
class Pass:
    """One forward and backward."""

    loss: float
    exposed_s: float  # after the last gradient was there: what the communication adds


@dataclass(frozen=True)
class Usage:
    """What has been used so far: bytes of rank 0, and seconds of each phase where the method tells them."""

    bytes_sent: int = 0
    bytes_received: int = 0
    phases: Mapping[str, float] | None = field(default=None)


class Workers(ABC):
    """All that take part in the average, seen from this process."""

    module: nn.Module  # what is trained; the same on all ranks
    rank: int
    num_processes: int

    @abstractmethod
    def start(self, optimizer: torch.optim.Optimizer) -> None:
        """Hands the gradients, and momentum where it wants it, over to the method. On all ranks, like all below."""

    @abstractmethod
    def compute(self, step: int) -> Pass:
        """The gradients of a step, averaged over all workers, in the parameters."""

    @abstractmethod
    def usage(self) -> Usage:
        """Since the start of this process, in what was counted."""

    def start_counting(self) -> None:
        """Bytes count from here on."""
        return

    def stop_counting(self) -> None:
        """Bytes do not count from here on: they are not of training."""
        return

    def wait_for_all(self) -> None:
        """Returns when all ranks have called it."""
        return

    @abstractmethod
    def take_measurements(self) -> dict[str, dict[str, Any]]:
        """What was measured of each parameter since the last call."""

    def take_decisions(self) -> list[dict[str, Any]]:
        """What a method that chooses has chosen since the last call."""
        return []

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Tells the epoch to the method."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on exactly, beyond model and optimizer."""

    @abstractmethod
    def resume(
        self, step: int, model: Mapping[str, Any], state: Mapping[str, Any], optimizer: torch.optim.Optimizer
    ) -> None:
        """Goes on where a step has ended, with the model and what `state_dict` gave there."""

    def close(self) -> None:
        """The run is over."""
        return


def seed_forward(seed: int, step: int, rank: int) -> None:
    """Makes what the model draws (dropout) a function of these three, whatever ran before."""
    digest = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)


class GradientClock:
    """Notes when the last gradient of a backward pass has been computed."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.last = 0.0
        for parameter in parameters:
            parameter.register_hook(self._note)  # type: ignore[no-untyped-call]

    def _note(self, gradient: Tensor) -> None:
        self.last = time.perf_counter()


class DDPWorker(Workers):
    """This process's replica, averaged with those of the other processes of a group by DDP."""

    def __init__(
        self, config: TrainConfig, task: Task, module: nn.Module, group: dist.ProcessGroup | None, servers: Any | None
    ) -> None:
        self.module = module
        self._config = config
        self._task = task
        self._group = group
        self._servers = servers
        self.rank = dist.get_rank(group)
        self.num_processes = dist.get_world_size(group)
        self._connection = connection_of(config.method, config.uses_torch_methods)
        self._options = Options(servers or config.exchange, config.seed, config.measure_every, config.summed_clip_norm)
        self._model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=self._connection.bucket_cap_mb)
        self._waiting = dist.new_group(
            dist.get_process_group_ranks(group or dist.distributed_c10d._get_default_group()),
            timeout=dt.timedelta(seconds=max(config.timeout_s, _PATIENCE_S)),
            use_local_synchronization=True,
        )
        self._clock = GradientClock(module.parameters())
        self._meter = SocketMeter()

    def start(self, optimizer: torch.optim.Optimizer) -> None:
        self._connection.attach(self._model, optimizer, self._options)

    def compute(self, step: int) -> Pass:
        config = self._config
        inputs, targets = self._task.batch(config.seed, step, self.rank, self.num_processes, config.batch)
        seed_forward(config.seed, step, self.rank)
        with self._connection.computing(self._model):
            loss = self._task.loss(self._model(inputs), targets)
            torch.autograd.backward(loss)
            exposed_s = time.perf_counter() - self._clock.last
        return Pass(loss.item(), exposed_s)

    def usage(self) -> Usage:
        moved = self._meter.read()
        return Usage(moved.sent, moved.received, self._connection.phases())

    def start_counting(self) -> None:
        self._meter.start()

    def stop_counting(self) -> None:
        self._meter.stop()

    def wait_for_all(self) -> None:
        dist.barrier(self._waiting)

    def take_measurements(self) -> dict[str, dict[str, Any]]:
        return self._connection.take_measurements()

    def take_decisions(self) -> list[dict[str, Any]]:
        return self._connection.take_decisions()

    def set_epoch(self, epoch: int) -> None:
        self._connection.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self._connection.state_dict()

    def resume(
        self, step: int, model: Mapping[str, Any], state: Mapping[str, Any], optimizer: torch.optim.Optimizer
    ) -> None:
        if self._connection.depends_on_buckets:
            self._rehearse(step)
        self.module.load_state_dict(model)
        self.start(optimizer)
        self._connection.load_state_dict(state)

    def _rehearse(self, step: int) -> None:
        """One pass whose gradients are dropped, after which DDP has the buckets that it had when the run was killed."""
        self.compute(step)
        self.module.zero_grad()

    def close(self) -> None:
        self.wait_for_all()
        if self._servers is not None:
            self._servers.close()
