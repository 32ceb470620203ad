"""The two kinds of tasks: classification, of anything that has a label, and language modelling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from terngrad.recipes.base import Evaluation, Task, evaluating
from terngrad.recipes.draws import Purpose, generator_of

EVALUATION_BATCH = 250  # examples
EVALUATION_TOKENS = 128  # every one has a score for each word: small parts stay in cache

Prepare = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, Generator], Tensor]


@dataclass(frozen=True)
class Split:
    """Examples as they are stored, and a class for each."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


class Classification(Task):
    """Inputs of one shape, with a label each; the metric is accuracy.

    Inputs stay as they are stored, pixels as bytes, and become what the model sees batch by batch: by `prepare`, or for
    training by `augment`, if there is one.
    """

    def __init__(
        self, train: Split, test: Split, num_outputs: int, prepare: Prepare, augment: Augment | None = None
    ) -> None:
        super().__init__(len(train), num_outputs)
        self._train = train
        self._test = test
        self._prepare = prepare
        self._augment = augment

    def examples(self, indices: Tensor, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        inputs, labels = self._train.inputs[indices], self._train.labels[indices]
        if self._augment is None:
            return self._prepare(inputs), labels
        return self._augment(inputs, generator_of(Purpose.AUGMENTATION, *key)), labels

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def evaluate(self, model: nn.Module) -> Evaluation:
        loss, correct = 0.0, 0
        with evaluating(model):
            for inputs, labels in in_parts(self._test.inputs, self._test.labels, EVALUATION_BATCH):
                outputs = model(self._prepare(inputs))
                loss += F.cross_entropy(outputs, labels, reduction="sum").item()
                correct += int((outputs.argmax(dim=1) == labels).sum())
        return Evaluation(correct / len(self._test), loss / len(self._test))


class LanguageModelling(Task):
    """The next word, everywhere in a text; the metric is perplexity.

    The text is cut into windows, each read on its own: a model starts every window without memory, in training and in
    evaluation. That makes sequences independent, as workers need them, and perplexity higher than with a state that is
    carried from window to window.
    """

    def __init__(self, train: Tensor, valid: Tensor, num_words: int, window: int, max_valid_windows: int) -> None:
        """`train` and `valid` are the words' numbers, in the order of the text."""
        self._inputs, self._targets = windows(train, window)
        self._valid_inputs, self._valid_targets = (part[:max_valid_windows] for part in windows(valid, window))
        super().__init__(len(self._inputs), num_words)

    def examples(self, indices: Tensor, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return self._inputs[indices].long(), self._targets[indices].long()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def evaluate(self, model: nn.Module) -> Evaluation:
        total = 0.0
        rows = max(1, EVALUATION_TOKENS // self._valid_inputs.shape[1])
        with evaluating(model):
            for inputs, targets in in_parts(self._valid_inputs, self._valid_targets, rows):
                outputs = model(inputs.long()).flatten(0, 1)
                total += F.cross_entropy(outputs, targets.long().flatten(), reduction="sum").item()
        loss = total / self._valid_targets.numel()
        return Evaluation(torch.tensor(loss, dtype=torch.float64).exp().item(), loss)  # too large for a float: infinite


def windows(words: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The text in rows of `length` words, and for each word the one that follows it; a short last row is left out."""
    num_rows = (len(words) - 1) // length
    used = num_rows * length
    return words[:used].view(num_rows, length), words[1 : used + 1].view(num_rows, length)


def in_parts(inputs: Tensor, targets: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """So many at a time; the last part may be smaller."""
    for start in range(0, len(inputs), size):
        yield inputs[start : start + size], targets[start : start + size]
