"""What DistributedDataParallel can do, it can do with compressed gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import terngrad as tg

from .workloads import (
    METHODS,
    Net,
    Stage,
    attached,
    digest,
    distance,
    gradients,
    loss_of,
    parameters,
    same,
    step_once,
    train,
)

pytestmark = pytest.mark.distributed

stage = Stage()

FP32_ROUNDING = 1e-6  # a few roundings of single precision


# The average


@stage.scenario(2, 3, 4)
def first_averages(rank: int, world_size: int) -> dict[str, Any]:
    plain = step_once(attached(None)[0], rank, 0)
    found = {}
    for method in METHODS:
        for exchange in ("all-gather", "two-shot"):
            if "shared=false" in method and exchange == "two-shot":
                continue
            model, _ = attached(method, exchange=exchange)
            average = step_once(model, rank, 0)
            biases = {name: g for name, g in average.items() if name.endswith("bias")}
            found[method, exchange] = {
                "digest": digest(average),
                "distance": distance(average, plain),
                "distance of biases": distance(biases, {name: plain[name] for name in biases}),
                "signs": [bool((average[n] * plain[n]).sum() > 0) for n in plain],
            }
    return found


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_method_gives_all_ranks_the_same_average_bit_for_bit(world_size: int) -> None:
    found = stage.play(first_averages, world_size)
    for case in found[0]:
        assert same([ranks[case]["digest"] for ranks in found]), case


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_both_exchanges_give_the_same_average_bit_for_bit(world_size: int) -> None:
    found = stage.play(first_averages, world_size)[0]
    for method, exchange in found:
        assert found[method, exchange]["digest"] == found[method, "all-gather"]["digest"], method


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize(("method", "tolerance"), [("fp32", FP32_ROUNDING), ("fp16", 2**-10), ("bf16", 2**-7)])
def test_dense_average_is_the_mean_that_ddp_takes(world_size: int, method: str, tolerance: float) -> None:
    for ranks in stage.play(first_averages, world_size):
        assert ranks[method, "all-gather"]["distance"] < tolerance


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ternary_average_points_along_the_mean_and_small_parameters_get_the_mean_itself(world_size: int) -> None:
    for (method, _), result in stage.play(first_averages, world_size)[0].items():
        if method.startswith("terngrad"):
            assert result["distance of biases"] < FP32_ROUNDING, method
            assert all(result["signs"]), method
            assert result["distance"] > 0.1, f"{method} compressed nothing"


# Buckets


@stage.scenario(2)
def bucket_variants(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in ("fp32", "terngrad", "terngrad:error_feedback=true,block=512"):
        ends, rebuilt = [], []
        for options in (
            {},
            {"bucket_cap_mb": 0.02},
            {"bucket_cap_mb": 1e-6, "gradient_as_bucket_view": True},
            {"gradient_as_bucket_view": True},
        ):
            model, _ = attached(method, **options)
            train(model, rank, range(5))
            ends.append(digest(parameters(model)))
            log = model._get_ddp_logging_data()
            rebuilt.append((log["bucket_sizes"], log["rebuilt_bucket_sizes"]))
        found[method] = {"ends": ends, "rebuilt": rebuilt}
    return found


@pytest.mark.parametrize("method", ["fp32", "terngrad", "terngrad:error_feedback=true,block=512"])
def test_result_does_not_depend_on_how_ddp_cuts_and_rebuilds_its_buckets(method: str) -> None:
    found = stage.play(bucket_variants, 2)
    assert same([end for ranks in found for end in ranks[method]["ends"]])
    rebuilt = found[0][method]["rebuilt"]
    assert len({after for _, after in rebuilt}) >= 3, "the variants were meant to give different buckets"
    assert any(before != after for before, after in rebuilt), "no bucket was rebuilt"


# Accumulation


@stage.scenario(2)
def accumulation(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    model, handle = attached("fp32")
    plain, _ = attached(None)
    step_once(model, rank, 0)
    step_once(plain, rank, 0)
    before = handle.stats()["bytes_sent"]
    local = step_once(model, rank, 1, sync=False)
    found["hook was silent"] = handle.step == 1 and handle.stats()["bytes_sent"] == before
    found["local"] = digest(local)
    loss_of(model, rank, 2).backward()
    step_once(plain, rank, 1, sync=False)
    loss_of(plain, rank, 2).backward()
    found["steps"] = handle.step
    found["distance"] = distance(gradients(model), gradients(plain))
    found["average"] = digest(gradients(model))
    return found


def test_accumulation_without_sync_sends_nothing_and_the_next_pass_averages_the_sum() -> None:
    found = stage.play(accumulation, 2)
    for ranks in found:
        assert ranks["hook was silent"]
        assert ranks["steps"] == 2
        assert ranks["distance"] < FP32_ROUNDING
    assert not same([ranks["local"] for ranks in found])
    assert same([ranks["average"] for ranks in found])


# Graphs


class Branches(nn.Module):
    """Two branches that a forward pass may leave out, and one that it always does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.left = nn.Linear(24, 96)
        self.right = nn.Linear(24, 96)
        self.spare = nn.Linear(24, 96)
        self.last = nn.Linear(96, 10)
        self.go_left = True

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.right(x) + self.left(x) if self.go_left else self.right(x)
        return self.last(torch.tanh(hidden))


