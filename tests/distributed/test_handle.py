"""What a handle promises: attaching, changing, draining, leaving, and numbers that are what the kernel counted."""

from __future__ import annotations

import copy
import os
import socket
import struct
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import terngrad as tg
from terngrad.codecs import Frame, Segment

from .workloads import Net, Stage, attached, digest, distance, gradients, message_of, parameters, same, step_once, train

pytestmark = pytest.mark.distributed

stage = Stage()

FP32_ROUNDING = 1e-6


# Attaching


@stage.scenario(2)
def refusals(rank: int, world_size: int) -> dict[str, str]:
    taken = DistributedDataParallel(Net())
    taken.register_comm_hook(None, allreduce_hook)
    twice, _ = attached("terngrad")
    free = DistributedDataParallel(Net())
    found = {
        "not DDP": message_of(lambda: tg.attach(Net())),
        "no module": message_of(lambda: tg.attach("model")),
        "taken": message_of(lambda: tg.attach(taken)),
        "twice": message_of(lambda: tg.attach(twice)),
        "method": message_of(lambda: tg.attach(free, "powersgd")),
        "option": message_of(lambda: tg.attach(free, "terngrad:clips=2")),
        "exchange": message_of(lambda: tg.attach(free, exchange="ring")),
        "verify_every": message_of(lambda: tg.attach(free, verify_every=-1)),
        "own scalers": message_of(lambda: tg.attach(free, tg.TernGrad(shared=False), exchange="two-shot")),
        "float64": message_of(lambda: tg.attach(DistributedDataParallel(Net().double()))),
        "complex": message_of(lambda: tg.attach(DistributedDataParallel(nn.Linear(4, 4, dtype=torch.cfloat)), "fp32")),
        "two models": message_of(lambda: tg.attach(nn.ModuleList([free, twice]))),
    }
    found["free"] = "attached" if tg.attach(free).attached else ""
    return found


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("not DDP", ["no DistributedDataParallel", "Net", "DistributedDataParallel(model)"]),
        ("no module", ["no DistributedDataParallel", "str"]),
        ("taken", ["taken", "allreduce_hook"]),
        ("twice", ["handle already", "set_method", "detach"]),
        ("method", ["'powersgd'", "terngrad", "fp32"]),
        ("option", ["'clips=2'", "clip=..."]),
        ("exchange", ["'ring'", "all-gather", "two-shot", "auto"]),
        ("verify_every", ["verify_every=-1", ">= 0"]),
        ("own scalers", ["'two-shot'", "shared=False", "all-gather"]),
        ("float64", ["first.weight is torch.float64", "terngrad", "torch.float32"]),
        ("complex", ["weight is torch.complex64", "fp32", "torch.float32"]),
        ("two models", ["2 DDP models", "attach each"]),
    ],
)
def test_attach_refuses_with_what_was_passed_and_what_to_do(case: str, words: list[str]) -> None:
    for ranks in stage.play(refusals, 2):
        for word in words:
            assert word in ranks[case]


def test_a_model_that_was_refused_can_still_be_attached() -> None:
    assert [ranks["free"] for ranks in stage.play(refusals, 2)] == ["attached"] * 2


@stage.scenario(2)
def ways_to_attach(rank: int, world_size: int) -> dict[str, str]:
    direct, _ = attached("terngrad", seed=3)
    train(direct, rank, range(3))

    trainer_model = DistributedDataParallel(Net())
    tg.attach(SimpleNamespace(strategy=SimpleNamespace(model=trainer_model)), "terngrad", seed=3)
    train(trainer_model, rank, range(3))

    module_holder = DistributedDataParallel(Net())
    tg.attach(nn.Sequential(module_holder), "terngrad", seed=3)
    train(module_holder, rank, range(3))

    net = Net()
    state, hook = tg.hook("terngrad", net, seed=3)
    registered = DistributedDataParallel(net)
    registered.register_comm_hook(state, hook)
    train(registered, rank, range(3))

    models = {"attach": direct, "strategy": trainer_model, "holder": module_holder, "hook": registered}
    return {name: digest(parameters(model)) for name, model in models.items()} | {"steps": str(state.handle.step)}


