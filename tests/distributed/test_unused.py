"""Parameters that are not used in every step, by all ranks or by some, with methods that hold something back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import terngrad as tg
from terngrad.ddp.auto import Decision
from terngrad.perf.choice import PLAIN

from .workloads import Stage, digest, loss_of, parameters, same

pytestmark = pytest.mark.distributed

stage = Stage()


class Branches(nn.Module):
    """One of two layers, by step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 10), nn.Linear(24, 10)])
        self.step = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers[self.step % 2](inputs)
        return found


@stage.scenario(2)
def odd_steps(rank: int, world_size: int) -> dict[str, Any]:
    torch.manual_seed(0)
    net = Branches()
    model = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    tg.attach(model, "sdagc:threshold=1", optimizer=optimizer, verify_every=1)
    for step in range(6):
        net.step = step
        optimizer.zero_grad()
        with model.no_sync():
            torch.autograd.backward(loss_of(model, rank, 10 + step))
        torch.autograd.backward(loss_of(model, rank, step))
        optimizer.step()
    dist.barrier()
    return {"end": digest(parameters(model))}


@stage.scenario(2)
def branches_in_turn(rank: int, world_size: int) -> dict[str, Any]:
    """What was given, has arrived and is held back of a net whose parameters stay as they are."""
    found: dict[str, Any] = {}
    for drained in (False, True):
        torch.manual_seed(0)
        net = Branches()
        model = DistributedDataParallel(net, find_unused_parameters=True)
        handle = tg.attach(model, "sdagc:threshold=1,values=fp32,compensation=none")
        own = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        arrived = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        for step in range(12):
            net.step = step
            if drained and step == 11:
                handle.drain()
            for target, run in ((own, net), (arrived, model)):
                model.zero_grad()
                torch.autograd.backward(loss_of(run, rank, step))
                for name, p in net.named_parameters():
                    if p.grad is not None:
                        target[name] += p.grad
        held = {name: residual.view_as(own[name]) for name, residual in handle.state_dict()["residuals"].items()}
        for name, given in own.items():
            left = given - held.get(name, torch.zeros(()))
            dist.all_reduce(left)
            torch.testing.assert_close(arrived[name], left / world_size, rtol=1e-4, atol=1e-5)
        found[f"held, drained={drained}"] = sorted(held)
        handle.detach()
    return found


def test_nothing_is_lost_of_parameters_that_no_rank_uses_in_some_steps() -> None:
    for found in stage.play(branches_in_turn, 2):
        names = ["layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"]
        assert found["held, drained=False"] == names
        assert found["held, drained=True"] == names[:2]  # which the last step does not use


def test_accumulated_and_unused_gradients_leave_replicas_equal() -> None:
    assert same([found["end"] for found in stage.play(odd_steps, 2)])


