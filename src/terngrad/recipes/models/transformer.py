"""A small decoder-only transformer, normalised before each sublayer as GPT-2 is (Radford et al., 2019)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal self-attention of several heads."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = self.inputs(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        # Written out, N x heads x length x length: torch's fused attention has no vmap on CPU.
        scores = (queries @ keys.transpose(-1, -2)) * queries.shape[-1] ** -0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        heads = scores.masked_fill(future, -torch.inf).softmax(dim=-1) @ values
        mixed: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """Attention, then a perceptron with four times the width; each is added to what it read."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, num_heads))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        out: Tensor = x + self.perceptron(x)
        return out


class GPT(nn.Module):
    """Scores of every next word (N x length x words); input and output share one embedding."""

    def __init__(self, num_outputs: int, width: int, num_heads: int, num_layers: int, context: int) -> None:
        super().__init__()
        self.words = nn.Embedding(num_outputs, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)), nn.LayerNorm(width))
        self.apply(initialize)

    def forward(self, words: Tensor) -> Tensor:
        positions = torch.arange(words.shape[-1], device=words.device)
        hidden = self.blocks(self.words(words) + self.positions(positions))
        return F.linear(hidden, self.words.weight)


def initialize(module: nn.Module) -> None:
    """GPT-2's: weights with a standard deviation of 0.02, no biases."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