def test_wrappers_and_the_raw_hook_give_what_attach_gives() -> None:
    found = stage.play(ways_to_attach, 2)
    assert same([ranks[name] for ranks in found for name in ("attach", "strategy", "holder", "hook")])
    assert found[0]["steps"] == "3"


@stage.scenario(2)
def copies(rank: int, world_size: int) -> dict[str, str]:
    """A copy of an attached model, which DDP gives no hook, takes a handle of its own."""
    model, _ = attached("terngrad", seed=3)
    copied = copy.deepcopy(model)
    tg.attach(copied, "terngrad", seed=3)
    train(model, rank, range(3))
    train(copied, rank, range(3))
    return {"model": digest(parameters(model)), "copy": digest(parameters(copied))}


def test_an_attached_model_can_be_copied_and_the_copy_attached() -> None:
    for found in stage.play(copies, 2):
        assert found["model"] == found["copy"]


@stage.scenario(2)
def different_seeds(rank: int, world_size: int) -> list[str]:
    return [digest(step_once(attached("terngrad", seed=seed)[0], rank, 0)) for seed in (0, 0, 1)]


def test_the_seed_decides_the_draws() -> None:
    zero, again, one = stage.play(different_seeds, 2)[0]
    assert zero == again
    assert zero != one


# Detaching and changing


@stage.scenario(3)
def leaving(rank: int, world_size: int) -> dict[str, Any]:
    plain, _ = attached(None)
    model, handle = attached("terngrad")
    step_once(model, rank, 0)
    handle.detach()
    handle.detach()
    after = distance(step_once(model, rank, 1), step_once(plain, rank, 1))
    steps_after = handle.step
    second = tg.attach(model, "fp16")
    again = distance(step_once(model, rank, 2), step_once(plain, rank, 2))
    second.detach()
    third = tg.attach(model, "terngrad")
    fresh, _ = attached("terngrad")
    return {
        "after": after,
        "steps": (steps_after, handle.attached, second.step, third.attached),
        "again": again,
        "as fresh": digest(step_once(model, rank, 0)) == digest(step_once(fresh, rank, 0)),
    }


def test_detach_returns_to_plain_averaging_and_the_slot_can_be_taken_again() -> None:
    for ranks in stage.play(leaving, 3):
        assert ranks["after"] < FP32_ROUNDING
        assert ranks["steps"] == (1, False, 1, True)
        assert 1e-6 < ranks["again"] < 2**-10
        assert ranks["as fresh"]


@stage.scenario(3)
def changing(rank: int, world_size: int) -> dict[str, Any]:
    plain, _ = attached(None)
    model, handle = attached("terngrad")
    distances, digests, specs = [], [], []
    for step, method in enumerate(("terngrad", "fp32", tg.TernGrad(block=256), "bf16")):
        handle.set_method(method)
        average = step_once(model, rank, step)
        distances.append(distance(average, step_once(plain, rank, step)))
        digests.append(digest(average))
        specs.append(handle.method.spec)
    return {"distances": distances, "digests": digests, "specs": specs}


def test_the_method_can_change_between_steps() -> None:
    found = stage.play(changing, 3)
    for ranks in found:
        ternary, fp32, blocks, bf16 = ranks["distances"]
        assert ternary > 0.1
        assert fp32 < FP32_ROUNDING
        assert blocks > 0.1
        assert 1e-4 < bf16 < 2**-7
        assert ranks["specs"] == ["terngrad", "fp32", "terngrad:block=256", "bf16"]
    assert same([ranks["digests"] for ranks in found])


# Schedules