class Chosen(nn.Module):
    """Two layers, of which a rank uses those that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 10), nn.Linear(24, 10)])
        self.use: tuple[int, ...] = (0, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.layers[i](inputs) for i in self.use]).sum(dim=0)


FIRST, SECOND, BOTH = (0,), (1,), (0, 1)


class Worker:
    """A rank that trains what it is told to use."""

    def __init__(self, method: str, rank: int, momentum: float = 0.9) -> None:
        torch.manual_seed(0)
        self.rank = rank
        self.net = Chosen()
        self.model = DistributedDataParallel(self.net, find_unused_parameters=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=momentum)
        self.handle = tg.attach(self.model, method, optimizer=self.optimizer, measure_every=1)
        self.step = 0

    def train(self, *uses: tuple[int, ...]) -> None:
        for use in uses:
            self.backward(use)
            self.optimizer.step()

    def backward(self, use: tuple[int, ...], factor: float = 1.0) -> None:
        self.net.use = use
        self.optimizer.zero_grad()
        torch.autograd.backward(factor * loss_of(self.model, self.rank, self.step))
        self.step += 1

    @property
    def held(self) -> list[str]:
        return sorted(self.handle.state_dict()["residuals"])

    @property
    def digest(self) -> str:
        return digest(parameters(self.model))


KEEPS = "sdagc:threshold=1,compensation=none"
OF_SECOND = ["layers.1.bias", "layers.1.weight"]


def differing(rank: int, method: str) -> Worker:
    """One that has gone over to a method that holds nothing back, in a step in which rank 0 used one layer only."""
    worker = Worker(KEEPS, rank)
    worker.train(BOTH, BOTH, BOTH)
    worker.handle.set_method(method)
    worker.train(FIRST if rank == 0 else BOTH)
    return worker


@stage.scenario(2)
def a_method_without_accumulation(rank: int, world_size: int) -> dict[str, Any]:
    worker = differing(rank, "fp16")
    held = worker.held
    worker.handle.set_method(f"{KEEPS},accumulation=false")
    worker.train(BOTH, BOTH)
    return {"held": held, "end": worker.digest}


@stage.scenario(2)
def a_drain_that_is_void(rank: int, world_size: int) -> dict[str, Any]:
    worker = differing(rank, "terngrad:dense_below=1")
    held = worker.held
    worker.handle.drain()
    worker.backward(BOTH, factor=float("inf"))  # as with AMP; the optimizer makes no step
    again = worker.handle._coder.draining
    worker.train(BOTH)
    return {"held": held, "again": again, "left": worker.held, "end": worker.digest}


@stage.scenario(2)
def averages_of_ddp(rank: int, world_size: int) -> dict[str, Any]:
    """As "auto" has them; then rank 0 uses both layers again, or never does."""
    found: dict[str, Any] = {}
    own = FIRST if rank == 0 else BOTH
    for again in (True, False):
        worker = Worker(KEEPS, rank)
        worker.train(BOTH, BOTH, BOTH)
        worker.handle._selection.follow(Decision(3, PLAIN, "all-reduce", "for the test"))
        worker.train(own)
        held = worker.held
        worker.train(*([BOTH] * 3 if again else [own] * 12))
        found[f"again={again}"] = held, worker.handle._selection.averages_plainly, worker.held, worker.digest
    return found


@stage.scenario(2)
def one_that_never_uses_it(rank: int, world_size: int) -> dict[str, Any]:
    """With the form of momentum in which what is held back is the optimizer's velocity."""
    own = FIRST if rank == 0 else BOTH
    worker = Worker("sdagc:threshold=1,compensation=sam", rank)
    worker.train(own, own, own, own)
    worker.handle.drain()
    worker.train(own)
    held = worker.held
    worker.handle.detach()
    worker.train(BOTH)
    return {"held": held, "end": worker.digest}


def test_ranks_that_hold_back_different_things_stay_together() -> None:
    for scenario in (a_method_without_accumulation, a_drain_that_is_void, one_that_never_uses_it):
        ranks = stage.play(scenario, 2)
        assert ranks[0]["held"] != ranks[1]["held"], scenario  # or nothing was tried
        assert same([found["end"] for found in ranks]), scenario
    for found in stage.play(a_drain_that_is_void, 2):
        assert found["again"]
        assert found["left"] == []


def test_ddp_averages_as_soon_as_nothing_is_held_back_that_can_be_sent() -> None:
    ranks = stage.play(averages_of_ddp, 2)
    for again in (True, False):
        first, second = (found[f"again={again}"] for found in ranks)
        assert (first[0], second[0]) == (OF_SECOND, [])
        assert first[1]
        assert second[1]
        assert first[2] == ([] if again else OF_SECOND)
        assert first[3] == second[3]


@stage.scenario(2)
def sent_whole_in_turn(rank: int, world_size: int) -> dict[str, float]:
    ends = []
    for method in ("fp32", "sdagc:dense_below=1000000,compensation=masking"):
        worker = Worker(method, rank)
        worker.train(*[FIRST, SECOND] * 4)
        ends.append(torch.cat([p.detach().flatten() for p in worker.net.parameters()]))
    return {"difference": float((ends[0] - ends[1]).abs().max()), "size": float(ends[0].abs().max())}


def test_a_velocity_stands_still_in_steps_that_do_not_use_its_parameter() -> None:
    for found in stage.play(sent_whole_in_turn, 2):
        assert found["difference"] < 1e-6 < found["size"]


@stage.scenario(2)
def measured_in_turn(rank: int, world_size: int) -> dict[str, Any]:
    worker = Worker(KEEPS, rank)
    worker.train(BOTH, FIRST)
    return {name: found["scaler"] for name, found in worker.handle.take_measurements().items()}


def test_measurements_leave_out_steps_that_do_not_use_a_parameter() -> None:
    for found in stage.play(measured_in_turn, 2):
        assert len(found) == 4
        assert all(0 < scaler < 10 for scaler in found.values())
