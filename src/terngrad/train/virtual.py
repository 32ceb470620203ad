"""Many workers in one process: their gradients one after the other, or all at once, then one average.

Nothing is sent; the bytes are those that one worker would send. One after the other gives the bits of real processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

import terngrad as tg
from terngrad.errors import ConfigurationError
from terngrad.recipes import Task
from terngrad.train.config import TrainConfig, recipe_named
from terngrad.train.methods import PHASES, with_local_clipping
from terngrad.train.workers import Pass, Usage, Workers, seed_forward


class OneProcess(Workers):
    """All workers of a run."""

    rank = 0
    num_processes = 1

    def __init__(self, config: TrainConfig, task: Task, module: nn.Module) -> None:
        self.module = module
        self._config = config
        self._task = task
        self._gradients = self._all_at_once if vectorized(config) else self._one_by_one

    def start(self, optimizer: torch.optim.Optimizer) -> None:
        config = self._config
        self._average = tg.VirtualWorkers(
            self.module,
            with_local_clipping(tg.from_spec(config.method), config.summed_clip_norm),
            num_workers=config.virtual_workers,
            exchange=config.exchange,
            optimizer=optimizer,
            seed=config.seed,
            measure_every=config.measure_every,
        )

    def compute(self, step: int) -> Pass:
        loss = self._gradients(step)
        self._average.average()
        return Pass(loss, exposed_s=0.0)  # nothing is sent

    def _batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        config = self._config
        return self._task.batch(config.seed, step, rank, config.virtual_workers, config.batch)

    def _one_by_one(self, step: int) -> float:
        """As processes would: every forward pass starts with the same buffers, and those of rank 0 stay."""
        before = _clones(self.module)
        loss, first = 0.0, before
        for rank in range(self._config.virtual_workers):
            inputs, targets = self._batch(step, rank)
            seed_forward(self._config.seed, step, rank)
            value = self._task.loss(self.module(inputs), targets)
            torch.autograd.backward(value)
            self._average.take(rank)
            loss += value.item()
            if rank == 0:
                first = _clones(self.module)
            _restore(self.module, before)
        _restore(self.module, first)
        return loss / self._config.virtual_workers

    def _all_at_once(self, step: int) -> float:
        """One pass over the batches of all workers, stacked."""
        batches = [self._batch(step, rank) for rank in range(self._config.virtual_workers)]
        inputs, targets = (torch.stack(parts) for parts in zip(*batches, strict=True))
        parameters = {name: parameter.detach() for name, parameter in self.module.named_parameters()}

        def loss_of(values: dict[str, Tensor], one: Tensor, wanted: Tensor) -> Tensor:
            return self._task.loss(functional_call(self.module, values, (one,)), wanted)

        found, losses = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))(parameters, inputs, targets)
        torch.cat([found[name].flatten(1) for name in self._average.gradients(0)], dim=1, out=self._average.rows)
        return float(losses.mean())

    def usage(self) -> Usage:
        stats = self._average.stats()
        return Usage(stats["bytes_sent"], stats["bytes_received"], {name: stats[name] for name in PHASES})

    def take_measurements(self) -> dict[str, dict[str, Any]]:
        return self._average.take_measurements()

    def set_epoch(self, epoch: int) -> None:
        self._average.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self._average.state_dict()

    def resume(
        self, step: int, model: Mapping[str, Any], state: Mapping[str, Any], optimizer: torch.optim.Optimizer
    ) -> None:
        self.module.load_state_dict(model)
        self.start(optimizer)
        self._average.load_state_dict(state)


def vectorized(config: TrainConfig) -> bool:
    """Whether the workers are computed all at once."""
    possible = recipe_named(config.recipe).vectorizes
    if config.vectorize == "on" and not possible:
        raise ConfigurationError(
            f"--vectorize on with recipe {config.recipe}: its model has layers that cannot be computed for all workers "
            "at once (batch norm, dropout, recurrent ones); pass --vectorize off"
        )
    return possible and config.vectorize != "off"


def _clones(module: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in module.buffers()]


def _restore(module: nn.Module, values: list[Tensor]) -> None:
    for buffer, value in zip(module.buffers(), values, strict=True):
        buffer.copy_(value)