@stage.scenario(3)
def unused_parameters(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    reached: dict[str, dict[str, Tensor]] = {}
    for method in (None, "fp32", "terngrad", "terngrad:error_feedback=true"):
        net = Branches()
        net.go_left = rank != 0
        model, _ = attached(method, net, find_unused_parameters=True)
        train(model, rank, range(3))
        model.zero_grad()
        loss_of(model, rank, 3).backward()
        reached[str(method)] = gradients(model)
        found[str(method)] = {
            "names": sorted(gradients(model)),
            "gradients": digest(gradients(model)),
            "parameters": digest(parameters(model)),
        }
    found["distance"] = distance(reached["fp32"], reached["None"])
    return found


@pytest.mark.parametrize("method", ["fp32", "terngrad", "terngrad:error_feedback=true"])
def test_parameters_unused_on_some_ranks_are_averaged_and_those_unused_on_all_are_left_alone(method: str) -> None:
    found = stage.play(unused_parameters, 3)
    for ranks in found:
        assert ranks[method]["names"] == ranks["None"]["names"]
        assert "left.weight" in ranks[method]["names"]
        assert "spare.weight" not in ranks[method]["names"]
        assert ranks["distance"] < 1e-5
    assert same([ranks[method]["gradients"] for ranks in found])
    assert same([ranks[method]["parameters"] for ranks in found])


@stage.scenario(2)
def static_graphs(rank: int, world_size: int) -> dict[str, Any]:
    ends = {}
    for static in (False, True):
        model, handle = attached("terngrad", static_graph=static, bucket_cap_mb=0.02, verify_every=1)
        train(model, rank, range(4))
        ends[static] = (digest(parameters(model)), handle.step)
    return ends


@stage.scenario(2)
def static_mixed(rank: int, world_size: int) -> dict[str, Any]:
    """Two element types make two buckets in the first step, which DDP does not number in a static graph."""
    ends = {}
    for static in (False, True):
        spec = "terngrad:error_feedback=true,dense_below=1"
        model, handle = attached(spec, Mixed(torch.bfloat16), static_graph=static)
        train(model, rank, range(4))
        state = handle.state_dict()
        ends[static] = (digest(parameters(model)), digest(state["residuals"]), handle.step, state["step"])
    return ends


def test_a_static_graph_of_two_element_types_gives_the_same_training_and_residuals() -> None:
    found = stage.play(static_mixed, 2)
    assert same([(ends[static][0], ends[static][2:]) for ends in found for static in ends])
    assert all(ends[False][1] == ends[True][1] for ends in found)
    assert found[0][True][2] == 4


def test_a_static_graph_gives_the_same_training() -> None:
    found = stage.play(static_graphs, 2)
    assert same([end for ranks in found for end in ranks.values()])
    assert found[0][True][1] == 4


class Recomputing(Net):
    """Runs its first two layers again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        def hidden(x: Tensor) -> Tensor:
            return torch.tanh(self.middle(torch.tanh(self.first(x))))

        return self.last(checkpoint(hidden, x.requires_grad_(), use_reentrant=self.reentrant))


@stage.scenario(2)
def recomputation(rank: int, world_size: int) -> list[str]:
    models = [attached("terngrad", bucket_cap_mb=0.02)[0]]
    for reentrant in (False, True):
        for static in (False, True):
            net = Recomputing(reentrant)
            models.append(attached("terngrad", net, static_graph=static, bucket_cap_mb=0.02, verify_every=1)[0])
    for model in models:
        train(model, rank, range(3))
    return [digest(parameters(model)) for model in models]


def test_activation_checkpointing_gives_the_same_training() -> None:
    assert same([end for ranks in stage.play(recomputation, 2) for end in ranks])


@stage.scenario(2)
def two_models(rank: int, world_size: int) -> list[str]:
    models = [attached("terngrad", bucket_cap_mb=0.02, seed=seed)[0] for seed in (0, 1)]
    alone = [attached("terngrad", seed=seed)[0] for seed in (0, 1)]
    for step in range(3):
        for model in models:
            model.zero_grad()
        sum(loss_of(model, rank, step) for model in models).backward()  # type: ignore[union-attr]
        for model in alone:
            step_once(model, rank, step)
    return [digest(gradients(model)) for model in (*models, *alone)]


def test_two_models_in_one_backward_pass_do_not_disturb_each_other() -> None:
    for first, second, first_alone, second_alone in stage.play(two_models, 2):
        assert first == first_alone
        assert second == second_alone
        assert first != second


@stage.scenario(4)
def two_groups(rank: int, world_size: int) -> str:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model, _ = attached("terngrad", process_group=groups[rank // 2], verify_every=1)
    train(model, rank, range(3))
    return digest(parameters(model))


def test_models_on_subgroups_average_within_their_group() -> None:
    first, second, third, fourth = stage.play(two_groups, 4)
    assert first == second
    assert third == fourth
    assert first != third


@stage.scenario(3)
def in_different_groups(rank: int, world_size: int) -> list[str]:
    """One rank is in two groups more than another, and they still make one together; also after one is destroyed."""
    all_three, two = dist.new_group(), dist.new_group([0, 1])
    _, handle = attached("terngrad")
    handle.detach()
    dist.destroy_process_group(all_three)
    if rank == 1:
        dist.new_group([1], use_local_synchronization=True)
    ends = []
    for group in (None, two):
        if group is None or rank < 2:
            model, handle = attached("terngrad", process_group=group)
            train(model, rank, range(2))
            handle.detach()
            ends.append(digest(parameters(model)))
    return ends


def test_ranks_that_are_in_different_groups_can_attach() -> None:
    (all_0, two_0), (all_1, two_1), (all_2,) = stage.play(in_different_groups, 3)
    assert all_0 == all_1 == all_2
    assert two_0 == two_1 != all_0


@stage.scenario(3)
def uneven_inputs(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    reached = {}
    for name, method, verify_every in (
        ("plain", None, 0),
        ("fp32", "fp32", 0),
        ("terngrad", "terngrad", 0),
        ("verified", "terngrad", 1),
        ("feedback", "terngrad:error_feedback=true", 2),
    ):
        options = {} if method is None else {"verify_every": verify_every}
        model, handle = attached(method, bucket_cap_mb=0.02, **options)
        with model.join():
            train(model, rank, range(3 + 2 * rank))
        reached[name] = parameters(model)
        found[name] = (digest(parameters(model)), handle.step if handle else None)
    found["distance"] = distance(reached["fp32"], reached["plain"])
    return found


@pytest.mark.parametrize("name", ["fp32", "terngrad", "verified", "feedback"])
def test_ranks_with_fewer_inputs_join_and_all_end_equal(name: str) -> None:
    found = stage.play(uneven_inputs, 3)
    assert same([ranks[name] for ranks in found])
    assert found[0][name][1] == 7  # the steps of the rank with the most inputs


def test_joined_ranks_count_as_zero_gradients_as_in_ddp() -> None:
    for ranks in stage.play(uneven_inputs, 3):
        assert ranks["distance"] < 1e-5


def test_verification_changes_nothing_for_ranks_that_joined() -> None:
    for ranks in stage.play(uneven_inputs, 3):
        assert ranks["verified"] == ranks["terngrad"]


# Non-finite gradients


POISONED = "middle.weight"


def poison(model: nn.Module, rank: int, value: float) -> None:
    """One element of one parameter's gradient on the last rank becomes `value` in the next backward pass."""
    parameter = dict(model.named_parameters())[f"module.{POISONED}"]

    def spoil(gradient: Tensor) -> Tensor:
        removal.remove()
        gradient = gradient.clone()
        if rank == dist.get_world_size() - 1:
            gradient.view(-1)[11] = value
        return gradient

    removal = parameter.register_hook(spoil)


@stage.scenario(3)
def non_finite_steps(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in METHODS:
        model, handle = attached(method)
        train(model, rank, range(2))
        before = handle.state_dict()["residuals"]
        broken = {}
        for value in (float("inf"), float("-inf"), float("nan")):
            poison(model, rank, value)
            average = step_once(model, rank, 2)
            broken[value] = [name for name, g in average.items() if not bool(torch.isfinite(g).all())]
        after = handle.state_dict()["residuals"]
        average = step_once(model, rank, 3)
        found[method] = {
            "broken": list(broken.values()),
            "kept": POISONED not in before or bool(torch.equal(before[POISONED], after[POISONED])),
            "all kept": before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before),
            "had residuals": POISONED in before,
            "finite": all(bool(torch.isfinite(g).all()) for g in average.values()),
            "digest": digest(average),
        }
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_non_finite_gradient_on_one_rank_is_seen_by_all_in_that_parameter_only(method: str) -> None:
    for ranks in stage.play(non_finite_steps, 3):
        assert ranks[method]["broken"] == [[POISONED]] * 3


@pytest.mark.parametrize("method", METHODS)
def test_training_goes_on_after_a_non_finite_gradient(method: str) -> None:
    found = stage.play(non_finite_steps, 3)
    assert all(ranks[method]["finite"] for ranks in found)
    assert same([ranks[method]["digest"] for ranks in found])


def test_a_non_finite_gradient_leaves_its_residual_as_it_was() -> None:
    for ranks in stage.play(non_finite_steps, 3):
        assert ranks["terngrad:error_feedback=true"]["had residuals"]
        assert ranks["terngrad:error_feedback=true"]["kept"]


def test_a_step_with_a_non_finite_gradient_leaves_all_residuals_as_they_were() -> None:
    for ranks in stage.play(non_finite_steps, 3):
        assert ranks["terngrad:error_feedback=true"]["all kept"]


@stage.scenario(2)
def scaled_training(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in ("fp16", "terngrad", "terngrad:error_feedback=true"):
        model, _ = attached(method)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        scales, moved = [], []
        for step in range(4):
            before = digest(parameters(model))
            optimizer.zero_grad()
            if step == 2:
                poison(model, rank, float("inf"))
            scaler.scale(loss_of(model, rank, step)).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            moved.append(digest(parameters(model)) != before)
        found[method] = {"scales": scales, "moved": moved, "end": digest(parameters(model))}
    return found


@pytest.mark.parametrize("method", ["fp16", "terngrad", "terngrad:error_feedback=true"])
def test_grad_scaler_skips_the_step_and_halves_the_scale_on_all_ranks(method: str) -> None:
    found = stage.play(scaled_training, 2)
    for ranks in found:
        assert ranks[method]["scales"] == [64.0, 64.0, 32.0, 32.0]
        assert ranks[method]["moved"] == [True, True, False, True]
    assert same([ranks[method]["end"] for ranks in found])


# Compiled models


@stage.scenario(2)
def compiled_models(rank: int, world_size: int) -> dict[str, Any]:
    eager, _ = attached("terngrad")
    train(eager, rank, range(3))
    outside = torch.compile(DistributedDataParallel(Net()), backend="aot_eager")
    handle = tg.attach(outside, "terngrad")
    train(outside, rank, range(3))
    inside = DistributedDataParallel(torch.compile(Net(), backend="aot_eager"), bucket_cap_mb=0.02)
    tg.attach(inside, "terngrad")
    train(inside, rank, range(3))
    return {
        "distances": [distance(parameters(model), parameters(eager)) for model in (outside, inside)],
        "ends": [digest(parameters(model)) for model in (outside, inside)],
        "steps": handle.step,
    }


@stage.scenario(2)
def compiled_names(rank: int, world_size: int) -> dict[str, Any]:
    spec = "terngrad:error_feedback=true,dense_names=middle.*"
    model, handle = attached(spec, torch.compile(Net(), backend="aot_eager"))
    eager_model, eager = attached(spec)
    step_once(model, rank, 0)
    step_once(eager_model, rank, 0)
    eager.load_state_dict(handle.state_dict())
    return {"names": list(eager.state_dict()["residuals"])}


def test_a_compiled_models_parameters_go_by_the_names_of_the_bare_model() -> None:
    assert stage.play(compiled_names, 2) == [{"names": ["first.weight"]}] * 2


def test_compiled_models_train_as_eager_ones_whichever_way_they_are_wrapped() -> None:
    found = stage.play(compiled_models, 2)
    for ranks in found:
        # Compiled code may round differently, which turns single ternary draws; far less than one step's length.
        assert max(ranks["distances"]) < 0.05
        assert ranks["steps"] == 3
    assert same([ranks["ends"] for ranks in found])


# Element types and odd parameters


class Mixed(nn.Module):
    """A half-precision body with a single-precision head."""

    def __init__(self, body: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.body = nn.Linear(24, 96, dtype=body)
        self.head = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.to(self.body.weight.dtype))).float())


