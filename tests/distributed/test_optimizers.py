"""Optimizers whose momentum a method has taken over: their checkpoints, their schedulers, and ranks that differ."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import terngrad as tg

from .workloads import Net, Run, Stage, digest, distance, loss_of, message_of, parameters, same

pytestmark = pytest.mark.distributed

stage = Stage()
FORMS = ("masking", "sam", "upfront")


@stage.scenario(2)
def continued_from_plain_training(rank: int, world_size: int) -> dict[str, list[str]]:
    """A checkpoint of plain DDP, loaded before attach and after it, into an optimizer that has other settings."""
    plain = Run("fp32", rank)
    plain.train(range(3))
    saved = plain.optimizer.state_dict(), plain.model.module.state_dict()
    found: dict[str, list[str]] = {form: [] for form in FORMS}
    for form, loaded_first in product(FORMS, (False, True)):
        torch.manual_seed(0)
        model = DistributedDataParallel(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model.module.load_state_dict(saved[1])
        if loaded_first:
            optimizer.load_state_dict(saved[0])
        handle = tg.attach(model, f"sdagc:threshold=2,compensation={form}", optimizer=optimizer)
        if not loaded_first:
            optimizer.load_state_dict(saved[0])
        for step in range(3, 8):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model, rank, step))
            optimizer.step()
        found[form].append(digest(parameters(model)))
        handle.detach()
    return found


@pytest.mark.parametrize("form", FORMS)
def test_an_optimizer_may_be_loaded_before_attach_or_after_it(form: str) -> None:
    assert all(same(found[form]) for found in stage.play(continued_from_plain_training, 2))


SENT_WHOLE = "sdagc:compensation=masking,dense_below=1000000000"  # is plain momentum SGD


@stage.scenario(2)
def beside_plain_training(rank: int, world_size: int) -> dict[str, float]:
    """Settings that come with a checkpoint after attach, and those that a scheduler writes."""
    found = {}
    for name, there, here in (
        ("nesterov", {"nesterov": True}, {"momentum": 0.5}),
        ("no momentum", {"momentum": 0.0}, {}),
        ("no decay", {"weight_decay": 0.0}, {"weight_decay": 0.1}),
    ):
        plain, moved = Run("fp32", rank, **there), Run(SENT_WHOLE, rank, **here)
        plain.train(range(3))
        moved.model.load_state_dict(plain.model.state_dict())
        moved.optimizer.load_state_dict(copy.deepcopy(plain.optimizer.state_dict()))
        for run in (plain, moved):
            run.train(range(3, 6))
        found[name] = distance(parameters(moved.model), parameters(plain.model))
    plain, moved = Run("fp32", rank), Run(SENT_WHOLE, rank)
    for step, momentum in enumerate((0.9, 0.5, 0.8, 0.3)):
        for run in (plain, moved):
            run.optimizer.param_groups[0]["momentum"] = momentum
            run.train(range(step, step + 1))
    found["scheduled"] = distance(parameters(moved.model), parameters(plain.model))
    return found


def test_loaded_and_scheduled_settings_act_as_in_the_optimizer() -> None:
    for found in stage.play(beside_plain_training, 2):
        assert found == dict.fromkeys(found, pytest.approx(0.0, abs=1e-6))


@stage.scenario(2)
def nesterov_for_sam(rank: int, world_size: int) -> tuple[str, dict[str, Any], str]:
    run = Run("sdagc:compensation=sam", rank)
    state = Run("fp32", rank, nesterov=True).optimizer.state_dict()
    said = message_of(lambda: run.optimizer.load_state_dict(state))
    run.train(range(1))
    run.handle.detach()
    group = run.optimizer.param_groups[0]
    return said, {name: group[name] for name in ("momentum", "nesterov", "weight_decay")}, run.digest


def test_a_checkpoint_whose_momentum_a_method_cannot_have_is_refused() -> None:
    ranks = stage.play(nesterov_for_sam, 2)
    for said, settings, _ in ranks:
        assert "compensation='sam' is for one momentum, not Nesterov's" in said
        assert settings == {"momentum": 0.9, "nesterov": False, "weight_decay": 1e-3}
    assert same([end for _, _, end in ranks])


@stage.scenario(2)
def loaded_and_given_back(rank: int, world_size: int) -> dict[str, tuple[float, float]]:
    """Velocities that were loaded just before the method changes to one that leaves momentum to the optimizer."""
    found = {}
    for form in ("masking", "sam"):
        run = Run(f"sdagc:threshold=2,compensation={form}", rank, weight_decay=0.0)
        state = run.optimizer.state_dict()
        state["state"] = {i: {"momentum_buffer": torch.full_like(p, 3)} for i, p in enumerate(run.model.parameters())}
        state["param_groups"][0]["momentum"] = 0.5
        run.optimizer.load_state_dict(state)
        run.handle.set_method("fp32")
        buffers = [run.optimizer.state[p]["momentum_buffer"] for p in run.model.parameters()]
        found[form] = run.optimizer.param_groups[0]["momentum"], float(torch.cat([b.flatten() for b in buffers]).mean())
        run.handle.detach()
    return found


def test_what_was_loaded_goes_back_also_without_a_step_between() -> None:
    for found in stage.play(loaded_and_given_back, 2):
        assert found == {"masking": (0.5, 3.0), "sam": (0.5, 3.0)}


@stage.scenario(2)
def told_otherwise(rank: int, world_size: int) -> dict[str, float]:
    run = Run("sdagc:threshold=2", rank)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(run.optimizer, max_lr=0.1, total_steps=10)
    run.train(range(1))
    scheduler.step()
    found = {"told": run.optimizer.param_groups[0]["momentum"]}
    found["saved"] = run.optimizer.state_dict()["param_groups"][0]["momentum"]
    run.handle.set_method("sdagc:threshold=3")
    found["after set_method"] = run.optimizer.state_dict()["param_groups"][0]["momentum"]
    return found


def test_what_an_optimizer_was_told_last_holds() -> None:
    for found in stage.play(told_otherwise, 2):
        assert 0.8 < found["told"] < 0.95
        assert found["saved"] == found["after set_method"] == found["told"]


@stage.scenario(2)
def wrong(rank: int, world_size: int) -> dict[str, Any]:
    model = DistributedDataParallel(Net())
    mine = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 if rank == 0 else 0.5)
    found = {"by rank": message_of(lambda: tg.attach(model, "sdagc", optimizer=mine))}
    saved = Run("sdagc", rank).handle.state_dict()
    names = dict(model.named_parameters())
    groups = [{"params": [p for name, p in names.items() if ("first" in name) == first]} for first in (True, False)]
    two = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    handle = tg.attach(model, "sdagc", optimizer=two)
    found["groups"] = message_of(lambda: handle.load_state_dict(saved))
    found["part"] = message_of(lambda: handle.load_state_dict({k: v for k, v in saved.items() if k != "momentum"}))
    handle.detach()
    found["momenta"] = [group["momentum"] for group in two.param_groups]
    found["detached"] = [
        message_of(lambda: handle.set_method("sdagc")),
        message_of(handle.drain),
        message_of(lambda: handle.load_state_dict(saved)),
    ]
    found["after"] = [group["momentum"] for group in two.param_groups]
    return found


def test_what_cannot_be_is_refused_and_leaves_the_optimizer_as_it_was() -> None:
    for found in stage.play(wrong, 2):
        assert "ranks differ in momentum" in found["by rank"]
        assert "optimizer with 1 groups, this one has 2" in found["groups"]
        assert "no momentum" in found["part"]
        assert found["momenta"] == found["after"] == [0.9, 0.9]
        assert all("is detached" in text for text in found["detached"])


@stage.scenario(2)
def saved_while_attached(rank: int, world_size: int) -> dict[str, Any]:
    run = Run("sdagc:threshold=2", rank, nesterov=True)
    run.train(range(2))
    state = run.optimizer.state_dict()
    plain = torch.optim.SGD(Net().parameters(), lr=0.05)
    plain.load_state_dict(state)
    names = ("momentum", "nesterov", "weight_decay")
    found = {
        "attached": [run.optimizer.param_groups[0][name] for name in names],
        "loaded": [plain.param_groups[0][name] for name in names],
    }
    run.optimizer.load_state_dict(state)
    run.train(range(2, 4))
    found["after"] = [run.optimizer.param_groups[0][name] for name in names]
    run.handle.detach()
    found["detached"] = [run.optimizer.state_dict()["param_groups"][0][name] for name in names]
    return found


def test_an_optimizers_checkpoint_has_the_momentum_that_it_was_told_to_have() -> None:
    mine, moved = [0.9, True, 1e-3], [0.0, False, 0.0]
    for found in stage.play(saved_while_attached, 2):
        assert found == {"attached": moved, "loaded": mine, "after": moved, "detached": mine}


@stage.scenario(2)
def schedulers(rank: int, world_size: int) -> dict[str, Any]:
    """A scheduler of momentum writes to the optimizer's groups."""
    run = Run("sdagc:threshold=2,compensation=masking", rank)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(run.optimizer, max_lr=0.1, total_steps=20)
    run.train(range(1))
    for step in range(1, 5):
        scheduler.step()
        run.train(range(step, step + 1))
    momenta = {momentum.factor for momentum in run.handle._coder.momenta.values()}
    return {"momenta": momenta, "group": run.optimizer.param_groups[0]["momentum"], "end": run.digest}


def test_a_momentum_that_a_scheduler_sets_is_taken_over() -> None:
    for found in stage.play(schedulers, 2):
        assert len(found["momenta"]) == 1
        assert 0.85 <= found["momenta"].pop() < 0.95
        assert found["group"] == 0.0