def is_exact(average: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return distance(average, wanted) < FP32_ROUNDING


@stage.scenario(2)
def schedules(rank: int, world_size: int) -> dict[str, list[bool]]:
    plain, _ = attached(None)
    wanted = [step_once(plain, rank, step) for step in range(6)]
    found = {}
    for spec in ("terngrad:warmup_steps=2", "terngrad:dense_every_steps=3"):
        model, _ = attached(spec)
        found[spec] = [is_exact(step_once(model, rank, step), wanted[step]) for step in range(6)]
    model, handle = attached("terngrad:dense_every_epochs=2")
    found["epochs"] = []
    for epoch in range(6):
        handle.set_epoch(epoch)
        found["epochs"].append(is_exact(step_once(model, rank, epoch), wanted[epoch]))
    return found


@pytest.mark.parametrize(
    ("case", "dense"),
    [
        ("terngrad:warmup_steps=2", [True, True, False, False, False, False]),
        ("terngrad:dense_every_steps=3", [True, False, False, True, False, False]),
        ("epochs", [True, False, True, False, True, False]),
    ],
)
def test_dense_steps_come_when_the_method_says(case: str, dense: list[bool]) -> None:
    assert [ranks[case] for ranks in stage.play(schedules, 2)] == [dense] * 2


@stage.scenario(2)
def dense_parameters(rank: int, world_size: int) -> dict[str, set[str]]:
    wanted = step_once(attached(None)[0], rank, 0)
    found = {}
    for option in ("dense_below=0", "dense_below=100", "dense_last_layer=true", "dense_names=first.*+*.bias"):
        spec = f"terngrad:{option}" if "below" in option else f"terngrad:dense_below=0,{option}"
        average = step_once(attached(spec)[0], rank, 0)
        found[option] = {name for name in wanted if is_exact({name: average[name]}, {name: wanted[name]})}
    return found


@pytest.mark.parametrize(
    ("option", "dense"),
    [
        ("dense_below=0", set()),
        ("dense_below=100", {"first.bias", "middle.bias", "last.bias"}),
        ("dense_last_layer=true", {"last.weight", "last.bias"}),
        ("dense_names=first.*+*.bias", {"first.weight", "first.bias", "middle.bias", "last.bias"}),
    ],
)
def test_the_parameters_that_the_method_names_stay_dense(option: str, dense: set[str]) -> None:
    assert [ranks[option] for ranks in stage.play(dense_parameters, 2)] == [dense] * 2


# Residuals


def accumulate(total: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, torch.zeros_like(value, dtype=torch.float64)) + value.double()


@stage.scenario(2, 4)
def draining(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, exchange in (("all-gather", "all-gather"), ("two-shot", "two-shot")):
        plain, _ = attached(None)
        model, handle = attached("terngrad:error_feedback=true", exchange=exchange)
        wanted: dict[str, Tensor] = {}
        sent: dict[str, Tensor] = {}
        held = []
        for step in range(6):
            if step == 5:
                found[f"{name} before"] = distance(sent, wanted)
                handle.drain()
            accumulate(wanted, step_once(plain, rank, step))
            accumulate(sent, step_once(model, rank, step))
            held.append(sorted(handle.state_dict()["residuals"]))
        found[name] = {
            "distance": distance(sent, wanted),
            "held": held,
            "bytes": handle.stats()["residual_bytes"],
            "next is ternary": distance(step_once(model, rank, 6), step_once(plain, rank, 6)) > 0.1,
        }
    return found


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("exchange", ["all-gather", "two-shot"])
def test_drain_empties_the_residuals_and_nothing_was_lost(world_size: int, exchange: str) -> None:
    for ranks in stage.play(draining, world_size):
        assert ranks[f"{exchange} before"] > 0.1
        assert ranks[exchange]["distance"] < 1e-5
        assert ranks[exchange]["held"] == [["first.weight", "middle.weight"]] * 5 + [[]]
        assert ranks[exchange]["bytes"] == 0
        assert ranks[exchange]["next is ternary"]


@stage.scenario(2)
def abandoned_feedback(rank: int, world_size: int) -> dict[str, Any]:
    found = {}
    for method in ("fp32", "terngrad"):
        model, handle = attached("terngrad:error_feedback=true")
        step_once(model, rank, 0)
        handle.set_method(method)
        held = [sorted(handle.state_dict()["residuals"])]
        step_once(model, rank, 1)
        held.append(sorted(handle.state_dict()["residuals"]))
        found[method] = {
            "held": held,
            "as fresh": digest(step_once(model, rank, 2)) == digest(_third_step(method, rank)),
        }
    return found


def _third_step(method: str, rank: int) -> dict[str, Tensor]:
    """The gradients of step 2 on a handle that never kept residuals."""
    model, _ = attached(method)
    return [step_once(model, rank, step) for step in range(3)][-1]


@pytest.mark.parametrize("method", ["fp32", "terngrad"])
def test_a_method_without_feedback_sends_the_residuals_once_and_keeps_none(method: str) -> None:
    for ranks in stage.play(abandoned_feedback, 2):
        assert ranks[method]["held"] == [["first.weight", "middle.weight"], []]
        assert ranks[method]["as fresh"]


# Statistics


KEYS = {
    "steps", "bytes_sent", "bytes_received", "dense_bytes", "ratio", "encode_s", "exchange_s", "decode_s", "density",
    "relative_error",
}  # fmt: skip


@stage.scenario(2, 3)
def statistics(rank: int, world_size: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for exchange in ("all-gather", "two-shot"):
        for spec in ("terngrad", "terngrad:codec=two-bit,block=512", "fp16"):
            net = Net()
            index = {id(p): i for i, p in enumerate(net.parameters())}
            state, hook = tg.hook(spec, net, exchange=exchange, measure_every=1)
            orders: list[list[int]] = []

            def watching(state, bucket, hook=hook, index=index, orders=orders):  # type: ignore[no-untyped-def]
                orders.append([index[id(p)] for p in bucket.parameters()])
                return hook(state, bucket)

            model = DistributedDataParallel(net)
            model.register_comm_hook(state, watching)
            for step in range(3):
                step_once(model, rank, step)
            found[spec, exchange] = {**state.handle.stats(per_parameter=True), "orders": orders}
    _, handle = attached("terngrad")
    found["new"] = handle.stats()
    _, handle = attached("terngrad", measure_every=0)
    found["unmeasured"] = handle.stats()
    return found


def message_bytes(spec: str, exchange: str, world_size: int, order: list[int]) -> int:
    """What one rank sends to one other for a bucket with Net's parameters in that order."""
    method = tg.from_spec(spec)
    numels = [p.numel() for p in Net().parameters()]
    ternary, dense = [], []
    source = 0
    for index in order:
        segment = Segment(index, source, numels[index])
        (ternary if spec != "fp16" and segment.numel >= 2048 else dense).append(segment)
        source += segment.numel
    frame = Frame(
        ternary,
        dense,
        codec=method.codec if isinstance(method, tg.TernGrad) else "base3",
        block=method.block if isinstance(method, tg.TernGrad) else 0,
        dense_type=torch.float16 if spec == "fp16" else torch.float32,
        num_shards=world_size if exchange == "two-shot" else 1,
        world_size=world_size,
    )
    return frame.scalers_nbytes + frame.nbytes + (frame.sum_nbytes if exchange == "two-shot" else 0)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("exchange", ["all-gather", "two-shot"])
@pytest.mark.parametrize("spec", ["terngrad", "terngrad:codec=two-bit,block=512", "fp16"])
def test_bytes_counted_are_the_bytes_that_the_frame_says(spec: str, exchange: str, world_size: int) -> None:
    for ranks in stage.play(statistics, world_size):
        found = ranks[spec, exchange]
        assert [sorted(order) for order in found["orders"]] == [[0, 1, 2, 3, 4, 5]] * 3  # one bucket a step
        wanted = sum(message_bytes(spec, exchange, world_size, order) for order in found["orders"])
        assert found["bytes_sent"] == found["bytes_received"] == (world_size - 1) * wanted


@pytest.mark.parametrize("world_size", [2, 3])
def test_stats_report_steps_bytes_seconds_and_losses(world_size: int) -> None:
    numel = sum(p.numel() for p in Net().parameters())
    for ranks in stage.play(statistics, world_size):
        stats = ranks["terngrad", "all-gather"]
        assert stats.keys() >= KEYS
        assert stats["steps"] == 3
        assert stats["dense_bytes"] == pytest.approx(3 * 2 * (world_size - 1) / world_size * 4 * numel, abs=1)
        assert stats["ratio"] == pytest.approx(stats["dense_bytes"] / stats["bytes_sent"], rel=1e-6)
        assert all(stats[name] > 0 for name in ("encode_s", "exchange_s", "decode_s"))
        assert 0 < stats["density"] < 1
        assert 0 < stats["relative_error"] < 10
        assert ranks["fp16", "all-gather"]["density"] is None
        assert ranks["fp16", "all-gather"]["relative_error"] is None


def test_stats_per_parameter_name_those_that_were_compressed() -> None:
    for ranks in stage.play(statistics, 2):
        stats = ranks["terngrad", "all-gather"]
        assert set(stats["parameters"]) == {"first.weight", "middle.weight"}
        assert {name: part["numel"] for name, part in stats["parameters"].items()} == {
            "first.weight": 24 * 96,
            "middle.weight": 96 * 96,
        }
        parts = stats["parameters"].values()
        elements = sum(part["numel"] for part in parts)
        assert stats["density"] == pytest.approx(sum(p["density"] * p["numel"] for p in parts) / elements)
        assert all(part["relative_error"] > 0 for part in parts)
        assert "parameters" not in ranks["new"]


def test_stats_of_a_new_handle_are_zero_and_unmeasured_ones_are_none() -> None:
    for ranks in stage.play(statistics, 2):
        for stats in (ranks["new"], ranks["unmeasured"]):
            assert stats["steps"] == stats["bytes_sent"] == stats["bytes_received"] == stats["dense_bytes"] == 0
            assert stats["ratio"] == 1.0
            assert stats["density"] is None
            assert stats["relative_error"] is None


# What the kernel counted

TCP_INFO_BYTES = 216  # of struct tcp_info up to tcpi_bytes_retrans, which Linux has since 4.19
RECEIVED_AT, SENT_AT, SENT_AGAIN_AT = 128, 200, 208


def socket_bytes() -> tuple[int, int]:
    """Bytes sent and received by all TCP sockets of this process, as the kernel counted them."""
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  a Path would open no fewer files and read no better
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                continue
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # a file that is closed by now: the one that lists this folder
            continue
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
                sent += struct.unpack_from("=Q", info, SENT_AT)[0] - struct.unpack_from("=Q", info, SENT_AGAIN_AT)[0]
                received += struct.unpack_from("=Q", info, RECEIVED_AT)[0]
    return sent, received


def kernel_counts_bytes() -> bool:
    if sys.platform != "linux":
        return False
    with socket.socket() as probe:
        return len(probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)) == TCP_INFO_BYTES


STEPS_ON_THE_WIRE = 3
GLOO_BYTES = 144  # of its own for each message: 96 there and 48 back
MOST_MESSAGES = 6  # to another rank in a step: with entropy codes, scalers, and twice beginnings and what is left
BARRIER_BYTES = 1_000  # of the barriers around it

WIRE_SPECS = (
    "terngrad", "terngrad:codec=entropy", "sdagc:threshold=1,compensation=none",
    "sdagc:threshold=4,compensation=none", "fp16", "fp32",
)  # fmt: skip


@stage.scenario(2, 4)
def wire_traffic(rank: int, world_size: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    if not kernel_counts_bytes():
        return found
    for spec in WIRE_SPECS:
        for exchange in ("all-gather", "two-shot"):
            torch.manual_seed(1)
            net = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 8))
            model, handle = attached(spec, net, exchange=exchange)
            inputs = torch.randn(4, 1000, generator=torch.Generator().manual_seed(rank))
            model(inputs).square().mean().backward()
            torch.distributed.barrier()
            counted, kernel = handle.stats(), socket_bytes()
            for _ in range(STEPS_ON_THE_WIRE):
                model(inputs).square().mean().backward()
            torch.distributed.barrier()
            counted_after, kernel_after = handle.stats(), socket_bytes()
            found[spec, exchange] = {
                "sent": (counted_after["bytes_sent"] - counted["bytes_sent"], kernel_after[0] - kernel[0]),
                "received": (counted_after["bytes_received"] - counted["bytes_received"], kernel_after[1] - kernel[1]),
            }
    return found


@pytest.mark.skipif(not kernel_counts_bytes(), reason="needs the byte counters of TCP_INFO, which Linux has since 4.19")
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("exchange", ["all-gather", "two-shot"])
@pytest.mark.parametrize("spec", WIRE_SPECS)
def test_bytes_counted_are_the_bytes_on_the_wire(spec: str, exchange: str, world_size: int) -> None:
    messages = STEPS_ON_THE_WIRE * (world_size - 1) * MOST_MESSAGES
    for ranks in stage.play(wire_traffic, world_size):
        for counted, on_the_wire in ranks[spec, exchange].values():
            assert counted > (1_000 if "threshold=4" in spec else 100_000)
            assert 0 <= on_the_wire - counted <= GLOO_BYTES * messages + BARRIER_BYTES


# The profiler


@stage.scenario(2)
def profiled(rank: int, world_size: int) -> dict[str, Any]:
    found = {}
    model, _ = attached("terngrad", exchange="two-shot")
    step_once(model, rank, 0)
    for name, config in (
        ("default", None),
        ("all threads", torch._C._profiler._ExperimentalConfig(profile_all_threads=True)),
    ):
        with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as run:
            step_once(model, rank, 1)
        found[name] = sorted({event.name for event in run.events() if event.name.startswith("terngrad::")})
    return found


def test_the_profiler_sees_encode_exchange_and_decode_when_it_profiles_all_threads() -> None:
    for ranks in stage.play(profiled, 2):
        assert ranks["all threads"] == ["terngrad::decode", "terngrad::encode", "terngrad::exchange"]


# Replicas that drift apart


@stage.scenario(4)
def divergence(rank: int, world_size: int) -> dict[str, Any]:
    model, handle = attached("terngrad", verify_every=1)
    train(model, rank, range(2))
    quiet, _ = attached("terngrad")
    for tampered in (model, quiet):
        if rank == 2:
            with torch.no_grad():
                tampered.module.middle.bias[3] += 1e-6
    step_once(quiet, rank, 2)
    errors = [message_of(lambda: step_once(model, rank, 2), tg.ReplicaDivergence) for _ in range(2)]
    handle.detach()
    healthy, _ = attached("terngrad", verify_every=1)
    train(healthy, rank, range(2))
    return {"errors": errors, "healthy": digest(parameters(healthy)), "untouched": digest(gradients(healthy))}


def test_replicas_that_differ_raise_on_all_ranks_and_name_the_parameter_and_the_rank() -> None:
    for rank, ranks in enumerate(stage.play(divergence, 4)):
        for error in ranks["errors"]:
            assert f"rank {rank}, step 2" in error
            assert "1 of 6 parameters" in error
            assert "middle.bias" in error
            assert "[0, 1, 3] / [2]" in error


def test_another_model_of_the_same_processes_trains_on_after_a_divergence() -> None:
    assert same([ranks["healthy"] for ranks in stage.play(divergence, 4)])


@stage.scenario(2)
def rare_verification(rank: int, world_size: int) -> list[bool]:
    model, _ = attached("terngrad", verify_every=3)
    raised = []
    for step in range(4):
        if step == 1 and rank == 1:
            with torch.no_grad():
                model.module.first.weight[0, 0] += 1
        try:
            step_once(model, rank, step)
            raised.append(False)
        except tg.ReplicaDivergence:
            raised.append(True)
    return raised


def test_replicas_are_compared_every_so_many_steps() -> None:
    assert stage.play(rare_verification, 2) == [[False, False, False, True]] * 2
