"""Recurrent networks: an LSTM that predicts words, and a GRU that tells spoken words apart."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OutputBias(nn.Module):
    """What is left of an output layer that shares its weights: the last layer, also in the order of registration."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, scores: Tensor) -> Tensor:
        return scores + self.bias


class LSTMLanguageModel(nn.Module):
    """Scores of every next word (N x length x words) for sequences of words, each read from a zero state.

    Input and output share one embedding (Press and Wolf, 2016).
    """

    def __init__(self, num_outputs: int, width: int, num_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_outputs, width)
        self.lstm = nn.LSTM(width, width, num_layers, batch_first=True)
        self.output = OutputBias(num_outputs)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(words))
        scores: Tensor = self.output(F.linear(hidden, self.embedding.weight))
        return scores


class GRUClassifier(nn.Module):
    """Reads frames (N x frames x features) one after the other, and decides by the last state."""

    def __init__(self, num_outputs: int, num_features: int, width: int, num_layers: int) -> None:
        super().__init__()
        self.gru = nn.GRU(num_features, width, num_layers, batch_first=True)
        self.classifier = nn.Linear(width, num_outputs)

    def forward(self, frames: Tensor) -> Tensor:
        _, last = self.gru(frames)
        logits: Tensor = self.classifier(last[-1])
        return logits
