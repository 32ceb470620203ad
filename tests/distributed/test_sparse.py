"""SDAGC and DGC between real processes: same replicas, momentum that moves and comes back, exact resume."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import terngrad as tg

from .workloads import Net, Run, Stage, digest, distance, loss_of, message_of, parameters, same

pytestmark = pytest.mark.distributed

stage = Stage()

STEPS = 8
METHODS = (
    "sdagc:threshold=2,values=bf16,compensation=masking",
    "sdagc:threshold=2",
    "sdagc:threshold=2,magnitude=threshold",
    "sdagc:threshold=2,compensation=sam",
    "sdagc:threshold=2,compensation=none,values=fp32,dense_below=100",
    "dgc:density=0.05",
    "terngrad:codec=entropy,dense_below=100",
)
RESUMED = (*METHODS[:6], "sdagc:threshold=2,clip_norm=0.5,revision=1,warmup_threshold=1,warmup_steps=6")


@stage.scenario(2, 3)
def by_exchange(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in METHODS:
        for exchange in ("all-gather", "two-shot"):
            run = Run(method, rank, exchange)
            run.train(range(STEPS))
            stats = run.handle.stats()
            found[f"{method} {exchange}"] = run.digest, stats["ratio"], stats["density"]
            run.handle.detach()
    return found


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_all_ranks_and_exchanges_end_with_the_same_bits(method: str, world_size: int) -> None:
    ranks = stage.play(by_exchange, world_size)
    found = [rank[f"{method} {exchange}"] for rank in ranks for exchange in ("all-gather", "two-shot")]
    assert same([bits for bits, _, _ in found])
    assert all(ratio > 1 and 0 < density < 0.5 for _, ratio, density in found)


@stage.scenario(3)
def with_a_server(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    servers = tg.ParameterServers(1)
    if servers.is_server:
        servers.serve()
        return found
    for method in METHODS:
        run = Run(method, rank, servers, servers.workers)
        run.train(range(STEPS))
        found[method] = run.digest
        run.handle.detach()
    servers.close()
    return found


@stage.scenario(3)
def many_buckets_to_a_server(rank: int, world_size: int) -> str:
    """So many that the next one is sent while the sum of the one before is still awaited."""
    servers = tg.ParameterServers(1)
    if servers.is_server:
        servers.serve()
        return ""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(24, 24) for _ in range(20)), nn.Linear(24, 10))
    model = DistributedDataParallel(net, process_group=servers.workers, bucket_cap_mb=0.004)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    handle = tg.attach(model, "sdagc:threshold=2", exchange=servers, optimizer=optimizer)
    for step in range(6):
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(model, rank, step))
        optimizer.step()
    handle.detach()
    servers.close()
    return digest(parameters(model))


def test_buckets_in_flight_do_not_mix_up_lengths_and_messages() -> None:
    first, second, _ = stage.play(many_buckets_to_a_server, 3)
    assert first == second


@pytest.mark.parametrize("method", METHODS)
def test_a_parameter_server_gives_the_bits_of_the_other_exchanges(method: str) -> None:
    served = [rank[method] for rank in stage.play(with_a_server, 3)[:2]]
    assert same(served)
    assert served[0] == stage.play(by_exchange, 2)[0][f"{method} all-gather"][0]


@pytest.mark.parametrize("method", METHODS)
def test_virtual_workers_train_the_bits_of_real_ones(method: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    workers = tg.VirtualWorkers(model, method, 2, optimizer=optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(2):
            torch.autograd.backward(loss_of(model, rank, step))
            workers.take(rank)
        workers.average()
        optimizer.step()
    torch.set_num_threads(before)
    assert digest(parameters(model)) == stage.play(by_exchange, 2)[0][f"{method} all-gather"][0]


# Momentum


@stage.scenario(2)
def momentum_moves(rank: int, world_size: int) -> dict[str, Any]:
    run = Run("sdagc:threshold=2,compensation=masking", rank, nesterov=True)
    (group,) = run.optimizer.param_groups
    moved = group["momentum"], group["nesterov"], group["weight_decay"]
    run.train(range(4))
    untouched = [state for state in run.optimizer.state.values() if "momentum_buffer" in state]
    run.handle.drain()
    run.train(range(4, 5))
    run.handle.detach()
    back = group["momentum"], group["nesterov"], group["weight_decay"]
    buffers = [run.optimizer.state[p]["momentum_buffer"] for p in run.model.parameters()]
    run.train(range(5, 7))
    return {"moved": moved, "untouched": len(untouched), "back": back, "buffers": digest(buffers), "end": run.digest}


def test_momentum_moves_to_the_method_and_back() -> None:
    ranks = stage.play(momentum_moves, 2)
    for found in ranks:
        assert found["moved"] == (0.0, False, 0.0)
        assert found["untouched"] == 0
        assert found["back"] == (0.9, True, 1e-3)
    assert same([found["buffers"] for found in ranks])
    assert same([found["end"] for found in ranks])


@stage.scenario(2)
def sent_whole(rank: int, world_size: int) -> dict[str, Any]:
    """Without anything held back, a sparse method is plain momentum SGD."""
    found = {}
    for nesterov in (False, True):
        sparse = Run("sdagc:dense_below=1000000000,compensation=masking", rank, nesterov=nesterov)
        sparse.train(range(STEPS))
        plain = Run("fp32", rank, nesterov=nesterov)
        plain.train(range(STEPS))
        pairs = zip(sparse.model.parameters(), plain.model.parameters(), strict=True)
        found[nesterov] = max(float((a - b).detach().abs().max()) for a, b in pairs)
    return found


def test_momentum_and_weight_decay_act_as_in_the_optimizer() -> None:
    for found in stage.play(sent_whole, 2):
        assert found[False] < 1e-6
        assert found[True] < 1e-6


@stage.scenario(2)
def methods_change(rank: int, world_size: int) -> dict[str, Any]:
    run = Run("terngrad:error_feedback=true,dense_below=100", rank)
    run.train(range(3))
    run.handle.set_method("sdagc:threshold=2,compensation=masking")
    run.train(range(3, 6))
    held = run.handle.stats()["residual_bytes"]
    momentum = run.optimizer.param_groups[0]["momentum"]
    run.handle.set_method("terngrad:dense_below=100")
    back = run.optimizer.param_groups[0]["momentum"]
    run.train(range(6, 8))
    return {
        "end": run.digest, "held": held, "momentum": (momentum, back), "left": run.handle.stats()["residual_bytes"],
    }  # fmt: skip


def test_a_change_of_method_takes_momentum_and_residuals_along() -> None:
    ranks = stage.play(methods_change, 2)
    assert same([found["end"] for found in ranks])
    for found in ranks:
        assert found["held"] > 0
        assert found["left"] == 0
        assert found["momentum"] == (0.0, 0.9)


# Checkpoints


@stage.scenario(2)
def stopped(rank: int, world_size: int) -> dict[str, Any]:
    found = {}
    for method in RESUMED:
        run = Run(method, rank)
        run.train(range(4))
        checkpoint = run.save()
        run.train(range(4, STEPS))
        again = Run(method, rank)
        again.load(checkpoint)
        again.train(range(4, STEPS))
        states = [digest(each.handle.state_dict()["residuals"]) for each in (run, again)]
        found[method] = run.digest == again.digest, same(states)
    return found


@pytest.mark.parametrize("method", RESUMED)
def test_a_resumed_run_ends_with_the_same_bits(method: str) -> None:
    assert [found[method] for found in stage.play(stopped, 2)] == [(True, True)] * 2


@stage.scenario(2)
def resized(rank: int, world_size: int) -> dict[str, Any]:
    run = Run("sdagc:threshold=2,compensation=masking", rank)
    run.train(range(3))
    state = {**run.handle.state_dict(), "world_size": 7}
    refused = message_of(lambda: run.handle.load_state_dict(state))
    run.handle.load_state_dict(state, on_resize="reset")
    return {"refused": refused, "left": run.handle.stats()["residual_bytes"]}


def test_another_number_of_ranks_is_refused_unless_dropping_is_allowed() -> None:
    for found in stage.play(resized, 2):
        assert "on_resize='reset'" in found["refused"]
        assert found["left"] == 0


@stage.scenario(3)
def drained_and_resumed_by_fewer(rank: int, world_size: int) -> dict[str, Any]:
    """Three ranks drain and detach; two go on: with all sent whole, with momentum SGD, and with the method."""
    found: dict[str, Any] = {}
    two = torch.distributed.new_group([0, 1])
    for compensation in ("upfront", "sam", "masking"):
        run = Run(f"sdagc:threshold=2,compensation={compensation}", rank)
        run.train(range(4))
        run.handle.drain()
        run.train(range(4, 5))
        run.handle.detach()
        parts = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
        if rank == 2:
            continue
        ends = []
        for method in ("sdagc:dense_below=1000000000,compensation=masking", "fp32"):
            fewer = Run(method, rank, group=two)
            fewer.model.load_state_dict(parts["model"])
            fewer.optimizer.load_state_dict(copy.deepcopy(parts["optimizer"]))
            fewer.train(range(5, STEPS))
            fewer.handle.detach()
            ends.append(parameters(fewer.model))
        sparse = Run(f"sdagc:threshold=2,compensation={compensation}", rank, group=two)
        sparse.model.load_state_dict(parts["model"])
        sparse.optimizer.load_state_dict(copy.deepcopy(parts["optimizer"]))
        sparse.train(range(5, STEPS))
        sparse.handle.detach()
        states = parts["optimizer"]["state"].values()
        moved = max((float(state["momentum_buffer"].abs().max()) for state in states if state), default=0.0)
        found[compensation] = digest(parts["model"]), sparse.digest, distance(*ends), moved
    return found


def test_what_was_drained_and_detached_goes_on_with_another_number_of_ranks() -> None:
    first, second, _ = stage.play(drained_and_resumed_by_fewer, 3)
    for compensation, (stopped_at, end, difference, moved) in first.items():
        assert (stopped_at, end) == second[compensation][:2]
        assert difference < 1e-6
        assert (moved > 0) == (compensation != "upfront"), "what is left of momentum: of weight decay, and with sam all"


@stage.scenario(2)
def from_a_world_of_one(rank: int, world_size: int) -> dict[str, tuple[float, float]]:
    found = {}
    for compensation in ("upfront", "sam", "masking"):
        model = DistributedDataParallel(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
        handle = tg.attach(model, f"sdagc:compensation={compensation}", optimizer=optimizer)
        coder = handle._coder
        before = sum(float(held.sum()) for held in (*coder.residuals.values(), *coder.velocities.values()))
        alone = {"momentum": None, "world_size": 1, "rank": 0, "residuals": {}, "velocities": {}}
        handle.load_state_dict({**handle.state_dict(), **alone})
        after = sum(float(held.sum()) for held in (*coder.residuals.values(), *coder.velocities.values()))
        found[compensation] = before, after
    return found


def test_a_state_of_one_rank_leaves_the_optimizers_momentum_where_it_went() -> None:
    for found in stage.play(from_a_world_of_one, 2):
        for before, after in found.values():
            assert before == after > 0


# What is refused, and odd steps


@stage.scenario(2)
def refused(rank: int, world_size: int) -> dict[str, str]:
    model = DistributedDataParallel(Net())
    adam = torch.optim.Adam(model.parameters())
    damped = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1)
    endless = torch.optim.SGD(model.parameters(), lr=0.1, momentum=1.0)
    some = torch.optim.SGD(list(model.parameters())[:1], lr=0.1, momentum=0.9)
    nesterov = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    return {
        "none": message_of(lambda: tg.attach(model, "sdagc")),
        "adam": message_of(lambda: tg.attach(model, "sdagc", optimizer=adam)),
        "damped": message_of(lambda: tg.attach(model, "dgc", optimizer=damped)),
        "endless": message_of(lambda: tg.attach(model, "sdagc", optimizer=endless)),
        "some": message_of(lambda: tg.attach(model, "sdagc", optimizer=some)),
        "sam": message_of(lambda: tg.attach(model, "sdagc:compensation=sam", optimizer=nesterov)),
    }


def test_what_cannot_be_compensated_is_refused_with_a_way_out() -> None:
    for found in stage.play(refused, 2):
        assert "attach with optimizer=" in found["none"]
        assert "torch.optim.SGD only" in found["adam"]
        assert "compensation='none'" in found["adam"]
        assert "dampening=0.1" in found["damped"]
        assert "momentum=1.0" in found["endless"]
        assert "does not have" in found["some"]
        assert "pass compensation='upfront' or 'masking'" in found["sam"]


@stage.scenario(2)
def with_amp(rank: int, world_size: int) -> dict[str, Any]:
    """A scaler that doubles its scale every other step, and an overflow on one rank."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    handle = tg.attach(
        model, "sdagc:threshold=2,values=fp32,compensation=masking", optimizer=optimizer, grad_scaler=scaler
    )
    skipped = []
    for step in range(6):
        optimizer.zero_grad()
        loss = scaler.scale(loss_of(model, rank, step))
        torch.autograd.backward(loss * (float("inf") if step == 3 and rank == 1 else 1.0))
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < before)
    residuals = handle.state_dict()["residuals"].values()
    finite = all(bool(residual.isfinite().all()) for residual in residuals)
    return {"skipped": skipped, "finite": finite, "end": digest(parameters(model)), "scale": handle._coder.scale}


def test_amp_skips_a_step_that_is_void_on_one_rank_and_goes_on() -> None:
    ranks = stage.play(with_amp, 2)
    assert same([found["end"] for found in ranks])
    for found in ranks:
        assert found["skipped"] == [False, False, False, True, False, False]
        assert found["finite"]
        assert found["scale"] > 1
