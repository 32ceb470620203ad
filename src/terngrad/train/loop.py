"""The training loop: steps, log lines, evaluations and checkpoints, the same for processes and for virtual workers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from terngrad.recipes import SCHEDULES, Optimizer, Task
from terngrad.train.checkpoint import Checkpoints
from terngrad.train.config import TrainConfig, recipe_named
from terngrad.train.methods import PHASES, clips_locally
from terngrad.train.record import Progress, Recorder, summarize
from terngrad.train.runs import CHECKPOINTS
from terngrad.train.workers import Usage, Workers

_TICK_S = 0.2  # between two signs of life for whoever watches


def make_optimizer(parameters: list[nn.Parameter], settings: Optimizer) -> torch.optim.Optimizer:
    """What a recipe's words mean."""
    if settings.kind == "adam":
        return torch.optim.Adam(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
    return torch.optim.SGD(
        parameters,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
    )


class Trainer:
    """Trains `workers.module`. `make_recorder` is for rank 0, and takes the progress from which the run goes on."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        workers: Workers,
        folder: Path,
        make_recorder: Callable[[Progress], Recorder],
        link: dict[str, Any] | None = None,
    ) -> None:
        self._config = config
        self._recipe = recipe_named(config.recipe)
        self._task = task
        self._workers = workers
        self._link = link
        self._settings = config.optimizer
        self._parameters = list(workers.module.parameters())
        self._optimizer = make_optimizer(self._parameters, self._settings)
        self._checkpoints = Checkpoints(folder / CHECKPOINTS, workers.rank, workers.num_processes)
        self._progress = Progress()
        self._counted = Usage()
        self._steps_per_epoch = task.steps_per_epoch(config.batch)
        self._last_tick = 0.0
        self._begin()
        self._recorder = make_recorder(self._progress) if workers.rank == 0 else None
        if self._recorder is not None:
            self._checkpoints.remove_unfinished()

    def run(self) -> None:
        """From where the run stands to its last step."""
        if self._progress.metrics_bytes == 0:
            self._record_start()
        self._workers.wait_for_all()
        self._workers.start_counting()
        for step in range(self._progress.step, self._config.steps):
            self._train(step)
            self._after_step(step)
        self._workers.stop_counting()
        self._record_end()

    def close(self) -> None:
        """Lets go of the run's files."""
        if self._recorder is not None:
            self._recorder.close()

    # A step

    def _train(self, step: int) -> None:
        start = time.perf_counter()
        lr = self._lr(step)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad()
        done = self._workers.compute(step)
        if self._settings.clip_norm and not (self._config.num_ranks > 1 and clips_locally(self._config.method)):
            nn.utils.clip_grad_norm_(self._parameters, self._settings.clip_norm)
        self._optimizer.step()
        seconds = time.perf_counter() - start
        progress = self._progress
        progress.step = step + 1
        progress.seconds += seconds
        progress.step_s.append(seconds)
        progress.window_steps += 1
        progress.add(loss=done.loss, step_s=seconds, compute_s=seconds - done.exposed_s, exposed_s=done.exposed_s)

    def _lr(self, step: int) -> float:
        return self._settings.lr * SCHEDULES[self._config.schedule](step, self._config.steps)

    def _after_step(self, step: int) -> None:
        config, done = self._config, step + 1
        last = done == config.steps
        for decision in self._workers.take_decisions():
            if self._recorder is not None:
                self._recorder.write("decision", **decision)
        if config.measure_every and step % config.measure_every == 0:
            self._record_layers()
        if done % config.log_every == 0 or last:
            self._record_step()
        if config.eval_every and (done % config.eval_every == 0 or last):
            self._evaluate()
        if done % self._steps_per_epoch == 0:
            self._outside(lambda: self._workers.set_epoch(done // self._steps_per_epoch))
        if config.checkpoint_every and (done % config.checkpoint_every == 0 or last):
            self._save()
        self._tick()

    def _outside(self, action: Callable[[], None]) -> None:
        """Does what is not a part of training: the bytes it sends do not count."""
        self._count()
        self._workers.stop_counting()
        action()
        self._workers.start_counting()

    # What is recorded

    @property
    def _epoch(self) -> float:
        return self._progress.step / self._steps_per_epoch

    def _so_far(self) -> dict[str, Any]:
        progress = self._progress
        return {
            "step": progress.step,
            "epoch": self._epoch,
            "seconds": progress.seconds,
            "bytes_sent": progress.bytes_sent,
            "bytes_received": progress.bytes_received,
        }

    def _count(self) -> None:
        """Adds what was used since the last count."""
        now, before, progress = self._workers.usage(), self._counted, self._progress
        progress.bytes_sent += now.bytes_sent - before.bytes_sent
        progress.bytes_received += now.bytes_received - before.bytes_received
        if now.phases is not None:
            earlier = before.phases or {}
            progress.add(**{name: seconds - earlier.get(name, 0.0) for name, seconds in now.phases.items()})
        self._counted = now

    def _record_start(self) -> None:
        if self._recorder is None:
            return
        num_parameters = sum(parameter.numel() for parameter in self._parameters)
        ranks = self._config.num_ranks
        self._recorder.write(
            "start",
            parameters=num_parameters,
            metric=self._recipe.metric,
            target=self._recipe.target,
            dense_bytes_per_step=round(2 * (ranks - 1) / ranks * 4 * num_parameters),  # a ring all-reduce of fp32
        )

    def _record_step(self) -> None:
        self._count()
        means = self._progress.take_window()
        if self._recorder is not None:
            lr = self._lr(self._progress.step - 1)
            self._recorder.write("step", **self._so_far(), lr=lr, **dict.fromkeys(PHASES) | means)

    def _record_layers(self) -> None:
        found = self._workers.take_measurements()
        if found and self._recorder is not None:
            self._recorder.write("layers", step=self._progress.step, layers=found)

    def _evaluate(self) -> None:
        """On rank 0 alone: all ranks hold the same model. The others wait."""

        def evaluate() -> None:
            if self._recorder is not None:
                found = self._task.evaluate(self._workers.module)
                self._recorder.write("eval", **self._so_far(), value=found.value, loss=found.loss)
            self._workers.wait_for_all()

        self._outside(evaluate)

    def _record_end(self) -> None:
        if self._recorder is not None:
            figures = summarize(self._recipe, self._progress, self._recorder.events())
            self._recorder.write("end", **figures, link=self._link)

    def _tick(self) -> None:
        now = time.monotonic()
        if self._recorder is not None and now - self._last_tick > _TICK_S:
            self._last_tick = now
            self._recorder.tell({"event": "tick", "step": self._progress.step})

    # Checkpoints

    def _save(self) -> None:
        self._outside(self._save_parts)

    def _save_parts(self) -> None:
        state: dict[str, Any] = {"workers": self._workers.state_dict()}
        if self._recorder is not None:  # rank 0 saves for all what is the same on all
            self._progress.metrics_bytes = self._recorder.sync()
            state["model"] = self._workers.module.state_dict()
            state["optimizer"] = self._optimizer.state_dict()
            state["progress"] = dataclasses.asdict(self._progress)
        self._checkpoints.save(self._progress.step, state, self._workers.wait_for_all)

    def _begin(self) -> None:
        """Goes on from the latest checkpoint, if there is one."""
        latest = self._checkpoints.latest()
        if latest is None:
            self._workers.start(self._optimizer)
        else:
            common = self._checkpoints.load(latest, rank=0)
            own = self._checkpoints.load(latest, self._workers.rank)
            self._progress = Progress(**common["progress"])
            self._workers.resume(self._progress.step, common["model"], own["workers"], self._optimizer)
            self._optimizer.load_state_dict(common["optimizer"])
        self._counted = self._workers.usage()  # virtual workers remember theirs
