"""The average is the same on every rank, bit for bit, however it was bucketed, packed, exchanged and computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

import terngrad as tg
from distributed.harness import run_ranks, values
from distributed.odd_model import FEW_SIZES, ODD_SIZES, TERNARY, Setting, Trace, run
from distributed.shaken import shaken_runs

pytestmark = pytest.mark.distributed

BASE3, TWO_BIT = TERNARY, replace(TERNARY, codec="two-bit")


def _traces(world_size: int, settings: list[Setting]) -> list[Trace]:
    """The trace of each setting, after checking that every rank has the same one."""
    by_rank = values(run_ranks(world_size, run, settings, deadline_s=280))
    for index, setting in enumerate(settings):
        checksums = [traces[index].checksums for traces in by_rank]
        assert len(checksums[0]) == setting.steps
        for step in range(setting.steps):
            assert len({own[step] for own in checksums}) == 1, f"replicas differ after step {step} of {setting}"
        assert len(set(checksums[0])) == setting.steps, f"a step left the parameters as they were: {setting}"
    return by_rank[0]


def _assert_all_equal(traces: list[Trace], settings: list[Setting]) -> None:
    for trace, setting in zip(traces[1:], settings[1:], strict=True):
        assert trace.checksums == traces[0].checksums, f"{setting} trains otherwise than {settings[0]}"


def test_the_model_has_a_hundred_parameters_of_both_kinds() -> None:
    dense = [size for size in ODD_SIZES if size < TERNARY.dense_below]
    assert len(ODD_SIZES) == 100
    assert 10 <= len(dense) <= 90


def test_200_steps_leave_4_ranks_identical_after_every_step_whatever_the_bucketing_and_exchange() -> None:
    settings = [
        Setting(BASE3, "auto", 0.1),
        Setting(BASE3, "all-gather", 1),
        Setting(TWO_BIT, "two-shot", 25),
    ]
    traces = _traces(4, settings)
    assert traces[0].num_buckets > traces[1].num_buckets > traces[2].num_buckets == 1
    _assert_all_equal(traces, settings)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_bucketing_exchange_and_codec_trains_the_same_bits(world_size: int) -> None:
    settings = [
        Setting(method, exchange, cap, steps=6)
        for method in (BASE3, TWO_BIT)
        for exchange in ("auto", "all-gather", "two-shot")
        for cap in (0.1, 1, 25)
    ]
    _assert_all_equal(_traces(world_size, settings), settings)


@pytest.mark.parametrize("codec", ["base3", "entropy"])
def test_parts_of_large_buckets_train_the_same_bits(codec: str) -> None:
    method = replace(TERNARY, codec=codec)
    settings = [
        Setting(method, exchange, cap, steps=6, part_elements=part)
        for exchange in ("all-gather", "auto")
        for cap in (0.1, 25)
        for part in (1 << 23, 20_000, 999)
    ]
    _assert_all_equal(_traces(2, settings), settings)


def test_every_backend_and_number_of_threads_trains_the_same_bits() -> None:
    settings = [
        Setting(BASE3, exchange, 1, steps=5, backend=backend, threads=threads)
        for exchange in ("all-gather", "two-shot")
        for backend in tg.backends()
        for threads in ((1,) if backend == "reference" else (1, 2))
    ]
    _assert_all_equal(_traces(3, settings), settings)


@pytest.mark.parametrize(
    "method",
    [
        replace(TERNARY, block=64),
        replace(TERNARY, block=512, sigma="std", clip=0.0),
        replace(TERNARY, error_feedback=True),
        replace(TERNARY, dense_every_steps=3, warmup_steps=2, dense_names=("weights.9*",)),
        tg.Dense("fp32"),
        tg.Dense("fp16"),
        tg.Dense("bf16"),
    ],
    ids=lambda method: method.spec,
)
def test_every_method_trains_the_same_bits_whatever_the_bucketing_and_exchange(method: tg.Method) -> None:
    settings = [Setting(method, exchange, cap, steps=6) for exchange in ("all-gather", "two-shot") for cap in (0.1, 25)]
    _assert_all_equal(_traces(3, settings), settings)


def test_own_scalers_leave_replicas_identical_whatever_the_bucketing() -> None:
    methods = [replace(TERNARY, shared=False, codec=codec) for codec in ("base3", "two-bit")]
    settings = [Setting(method, "all-gather", cap, steps=6) for method in methods for cap in (0.1, 25)]
    _assert_all_equal(_traces(4, settings), settings)


def test_another_seed_trains_other_bits() -> None:
    """What the equalities above rest on: a checksum that sees a change of the draws."""
    first, second = _traces(2, [Setting(steps=2, sizes=FEW_SIZES), Setting(steps=2, sizes=FEW_SIZES, seed=6)])
    assert set(first.checksums).isdisjoint(second.checksums)


@pytest.mark.parametrize(("world_size", "num_runs"), [(2, 34), (3, 34), (4, 32)])
def test_random_delays_neither_hang_nor_mix_up_ranks(world_size: int, num_runs: int) -> None:
    """A hundred runs over the three world sizes, each rank and bucket delayed at random in every stage."""
    by_rank = values(run_ranks(world_size, shaken_runs, num_runs, deadline_s=200))
    for rank, checksums in enumerate(by_rank):
        assert checksums == by_rank[0], f"rank {rank} differs from rank 0"
    assert by_rank[0][0::2] == by_rank[0][1::2], "all-gather differs from two-shot"