@stage.scenario(2, 4)
def element_types(rank: int, world_size: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for dtype in (torch.float16, torch.bfloat16):
        for kind in ("whole", "mixed"):
            reached: dict[str, dict[str, Tensor]] = {}
            for method in ("None", "fp32", "terngrad", "terngrad:error_feedback=true"):
                net = Mixed(dtype) if kind == "mixed" else Net().to(dtype)
                model, _ = attached(None if method == "None" else method, net)
                inputs_type = torch.float32 if kind == "mixed" else dtype
                for step in range(2):
                    model.zero_grad()
                    loss_of(model, rank, step, inputs_type).backward()
                reached[method] = gradients(model)
            found[str(dtype), kind] = {
                "distance": distance(reached["fp32"], reached["None"]),
                "types": {str(g.dtype) for g in reached["terngrad"].values()},
                "digests": [digest(average) for average in reached.values()],
                "finite": all(bool(torch.isfinite(g).all()) for average in reached.values() for g in average.values()),
            }
    return found


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("kind", ["whole", "mixed"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("torch.float16", 2e-3), ("torch.bfloat16", 2e-2)])
def test_half_precision_gradients_are_averaged_in_their_own_type(
    dtype: str, tolerance: float, kind: str, world_size: int
) -> None:
    found = [ranks[dtype, kind] for ranks in stage.play(element_types, world_size)]
    for ranks in found:
        assert ranks["distance"] < tolerance
        assert ranks["finite"]
        assert ranks["types"] == ({dtype} if kind == "whole" else {dtype, "torch.float32"})
    assert same([ranks["digests"] for ranks in found])


class Odd(nn.Module):
    """A sparse embedding, tied weights, a parameter of no element and one of a single element."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.words = nn.Embedding(50, 64, sparse=sparse)
        self.project = nn.Linear(64, 64, bias=False)
        self.again = nn.Linear(64, 64, bias=False)
        self.again.weight = self.project.weight
        self.nothing = nn.Parameter(torch.empty(0))
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        words = (x[:, :5].abs() * 20).long().clamp(max=49)
        hidden = self.again(torch.tanh(self.project(self.words(words).sum(dim=1))))
        return self.last(self.gain * hidden) + self.nothing.sum()


@stage.scenario(3)
def odd_parameters(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, sparse, cap in (("sparse", True, 25.0), ("dense", False, 25.0), ("each alone", True, 1e-6)):
        plain, _ = attached(None, Odd(sparse), bucket_cap_mb=cap)
        fp32, _ = attached("fp32", Odd(sparse), bucket_cap_mb=cap, verify_every=1)
        ternary, _ = attached("terngrad", Odd(sparse), bucket_cap_mb=cap, verify_every=1)
        for step in range(3):
            wanted = step_once(plain, rank, step)
            given = step_once(fp32, rank, step)
            average = step_once(ternary, rank, step)
        through = [n for n in average if n not in ("project.weight", *(() if sparse else ("words.weight",)))]
        found[name] = {
            "distance": distance(given, wanted),
            "distance of what is not ternary": distance(
                {n: average[n] for n in through}, {n: wanted[n] for n in through}
            ),
            "ternary": len(average["project.weight"].unique()),
            "is sparse": ternary.module.words.weight.grad.is_sparse,
            "names": sorted(average),
            "digest": digest(average),
            "nothing": list(average["nothing"].shape),
        }
    return found


@pytest.mark.parametrize("name", ["sparse", "dense", "each alone"])
def test_sparse_tied_empty_and_single_element_parameters_get_the_mean(name: str) -> None:
    found = [ranks[name] for ranks in stage.play(odd_parameters, 3)]
    for ranks in found:
        assert ranks["distance"] < FP32_ROUNDING
        assert ranks["distance of what is not ternary"] < FP32_ROUNDING
        assert ranks["ternary"] <= 7  # the sums of three ranks
        assert ranks["is sparse"] == (name != "dense")
        assert ranks["names"] == ["gain", "last.bias", "last.weight", "nothing", "project.weight", "words.weight"]
        assert ranks["nothing"] == [0]
    assert same([ranks["digest"] for ranks in found])


@stage.scenario(2)
def channels_last(rank: int, world_size: int) -> dict[str, Any]:
    def grads_of(method: str | None, layout: torch.memory_format, view: bool) -> dict[str, Tensor]:
        torch.manual_seed(13)
        net = nn.Sequential(nn.Conv2d(8, 32, 3), nn.Tanh(), nn.Conv2d(32, 16, 3)).to(memory_format=layout)
        model, _ = attached(method, net, gradient_as_bucket_view=view)
        images = torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(rank)).to(memory_format=layout)
        for _ in range(2):
            model.zero_grad()
            model(images).square().mean().backward()
        strides.append(net[0].weight.grad.is_contiguous(memory_format=layout))
        return gradients(model)

    strides: list[bool] = []
    plain = grads_of(None, torch.channels_last, False)
    found = [grads_of("fp32", torch.channels_last, view) for view in (False, True)]
    ternary = [grads_of("terngrad", torch.channels_last, view) for view in (False, True)]
    return {
        "distances": [distance(average, plain) for average in found],
        "strides kept": all(strides),
        "digests": [digest(average) for average in ternary],
        "cosine": float(torch.cosine_similarity(ternary[0]["0.weight"].flatten(), plain["0.weight"].flatten(), 0)),
    }


def test_gradients_in_channels_last_layout_keep_their_places() -> None:
    found = stage.play(channels_last, 2)
    for ranks in found:
        assert max(ranks["distances"]) < FP32_ROUNDING
        assert ranks["strides kept"]
        assert ranks["cosine"] > 0.3  # independent of layout it would be zero within 0.02
        assert ranks["digests"][0] == ranks["digests"][1]
    assert same([ranks["digests"] for ranks in found])


@stage.scenario(2)
def frozen_parameters(rank: int, world_size: int) -> dict[str, Any]:
    net = Net()
    net.middle.requires_grad_(False)
    model, _ = attached("terngrad", net, verify_every=1)
    train(model, rank, range(3))
    return {"names": sorted(gradients(model)), "end": digest(parameters(model))}


def test_frozen_parameters_are_left_out() -> None:
    found = stage.play(frozen_parameters, 2)
    assert found[0]["names"] == ["first.bias", "first.weight", "last.bias", "last.weight"]
    assert same(found)


@stage.scenario(2)
def ignored_parameters(rank: int, world_size: int) -> dict[str, Any]:
    net = Net()
    with torch.no_grad():
        net.middle.weight.add_(rank)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["middle.weight"])
    model, _ = attached("terngrad", net, verify_every=1)
    train(model, rank, range(3))
    found = parameters(model)
    return {"own": digest([found.pop("middle.weight")]), "shared": digest(found)}


def test_parameters_that_ddp_ignores_may_differ() -> None:
    found = stage.play(ignored_parameters, 2)
    assert same([ranks["shared"] for ranks in found])
    assert not same([ranks["own"] for ranks in found])


# One worker, and what must not be touched


@stage.scenario(1)
def alone(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    plain, _ = attached(None)
    for method in METHODS:
        model, handle = attached(method, verify_every=1)
        same_bits = [digest(step_once(model, 0, s)) == digest(step_once(plain, 0, s)) for s in range(3)]
        found[method] = {"same": all(same_bits), "stats": handle.stats(), "state": handle.state_dict()["step"]}
        handle.drain()
        handle.set_method("fp32")
        handle.detach()
        found[method]["after detach"] = digest(step_once(model, 0, 3)) == digest(step_once(plain, 0, 3))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_single_worker_keeps_its_gradients_and_still_counts_its_steps(method: str) -> None:
    found = stage.play(alone, 1)[0][method]
    assert found["same"]
    assert found["after detach"]
    assert found["stats"]["steps"] == found["state"] == 3
    assert found["stats"]["bytes_sent"] == found["stats"]["bytes_received"] == 0
    assert found["stats"]["ratio"] == 1.0


@stage.scenario(2)
def generator_states(rank: int, world_size: int) -> dict[str, bool]:
    found = {}
    for method in ("terngrad", "terngrad:error_feedback=true", "fp32"):
        model = DistributedDataParallel(Net())
        torch.manual_seed(17)
        np.random.seed(17)  # noqa: NPY002  the global one is what is watched
        before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
        handle = tg.attach(model, method, verify_every=1)
        train(model, rank, range(3))
        handle.state_dict()
        after = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
        found[method] = bool(torch.equal(before[0], after[0])) and before[1] == after[1]
    return found


def test_training_leaves_the_global_generators_alone() -> None:
    for ranks in stage.play(generator_states, 2):
        assert all(ranks.values()), ranks
