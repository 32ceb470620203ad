"""`attach(model, "auto")` with real processes: averages stay right while it changes its mind, and ranks agree."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import terngrad as tg
from distributed.workloads import Stage
from terngrad.ddp import pilot
from terngrad.lab import Lab

pytestmark = pytest.mark.distributed

stage = Stage()
FEATURES = 12


@contextmanager
def scripted(*names: str) -> Iterator[None]:
    """Has the pilot choose these, one after the other, whatever it has measured; the last one it stays with."""
    left = list(names)

    def choose_next(*_: object) -> tuple[str, bool]:
        return (left.pop(0), False) if len(left) > 1 else (left[0], True)

    with (
        mock.patch.multiple(pilot, SETTLING=1, FEWEST=1, MOST=1, choose_next=choose_next),
        mock.patch.object(pilot.Pilot, "_advise"),  # it would choose as well
    ):
        yield


def trained(
    rank: int, method: Any, steps: int, momentum: float = 0.0, **options: Any
) -> tuple[list[Tensor], tg.Handle, DistributedDataParallel]:
    """The parameters after every step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(FEATURES, 30), nn.Tanh(), nn.Linear(30, 3))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    handle = tg.attach(model, method, optimizer=optimizer, **options)
    generator = torch.Generator().manual_seed(rank)
    seen = []
    for _ in range(steps):
        inputs = torch.randn(8, FEATURES, generator=generator)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return seen, handle, model


@stage.scenario(2)
def changing_its_mind(rank: int, world_size: int) -> Any:
    candidates = ("terngrad", "fp16", "sdagc")
    with scripted("terngrad", "terngrad", "sdagc", "fp16", "ddp"):  # TernGrad is measured again
        seen, handle, _ = trained(
            rank, tg.Auto("sparse", candidates=candidates), 20, momentum=0.9, verify_every=1, measure_every=0
        )
    stats = handle.stats()
    return [(d.step, d.method, d.exchange) for d in handle.decisions], seen[-1].tolist(), stats, handle.method.spec


def test_replicas_stay_equal_whatever_it_changes_to() -> None:
    found = stage.play(changing_its_mind, 2)
    decisions, parameters, stats, method = found[0]
    assert [name for _, name, _ in decisions] == ["ddp", "terngrad", "sdagc", "fp16", "ddp"]
    assert decisions == found[1][0]
    assert parameters == found[1][1]
    assert stats["residual_bytes"] == 0  # what SDAGC held back has been sent
    assert stats["steps"] == 20
    assert method == "fp32"


@stage.scenario(2)
def from_sparse_to_plain(rank: int, world_size: int) -> Any:
    """One step by the lane, which sends what was held back, then DDP's own."""
    with scripted("sdagc", "ddp"):
        auto = tg.Auto("sparse", candidates=("sdagc",))
        seen, handle, _ = trained(rank, auto, 10, momentum=0.9, verify_every=1, measure_every=0)
    return seen[-1].tolist(), [d.method for d in handle.decisions], handle.stats()["residual_bytes"]


def test_what_was_held_back_is_sent_before_plain_ddp_goes_on() -> None:
    first, second = stage.play(from_sparse_to_plain, 2)
    assert first == second
    assert first[1:] == (["ddp", "sdagc", "ddp"], 0)


