"""A run that was stopped and resumed ends with the bits of one that was not."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

import terngrad as tg
from terngrad.ddp.saving import FORMAT

from .workloads import Stage, attached, digest, message_of, parameters, step_once, train

pytestmark = pytest.mark.distributed

stage = Stage()

STEPS = 12
METHODS = (
    "fp16",
    "terngrad",
    "terngrad:error_feedback=true",
    "terngrad:error_feedback=true,warmup_steps=2,dense_every_steps=5",
)


def save(model: Any, optimizer: torch.optim.Optimizer, handle: tg.Handle) -> bytes:
    """A checkpoint of this rank."""
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "handle": handle.state_dict()}, file)
    return file.getvalue()


def resume(checkpoint: bytes, rank: int, method: str, last: int, **options: Any) -> tuple[Any, tg.Handle]:
    """A new model that continues a checkpoint up to step `last`."""
    state = torch.load(io.BytesIO(checkpoint), weights_only=True)
    model, handle = attached(method, **options)
    model.load_state_dict(state["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer.load_state_dict(state["optimizer"])
    handle.load_state_dict(state["handle"])
    train(model, rank, range(handle.step, last), optimizer)
    return model, handle


@stage.scenario(2, 3)
def stopped_everywhere(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in METHODS:
        model, handle = attached(method)
        optimizer = None
        checkpoints = []
        for step in range(STEPS):
            optimizer = train(model, rank, [step], optimizer)
            checkpoints.append(save(model, optimizer, handle))
        ends = []
        for k in range(1, STEPS):
            # The first buckets of the resumed run are DDP's first guess again, and here of another size too.
            resumed, its_handle = resume(checkpoints[k - 1], rank, method, STEPS, bucket_cap_mb=0.02)
            ends.append((digest(parameters(resumed)), digest(its_handle.state_dict()["residuals"]), its_handle.step))
            its_handle.detach()
        straight = (digest(parameters(model)), digest(handle.state_dict()["residuals"]), handle.step)
        found[method] = {"straight": straight, "ends": ends, "residuals": len(handle.state_dict()["residuals"])}
    return found


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_stopped_after_any_step_ends_with_the_same_bits(method: str, world_size: int) -> None:
    found = [ranks[method] for ranks in stage.play(stopped_everywhere, world_size)]
    for ranks in found:
        assert ranks["ends"] == [ranks["straight"]] * (STEPS - 1)
        assert ranks["residuals"] == (2 if "error_feedback" in method else 0)
    assert len({ranks["straight"][0] for ranks in found}) == 1


@stage.scenario(2)
def what_counts(rank: int, world_size: int) -> dict[str, Any]:
    model, handle = attached("terngrad:error_feedback=true", seed=4)
    optimizer = train(model, rank, range(3))
    checkpoint = save(model, optimizer, handle)
    state = handle.state_dict()
    held = digest(state["residuals"])
    handle.drain()
    drained = save(model, optimizer, handle)
    train(model, rank, [3], optimizer)
    unchanged = digest(state["residuals"]) == held
    after_drain = digest(parameters(model))
    train(model, rank, range(4, 6), optimizer)
    resumed, its_handle = resume(drained, rank, "terngrad:error_feedback=true", 4, seed=0)
    held_after_drain = sorted(its_handle.state_dict()["residuals"])
    whole, _ = resume(drained, rank, "terngrad:error_feedback=true", 6, seed=0)

    loaded = torch.load(io.BytesIO(checkpoint), weights_only=True)
    forgetful, _ = attached("terngrad:error_feedback=true", seed=4)
    forgetful.load_state_dict(loaded["model"])
    other = torch.optim.SGD(forgetful.parameters(), lr=0.05, momentum=0.9)
    other.load_state_dict(loaded["optimizer"])
    train(forgetful, rank, range(3, 6), other)
    remembering, _ = resume(checkpoint, rank, "terngrad:error_feedback=true", 6)
    return {
        "unchanged": unchanged,
        "drained": (digest(parameters(resumed)) == after_drain, held_after_drain),
        "seeded": digest(parameters(whole)) == digest(parameters(model)),
        "forgetful differs": digest(parameters(forgetful)) != digest(parameters(remembering)),
    }


def test_a_saved_state_does_not_change_with_the_handle() -> None:
    assert all(ranks["unchanged"] for ranks in stage.play(what_counts, 2))


def test_a_drain_that_was_asked_for_survives_the_checkpoint() -> None:
    assert [ranks["drained"] for ranks in stage.play(what_counts, 2)] == [(True, [])] * 2


def test_the_seed_survives_the_checkpoint() -> None:
    assert all(ranks["seeded"] for ranks in stage.play(what_counts, 2))


def test_without_the_handles_state_a_resumed_run_is_another_one() -> None:
    assert all(ranks["forgetful differs"] for ranks in stage.play(what_counts, 2))


# Refusals


@stage.scenario(2)
def refusals(rank: int, world_size: int) -> dict[str, Any]:
    feedback, handle = attached("terngrad:error_feedback=true")
    step_once(feedback, rank, 0)
    state = handle.state_dict()
    _, other = attached("terngrad")
    _, same_method = attached("terngrad:error_feedback=true")
    elsewhere = {**state, "rank": 1 - rank}
    wider = {**state, "world_size": 4}
    renamed = {**state, "residuals": {"encoder.weight": state["residuals"]["first.weight"]}}
    reshaped = {**state, "residuals": {"first.weight": state["residuals"]["first.weight"][:-1]}}
    found = {
        "method": message_of(lambda: other.load_state_dict(state)),
        "rank": message_of(lambda: same_method.load_state_dict(elsewhere)),
        "rank 0's on all": message_of(lambda: same_method.load_state_dict({**state, "rank": 0})),
        "world size": message_of(lambda: same_method.load_state_dict(wider)),
        "name": message_of(lambda: same_method.load_state_dict(renamed)),
        "size": message_of(lambda: same_method.load_state_dict(reshaped)),
        "format": message_of(lambda: same_method.load_state_dict({**state, "format": 99})),
        "steps": message_of(lambda: same_method.load_state_dict({**state, "step": 5 + rank})),
    }
    _, without = attached("terngrad")
    step_once(_, rank, 0)
    moved = {**without.state_dict(), "world_size": 8, "rank": 7}
    without.load_state_dict(moved)
    found["moved"] = str(without.step)
    return found


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("method", ["'terngrad:error_feedback=true'", "'terngrad'", "set_method"]),
        ("rank", ["rank is", "this handle has", "every rank loads"]),
        ("rank 0's on all", ["rank 0: usable", "rank 1: rank is 0", "every rank loads", "one that it can use"]),
        ("world size", ["world_size is 4", "this handle has 2", "drain"]),
        ("name", ["encoder.weight", "does not have"]),
        ("size", ["first.weight", "2303", "2304"]),
        ("format", ["format is 99", f"this handle has {FORMAT}"]),
        ("steps", ["ranks differ in step", "rank 0: 5", "rank 1: 6"]),
    ],
)
def test_a_state_that_cannot_be_continued_is_refused(case: str, words: list[str]) -> None:
    for ranks in stage.play(refusals, 2):
        for word in words:
            assert word in ranks[case]


def test_a_state_without_residuals_fits_any_number_of_ranks() -> None:
    assert [ranks["moved"] for ranks in stage.play(refusals, 2)] == ["1", "1"]
