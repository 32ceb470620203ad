"""What a recipe and a task are; the recipes themselves are in `catalogue`, the two kinds of tasks in `tasks`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from terngrad.errors import ConfigurationError
from terngrad.recipes.data.cache import data_folder
from terngrad.recipes.draws import Purpose, generator_of
from terngrad.recipes.schedules import SCHEDULES


@dataclass(frozen=True)
class Optimizer:
    """What updates the parameters, in words; who trains makes torch's optimizer from it."""

    kind: str  # "sgd" or "adam"
    lr: float  # times `Recipe.factor` in each step
    momentum: float = 0.0  # of SGD
    weight_decay: float = 0.0  # L2, added to the averaged gradient of every parameter
    nesterov: bool = False
    clip_norm: float = 0.0  # of the averaged gradient of the whole model; 0: none


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on examples it was not trained on."""

    value: float  # of the recipe's metric
    loss: float  # mean


class Task(ABC):
    """Data with its loss, in memory. What `batch` gives is a function of its arguments, whoever asked before."""

    num_train: int  # examples or sequences
    num_outputs: int  # of the model: classes or words

    def __init__(self, num_train: int, num_outputs: int) -> None:
        self.num_train = num_train
        self.num_outputs = num_outputs
        self._epoch_order: tuple[tuple[int, int], Tensor] | None = None

    def steps_per_epoch(self, size: int) -> int:
        """Whole batches in an epoch; the few examples left over are others in every epoch."""
        if not 1 <= size <= self.num_train:
            raise ConfigurationError(
                f"a batch of {size}: there are {self.num_train} examples to train on; pass a size from 1 to that"
            )
        return self.num_train // size

    def batch(self, seed: int, step: int, rank: int, world_size: int, size: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one rank: its share of the `size` examples of this step, of all ranks together.

        All ranks together see the same examples whatever their number; only how those are augmented depends on it.
        """
        indices = self.indices(seed, step, rank, world_size, size)
        return self.examples(indices, (seed, step, rank, world_size))

    def indices(self, seed: int, step: int, rank: int, world_size: int, size: int) -> Tensor:
        """Which of the training examples `batch` gives, in its order."""
        if size % world_size or not 0 <= rank < world_size:
            raise ConfigurationError(
                f"rank {rank} of {world_size} and a batch of {size}: every rank must get the same number of examples; "
                f"pass a rank below {world_size} and a multiple of {world_size} as the batch"
            )
        epoch, position = divmod(step, self.steps_per_epoch(size))
        share = size // world_size
        start = position * size + rank * share
        return self._order(seed, epoch)[start : start + share]

    def _order(self, seed: int, epoch: int) -> Tensor:
        """The permutation of an epoch; the last one is kept, since the steps of an epoch follow each other."""
        kept = self._epoch_order
        if kept is None or kept[0] != (seed, epoch):
            order = torch.randperm(self.num_train, generator=generator_of(Purpose.ORDER, seed, epoch))
            self._epoch_order = kept = ((seed, epoch), order)
        return kept[1]

    @abstractmethod
    def examples(self, indices: Tensor, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these training examples; what is random about them is drawn from `key`."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over the batch."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> Evaluation:
        """The metric of `model` on held-out data, in evaluation mode.

        Pass the bare module: a DistributedDataParallel that only one rank calls would wait for the others.
        """


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, without gradients; afterwards the model is in the mode it was in."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how. The numbers are defaults, which who trains may change."""

    name: str
    summary: str  # a line for listings
    metric: Literal["accuracy", "perplexity", ""]  # a fraction, higher is better; lower is better; "": speed only
    target: float | None  # of the metric, for the time to reach it; None for speed only
    batch: int  # examples or sequences in a step, of all workers together
    steps: int
    eval_every: int  # steps; 0: never
    optimizer: Optimizer
    schedule: str  # a name in `schedules`
    vectorizes: bool  # whether torch.func.vmap of the gradient gives those of many workers: no batch norm, no dropout
    read: Callable[[Path], Task]  # from the folder with all data
    build: Callable[[int], nn.Module]  # for a number of outputs

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ConfigurationError(
                f"Recipe(schedule={self.schedule!r}): schedule must be one of {', '.join(SCHEDULES)}"
            )

    def load(self, folder: Path | None = None) -> Task:
        """Reads the data from `folder`, by default the cache; downloads what is missing, where that is possible.

        Raises DataMissing, which says which files are missing where, and how to get them.
        """
        return self.read(data_folder(folder))

    def make_model(self, task: Task) -> nn.Module:
        """A new model for this task, its parameters drawn from torch's global generator: seed that first."""
        return self.build(task.num_outputs)

    def factor(self, step: int, steps: int) -> float:
        """Of the learning rate, in this step (0-based) of a run of so many steps."""
        if not 0 <= step < steps:
            raise ConfigurationError(f"step {step} of a run of {steps}: steps are counted from 0 to {steps - 1}")
        return SCHEDULES[self.schedule](step, steps)