@stage.scenario(3)
def plain_all_along(rank: int, world_size: int) -> Any:
    with scripted("ddp"):
        auto, handle, _ = trained(rank, "auto", 6, measure_every=0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(FEATURES, 30), nn.Tanh(), nn.Linear(30, 3))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(6):
        model(torch.randn(8, FEATURES, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    plain = torch.cat([p.detach().flatten() for p in model.parameters()])
    return torch.equal(auto[-1], plain), handle.method.spec, handle.stats()["ratio"]


def test_plain_ddp_is_plain_ddp_bit_for_bit() -> None:
    for equal, method, ratio in stage.play(plain_all_along, 3):
        assert equal
        assert method == "fp32"
        assert ratio == pytest.approx(1)


@stage.scenario(2)
def pinning(rank: int, world_size: int) -> Any:
    with scripted("terngrad", "ddp", "terngrad", "ddp"):
        _, handle, model = trained(rank, "auto", 4, measure_every=0)
        handle.set_method("bf16")
        for _ in range(6):
            model(torch.ones(2, FEATURES)).sum().backward()
        first = [d.method for d in handle.decisions], handle.decisions[-1].reason
        handle.detach()
        _, other, model = trained(rank, "auto", 3, measure_every=0)
        other.pin()
        before = len(other.decisions)
        for _ in range(6):
            model(torch.ones(2, FEATURES)).sum().backward()
        return first, (len(other.decisions) - before, other.decisions[-1].reason)


def test_a_choice_can_be_pinned_and_read() -> None:
    for (methods, reason), (more, pinned) in stage.play(pinning, 2):
        assert methods[-1] == "bf16"
        assert methods.count("bf16") == 1
        assert reason == pinned == "pinned"
        assert more == 0


@stage.scenario(2)
def resuming(rank: int, world_size: int) -> Any:
    with scripted("sdagc"):
        auto = tg.Auto("sparse", candidates=("sdagc",))
        _, handle, _ = trained(rank, auto, 8, momentum=0.9, measure_every=0)
        saved = io.BytesIO()
        torch.save(handle.state_dict(), saved)
        saved.seek(0)
        _, other, _ = trained(rank, auto, 0, momentum=0.9, measure_every=0)
        other.load_state_dict(torch.load(saved))
        one, two = handle.state_dict(), other.state_dict()
        names = [name for name, held in one["residuals"].items() if torch.equal(held, two["residuals"][name])]
        kept = {key: (one[key], two[key]) for key in ("method", "step")}
        return kept, names, [d.reason for d in other.decisions]


def test_a_saved_choice_is_taken_up_again_with_what_was_held_back() -> None:
    for kept, names, reasons in stage.play(resuming, 2):
        assert kept == {"method": ("sdagc",) * 2, "step": (8, 8)}
        assert len(names) == 4  # of all parameters
        assert reasons[-1] == "as it was saved"


@stage.scenario(2)
def refusing(rank: int, world_size: int) -> Any:
    found = []
    for method, options in (
        (tg.Auto("sparse", candidates=("sdagc",)), {"optimizer": None}),  # there is no momentum to take over
        ("auto:profile=/nowhere/doctor.json", {}),
        (tg.Auto("lossless" if rank else "unbiased"), {}),
        ("auto", {"exchange": "ring"}),
    ):
        model = DistributedDataParallel(nn.Linear(FEATURES, 3))
        text = io.StringIO()
        handler = logging.StreamHandler(text)
        logging.getLogger("terngrad.auto").addHandler(handler)
        logging.getLogger("terngrad.auto").setLevel(logging.INFO)
        try:
            handle = tg.attach(model, method, **options)
            found.append(text.getvalue() + handle.decisions[-1].method)
        except tg.ConfigurationError as error:
            found.append(str(error))
        logging.getLogger("terngrad.auto").removeHandler(handler)
    return found


def test_what_cannot_be_is_said_on_all_ranks() -> None:
    for without, nowhere, differing, ring in stage.play(refusing, 2):
        assert "sdagc is no candidate" in without
        assert "attach with optimizer=" in without
        assert without.endswith("ddp")
        assert "/nowhere/doctor.json" in nowhere
        assert "ranks differ in auto" in differing
        assert "exchange='ring'" in ring


@stage.scenario(2)
def failing(rank: int, world_size: int) -> Any:
    """What goes wrong while it decides is raised on every later pass as well, like all that goes wrong."""
    found = []
    with scripted("terngrad"), mock.patch.object(pilot.Pilot, "_look", side_effect=tg.ExchangeError("a peer is gone")):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(FEATURES, 3))
        handle = tg.attach(model, "auto")
        for _ in range(2):
            with pytest.raises(tg.ExchangeError) as caught:
                model(torch.ones(2, FEATURES)).sum().backward()
            found.append(str(caught.value))
    handle.detach()
    return found


def test_what_fails_while_it_decides_stays_failed() -> None:
    for found in stage.play(failing, 2):
        assert found == ["a peer is gone"] * 2


@stage.scenario(2)
def set_to(rank: int, world_size: int) -> Any:
    model = DistributedDataParallel(nn.Linear(FEATURES, 3))
    handle = tg.attach(model, "fp32")
    handle.set_method("terngrad" if rank else "terngrad:codec=base3")  # the same in other words
    try:
        handle.set_method("auto")
    except tg.ConfigurationError as error:
        return handle.method.spec, str(error)


def test_auto_is_no_method_to_set() -> None:
    for method, refusal in stage.play(set_to, 2):
        assert method == "terngrad"
        assert "attach(model, 'auto')" in refusal


@stage.scenario(1)
def alone(rank: int, world_size: int) -> Any:
    seen, handle, _ = trained(rank, "auto", 3)
    return len(seen), handle.decisions, handle.method.spec


def test_one_rank_has_nothing_to_choose() -> None:
    ((steps, decisions, method),) = stage.play(alone, 1)
    assert (steps, decisions, method) == (3, (), "fp32")


def test_over_a_slow_link_a_training_leaves_plain_ddp(possible: None, tmp_path: Path) -> None:
    """In fp32 the gradient of digits takes several times as long there as everything else, in codes a tenth of that."""
    run = tmp_path / "run"
    command = [
        sys.executable, "-m", "terngrad", "train", "digits", "--method", "auto", "--steps", "30", "--eval-every", "0",
        "--checkpoint-every", "0", "--measure-every", "0", "--out", str(run),
    ]  # fmt: skip
    with Lab(2, "100mbit") as lab:
        processes = [
            lab.start(host, command, env={**os.environ, **lab.environment(host), "OMP_NUM_THREADS": "1"})
            for host in range(2)
        ]
        try:
            assert [process.wait(timeout=120) for process in processes] == [0, 0]
        finally:
            for process in processes:
                process.kill()
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    chosen = [event["method"] for event in events if event["event"] == "decision"]
    assert chosen[0] == "ddp"
    assert chosen[1].startswith("terngrad")
