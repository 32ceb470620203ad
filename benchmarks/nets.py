"""What bench_hooks trains: a perceptron of any size, or the model of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from terngrad.recipes import RECIPES

PERCEPTRON = "perceptron"
NETS = (PERCEPTRON, *RECIPES)

Loss = Callable[[nn.Module], Tensor]


def perceptron(width: int, depth: int, batch: int, seed: int, rank: int) -> tuple[nn.Module, Loss]:
    """A deep perceptron, the same on every rank, and the loss of this rank's examples."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(width, width)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # gradients of one size in all layers
        layers += [layer, nn.ReLU()]
    generator = torch.Generator().manual_seed(seed + 1 + rank)
    inputs = torch.randn(batch, width, generator=generator)
    targets = torch.randn(batch, width, generator=generator)
    return nn.Sequential(*layers[:-1]), lambda model: nn.functional.mse_loss(model(inputs), targets)


def recipe_net(
    name: str, data: Path | None, batch: int, seed: int, rank: int, world_size: int
) -> tuple[nn.Module, Loss]:
    """A recipe's model, the same on every rank, and the loss of this rank's share of the first batch."""
    recipe = RECIPES[name]
    task = recipe.load(data)
    torch.manual_seed(seed)
    model = recipe.make_model(task)
    inputs, targets = task.batch(seed, 0, rank, world_size, batch * world_size)
    return model, lambda model: task.loss(model(inputs), targets)
