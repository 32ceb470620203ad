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


FORMS = ["masking", "sam", "upfront"]


@pytest.mark.parametrize("compensation", FORMS)
def test_a_push_moves_parameters_as_far_as_documented(compensation: str) -> None:
    """All of it is sent sooner or later, with `sam` all of its momentum too, and with `upfront` half of that."""
    ends = []
    for method in ("fp32", f"sdagc:threshold=0,values=fp32,compensation={compensation}"):
        net, optimizer, workers = start(method)
        before = net.weight.detach().clone()
        generator = torch.Generator().manual_seed(1)
        step(optimizer, workers, push(generator))
        for _ in range(STEPS):
            step(optimizer, workers, [torch.zeros(64)] * 2)
        ends.append(net.weight.detach() - before)
    # Momentum in the optimizer makes ten of one push. With masking it ends where a value was sent: DGC's choice.
    pushes = {"sam": 10.0, "masking": 1.0, "upfront": 1 + 9 / 2}[compensation]
    torch.testing.assert_close(ends[1], ends[0] * pushes / 10, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("compensation", "nesterov"), [*((form, False) for form in FORMS), ("upfront", True)])
def test_what_an_optimizer_had_in_motion_goes_on(compensation: str, nesterov: bool) -> None:
    """A velocity that moves to the method, from an optimizer that has trained before, comes to the same in the end.

    With `upfront` to half of it, as with all momentum.
    """
    ends = []
    for method in ("fp32", f"sdagc:threshold=1000,values=fp32,compensation={compensation}"):
        torch.manual_seed(0)
        net = nn.Linear(8, 8, bias=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9, nesterov=nesterov)
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
        torch.testing.assert_close(ends[1], ends[0] * (1.0 if compensation == "sam" else 0.5), rtol=1e-3, atol=1e-3)


def trained(
    method: str, steps: int = 3, **settings: float
) -> tuple[nn.Linear, torch.optim.Optimizer, tg.VirtualWorkers]:
    torch.manual_seed(0)
    net = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), **{"lr": 0.1, "momentum": 0.9, **settings})  # type: ignore[arg-type]
    workers = tg.VirtualWorkers(net, method, 2, optimizer=optimizer)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        step(optimizer, workers, push(generator))
    return net, optimizer, workers


def hand_over(workers: tg.VirtualWorkers, method: str) -> None:
    """As Handle.set_method, for virtual workers."""
    found = tg.from_spec(method)
    for coder in workers._coders:
        coder.set_method(found)
    workers._momentum.follow(found, lambda _: None)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_hand_over_there_and_back_changes_nothing(scale: float, nesterov: bool) -> None:
    method = "sdagc:compensation=masking,threshold=3,values=fp32"
    _, optimizer, workers = trained(method, nesterov=nesterov)
    for coder in workers._coders:
        coder.rescale(scale)
    residual = workers._coders[0].residuals[0].clone()
    velocity = sum(coder.velocities[0] for coder in workers._coders) / 2
    hand_over(workers, "fp32")
    assert optimizer.param_groups[0]["momentum"] == 0.9
    hand_over(workers, method)
    torch.testing.assert_close(workers._coders[0].residuals[0], residual)
    torch.testing.assert_close(workers._coders[1].velocities[0], velocity)


def test_what_upfront_holds_back_is_a_gradient_again_for_the_optimizer() -> None:
    method = "sdagc:threshold=3,values=fp32"
    _, optimizer, workers = trained(method)
    residual = workers._coders[0].residuals[0].clone()
    hand_over(workers, "terngrad:error_feedback=true,dense_below=0")
    torch.testing.assert_close(workers._coders[0].residuals[0], residual / 5.5)
    assert optimizer.param_groups[0]["momentum"] == 0.9
    hand_over(workers, method)
    torch.testing.assert_close(workers._coders[0].residuals[0], residual)


def test_a_momentum_of_one_that_is_set_later_is_refused() -> None:
    _, optimizer, workers = trained("sdagc")
    optimizer.param_groups[0]["momentum"] = 1.0
    with pytest.raises(tg.ConfigurationError, match="it must be below 1"):
        step(optimizer, workers, [torch.zeros(64)] * 2)


