"""Momentum between an optimizer and a method: where it is, what it comes to, and that it comes back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import terngrad as tg

STEPS = 400  # after which nothing of a first push is left of momentum 0.9


def start(method: str, momentum: float = 0.9) -> tuple[nn.Linear, torch.optim.Optimizer, tg.VirtualWorkers]:
    torch.manual_seed(0)
    net = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=momentum)
    return net, optimizer, tg.VirtualWorkers(net, method, 2, optimizer=optimizer)


def step(optimizer: torch.optim.Optimizer, workers: tg.VirtualWorkers, gradients: list[Tensor]) -> None:
    for rank, gradient in enumerate(gradients):
        workers.rows[rank] = gradient.flatten()
    workers.average()
    optimizer.step()


def push(generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(64, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("compensation", ["masking", "sam"])
def test_a_push_moves_parameters_as_far_as_with_momentum_in_the_optimizer(compensation: str) -> None:
    """All of it is sent sooner or later, and with `sam` the momentum of what is sent too."""
    ends = []
    for method in ("fp32", f"sdagc:threshold=0,values=fp32,compensation={compensation}"):
        net, optimizer, workers = start(method)
        before = net.weight.detach().clone()
        generator = torch.Generator().manual_seed(1)
        step(optimizer, workers, push(generator))
        for _ in range(STEPS):
            step(optimizer, workers, [torch.zeros(64)] * 2)
        ends.append(net.weight.detach() - before)
    # With masking, momentum ends where a value was sent: DGC's choice. One push is then just what it is.
    expected = ends[0] if compensation == "sam" else ends[0] * 0.1
    torch.testing.assert_close(ends[1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compensation", ["masking", "sam"])
def test_what_an_optimizer_had_in_motion_goes_on(compensation: str) -> None:
    """A velocity that moves to the method, from an optimizer that has trained before, comes to the same in the end."""
    ends = []
    for method in ("fp32", f"sdagc:threshold=1000,values=fp32,compensation={compensation}"):
        torch.manual_seed(0)
        net = nn.Linear(8, 8, bias=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
        net.weight.grad = torch.arange(64.0).view(8, 8) + 1
        optimizer.step()
        before = net.weight.detach().clone()
        workers = tg.VirtualWorkers(net, method, 2, optimizer=optimizer)
        for _ in range(3 if compensation == "masking" else STEPS):
            step(optimizer, workers, [torch.zeros(64)] * 2)
        held = sum(coder.residuals.get(0, torch.zeros(64)) for coder in workers._coders) / 2
        # What is held back with `sam` will count 1 / (1 - m) times.
        left = held.view(8, 8) * (10.0 if compensation == "sam" else 1.0)
        ends.append(net.weight.detach() - before - left)
    if compensation == "masking":  # but for the largest values, whose momentum ended when they were sent
        close = (ends[1] - ends[0]).abs() < 1e-3 * ends[0].abs()
        assert close.double().mean() > 0.9
    else:
        torch.testing.assert_close(ends[1], ends[0], rtol=1e-3, atol=1e-3)
