"""Virtual workers get the averages that as many processes get."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import terngrad as tg

from .harness import run_ranks, values
from .workloads import Net, attached, digest, loss_of, parameters, same, train

STEPS = 6
METHODS = (
    "terngrad",
    "terngrad:codec=two-bit,block=64",
    "terngrad:error_feedback=true,dense_every_steps=3",
    "terngrad:shared=false",
    "fp16",
    "fp32",
)


def real(rank: int, world_size: int) -> dict[str, Any]:
    found = {}
    for method in METHODS:
        model, handle = attached(method, seed=9, measure_every=2)
        train(model, rank, range(STEPS))
        stats = handle.stats()
        found[method] = digest(parameters(model)), stats["bytes_sent"], stats["density"], stats["relative_error"]
    return found


def virtual_step(workers: tg.VirtualWorkers, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    for rank in range(workers.num_workers):
        loss_of(model, rank, step).backward()
        workers.take(rank)
    workers.average()
    optimizer.step()
    optimizer.zero_grad()


def start(method: str, num_workers: int) -> tuple[nn.Module, tg.VirtualWorkers, torch.optim.Optimizer]:
    model = Net()
    workers = tg.VirtualWorkers(model, method, num_workers, seed=9, measure_every=2)
    return model, workers, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """As in the processes: sums of several threads are rounded otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [2, 3])
def test_virtual_workers_train_the_bits_of_real_ones_and_count_their_bytes(world_size: int) -> None:
    by_rank = values(run_ranks(world_size, real))
    for method in METHODS:
        assert same([found[method][0] for found in by_rank])
        model, workers, optimizer = start(method, world_size)
        for step in range(STEPS):
            virtual_step(workers, model, optimizer, step)
        stats = workers.stats()
        wanted = by_rank[0][method]
        assert digest(parameters(model)) == wanted[0], method
        # The processes have another message for each bucket: DDP's first bucket is one of its own.
        assert stats["bytes_sent"] == pytest.approx(wanted[1], rel=0.05)
        assert (stats["density"], stats["relative_error"]) == pytest.approx(wanted[2:])


def test_a_resumed_run_continues_exactly() -> None:
    method = "terngrad:error_feedback=true"
    model, workers, optimizer = start(method, 4)
    for step in range(STEPS):
        virtual_step(workers, model, optimizer, step)
        if step == 2:
            saved = workers.state_dict(), parameters(model), optimizer.state_dict()
            saved = torch.load(_saved(saved), weights_only=False)
    again, more, other = start(method, 4)
    again.load_state_dict(saved[1])
    more.load_state_dict(saved[0])
    other.load_state_dict(saved[2])
    for step in range(3, STEPS):
        virtual_step(more, again, other, step)
    assert digest(parameters(again)) == digest(parameters(model))
    assert more.stats()["bytes_sent"] == workers.stats()["bytes_sent"]
    with pytest.raises(tg.ConfigurationError, match="num_workers is 4, these virtual workers have 3"):
        tg.VirtualWorkers(Net(), method, 3).load_state_dict(saved[0])


def _saved(state: Any) -> Any:
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_a_gradient_that_is_not_finite_reaches_the_average_and_leaves_residuals() -> None:
    model, workers, optimizer = start("terngrad:error_feedback=true", 3)
    virtual_step(workers, model, optimizer, 0)
    before = workers.state_dict()["residuals"]
    for rank in range(3):
        loss_of(model, rank, 1).backward()
        workers.take(rank)
    workers.gradients(1)["middle.weight"][0, 0] = float("nan")
    workers.average()
    assert not torch.isfinite(model.middle.weight.grad).any()
    assert torch.isfinite(model.first.weight.grad).all()
    after = workers.state_dict()["residuals"]
    assert all(torch.equal(a[i], b[i]) for a, b in zip(before, after, strict=True) for i in a)


def test_one_worker_keeps_its_own_gradient_as_a_world_of_one_does() -> None:
    model, workers, _ = start("terngrad", 1)
    loss_of(model, 0, 0).backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    workers.take(0)
    workers.average()
    assert all(torch.equal(p.grad, wanted[name]) for name, p in model.named_parameters())
    assert workers.stats()["bytes_sent"] == 0


def test_rows_can_be_written_directly_and_measurements_are_taken_once() -> None:
    _, workers, _ = start("terngrad", 2)
    torch.manual_seed(0)
    workers.rows.copy_(torch.randn_like(workers.rows))
    workers.average()
    found = workers.take_measurements()
    assert set(found) == {"first.weight", "middle.weight"}
    for entry in found.values():
        assert 0.2 < entry["density"] < 0.45  # a Gaussian clipped at 2.5 sigma: 0.32
        assert entry["scaler"] == pytest.approx(2.5, rel=0.1)
    assert workers.take_measurements() == {}


def test_own_scalers_count_the_bytes_of_an_all_gather() -> None:
    """Eight workers would be cheaper by two-shot, which cannot carry them."""
    counted = []
    for exchange in ("auto", "all-gather"):
        workers = tg.VirtualWorkers(nn.Linear(512, 512), "terngrad:shared=false", 8, exchange=exchange)
        workers.average()
        counted.append(workers.stats()["bytes_sent"])
    assert counted[0] == counted[1]


def test_bad_settings_are_refused_in_words() -> None:
    with pytest.raises(tg.ConfigurationError, match="num_workers=0"):
        tg.VirtualWorkers(Net(), "terngrad", 0)
    with pytest.raises(tg.ConfigurationError, match="there is auto, all-gather, two-shot"):
        tg.VirtualWorkers(Net(), "terngrad", 2, exchange="ring")
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half())
    with pytest.raises(tg.ConfigurationError, match="one type"):
        tg.VirtualWorkers(mixed, "terngrad", 2)