def test_upfront_clips_before_it_adds_momentum() -> None:
    _, optimizer, workers = trained("sdagc:threshold=0,values=fp32,clip_norm=2", steps=0)
    gradient = torch.full((64,), 1.0)  # of norm 8, of which each of two workers may send 2 / sqrt(2)
    step(optimizer, workers, [gradient, gradient])
    parameter = optimizer.param_groups[0]["params"][0]
    torch.testing.assert_close(parameter.grad.flatten(), gradient * 5.5 * 2**0.5 / 8)


def test_groups_with_different_momentum_have_their_own_gains() -> None:
    net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    groups = [
        {"params": net[0].parameters(), "momentum": 0.5, "nesterov": True},
        {"params": net[1].parameters(), "momentum": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    workers = tg.VirtualWorkers(net, "sdagc:threshold=0,values=fp32", 2, optimizer=optimizer)
    step(optimizer, workers, [torch.ones(128)] * 2)
    gains = [float(parameter.grad.mean()) for parameter in net.parameters() if parameter.grad is not None]
    assert gains == [1.5, 1.0]


def test_upfront_decays_weights_as_much_as_it_moves_them() -> None:
    net, optimizer, workers = trained("sdagc", steps=0, weight_decay=0.01)
    before = net.weight.detach().clone()
    for _ in range(2):
        step(optimizer, workers, [torch.zeros(64)] * 2)
    torch.testing.assert_close(net.weight.detach(), before * (1 - 0.1 * 5.5 * 0.01) ** 2)


def test_a_parameter_that_becomes_dense_has_one_velocity_on_all_workers() -> None:
    _, _, workers = trained("sdagc:compensation=masking,threshold=3")
    assert not torch.equal(workers._coders[0].velocities[0], workers._coders[1].velocities[0])
    hand_over(workers, "sdagc:compensation=masking,dense_below=1000")
    assert torch.equal(workers._coders[0].velocities[0], workers._coders[1].velocities[0])


def test_what_was_held_back_of_a_parameter_that_becomes_dense_is_sent() -> None:
    net, optimizer, workers = trained("sdagc:compensation=masking,threshold=3")
    held = sum(coder.residuals[0] for coder in workers._coders) / 2 * (1 - 0.9)
    hand_over(workers, "sdagc:compensation=masking,dense_below=1000")
    velocity = workers._coders[0].velocities[0].clone()
    step(optimizer, workers, [torch.zeros(64)] * 2)
    assert net.weight.grad is not None
    torch.testing.assert_close(net.weight.grad.flatten(), held + 0.9 * velocity)
    assert not workers._coders[0].residuals


@pytest.mark.parametrize("by_keyword", [False, True])
def test_weight_decay_survives_a_closure(by_keyword: bool) -> None:
    weights = []
    for method in ("fp32", "sdagc:compensation=masking,dense_below=1000"):
        net, optimizer, workers = trained(method, steps=0, weight_decay=0.5)

        def closure(workers: tg.VirtualWorkers = workers) -> float:
            workers.rows.zero_()
            workers.average()
            return 0.0

        for _ in range(3):
            optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
        weights.append(net.weight.detach())
    torch.testing.assert_close(weights[1], weights[0])


def test_local_clipping_follows_the_scale_of_the_loss() -> None:
    _, optimizer, workers = trained("sdagc:compensation=masking,threshold=0,values=fp32,clip_norm=1000", steps=0)
    for coder in workers._coders:
        coder.rescale(65536.0)
    gradient = torch.full((64,), 65536.0)
    step(optimizer, workers, [gradient, gradient])
    parameter = optimizer.param_groups[0]["params"][0]
    torch.testing.assert_close(parameter.grad.flatten(), gradient)


def test_velocities_lie_in_memory_as_their_parameter_does() -> None:
    """DDP lays out a bucket in the order of memory."""
    from terngrad.ddp.momentum import MomentumLink
    from terngrad.methods import Coder, describe

    net = nn.Conv2d(3, 4, 2, bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    parameters = dict(net.named_parameters())
    buffer = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    optimizer.state[net.weight]["momentum_buffer"] = buffer.clone(memory_format=torch.preserve_format)
    coder = Coder(tg.SDAGC(compensation="masking"), describe(parameters), 0, 2, 0)
    link = MomentumLink(optimizer, parameters, [coder], by_memory=True)
    link.follow(coder.method, lambda _: None)
    assert torch.equal(coder.velocities[0], buffer.permute(0, 2, 3, 1).flatten())
    link.give_back(lambda _: None)
    assert torch.equal(optimizer.state[net.weight]["momentum_buffer"], buffer)
