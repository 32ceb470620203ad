"""A dead or silent peer is an error and not a hang; a message that is not what it should be is never read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import terngrad as tg
from distributed import faulty
from distributed.faulty import CODES, SCALERS, SMALL, SUMS, Failure, Place, train_until_it_fails
from distributed.harness import run_ranks, values
from distributed.odd_model import FEW_SIZES, OddModel, Setting
from terngrad.codecs.header import Body

pytestmark = pytest.mark.distributed

VICTIM = 1
EXCHANGES = ("all-gather", "two-shot")


def _failures(
    setting: Setting,
    fault: faulty.Fault,
    *,
    dead: bool,
    victims: tuple[int, ...] = (VICTIM,),
    world_size: int = 3,
    direct: bool = True,
    timeout_s: float = 10,
) -> dict[int, Failure]:
    """How each rank that lives ended.

    On all of them: an error of this package's own, with the parameters as they were before that step; the same error
    again from every later backward pass; and detach() and destroy_process_group() return.
    """
    outcomes = run_ranks(
        world_size,
        train_until_it_fails,
        setting,
        fault,
        victims,
        direct,
        group_timeout_s=timeout_s,
        deadline_s=90,
        expect_dead=(VICTIM,) if dead else (),
    )
    ranks = [rank for rank in range(world_size) if not (dead and rank == VICTIM)]
    failures = dict(zip(ranks, values([outcomes[rank] for rank in ranks]), strict=True))
    for rank, failure in failures.items():
        assert failure is not None, f"rank {rank} noticed nothing"
        assert issubclass(failure.kind, tg.TerngradError), failure
        assert failure.parameters_untouched
        assert failure.again == [True] * 3, f"rank {rank}: the next backward passes raised something else"
    return failures


def _assert_names_the_place(failures: dict[int, Failure], step: int, buckets: range) -> None:
    for rank, failure in failures.items():
        assert failure.kind is tg.ExchangeError, failure
        assert failure.step == step
        found = re.match(rf"rank {rank}, step {step}, bucket (\d+), phase exchange: ", failure.text)
        assert found, failure.text
        assert int(found[1]) in buckets, failure.text


# Dead and silent peers


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_rank_killed_before_a_bucket_makes_the_others_raise(exchange: str, world_size: int) -> None:
    fault = partial(faulty.before_bucket, place=Place(step=2, bucket=2), action=faulty.kill)
    failures = _failures(replace(SMALL, exchange=exchange), fault, dead=True, world_size=world_size)
    # The dead rank's lane may not have got as far as the bucket that its backward pass was at.
    _assert_names_the_place(failures, 2, range(3))


@pytest.mark.parametrize("direct", [False, True], ids=["torch's all-gather", "direct sends"])
@pytest.mark.parametrize(
    ("exchange", "body", "posted"),
    [
        ("all-gather", SCALERS, False),
        ("all-gather", CODES, False),
        ("all-gather", CODES, True),
        ("two-shot", CODES, True),
        ("two-shot", SUMS, False),
    ],
)
def test_a_rank_killed_in_the_exchange_makes_the_others_raise(
    exchange: str, body: Body, posted: bool, direct: bool
) -> None:
    fault = partial(faulty.on_the_wire, place=Place(2, 1, body), action=faulty.kill_on_the_wire, posted=posted)
    failures = _failures(replace(SMALL, exchange=exchange), fault, dead=True, direct=direct)
    # A dead rank's sockets are reset: what it sent for the bucket before and nobody has read yet is lost as well.
    _assert_names_the_place(failures, 2, range(3))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_rank_found_dead_when_a_message_is_posted_is_named_as_a_failure_of_the_exchange(exchange: str) -> None:
    fault = partial(faulty.dead_when_posting, place=Place(2, 1), victim=VICTIM)
    failures = _failures(replace(SMALL, exchange=exchange), fault, dead=True, victims=(0, 1, 2))
    _assert_names_the_place(failures, 2, range(1, 2))


@pytest.mark.parametrize(("exchange", "direct"), [("all-gather", False), ("all-gather", True), ("two-shot", True)])
def test_a_rank_that_hangs_makes_the_others_raise_when_the_groups_timeout_has_passed(
    exchange: str, direct: bool
) -> None:
    fault = partial(faulty.on_the_wire, place=Place(2, 1), action=faulty.hang_on_the_wire)
    failures = _failures(replace(SMALL, exchange=exchange), fault, dead=True, direct=direct, timeout_s=6)
    _assert_names_the_place(failures, 2, range(1, 3))


def test_a_rank_whose_backward_pass_hangs_makes_the_others_raise() -> None:
    fault = partial(faulty.before_bucket, place=Place(2, 1), action=faulty.hang)
    _assert_names_the_place(_failures(SMALL, fault, dead=True, timeout_s=6), 2, range(1, 2))


@pytest.mark.parametrize("action", [faulty.kill, faulty.hang])
@pytest.mark.parametrize("stage", ["group", "agreement"])
def test_a_rank_lost_in_attach_makes_the_others_raise(stage: str, action: Callable[[], None]) -> None:
    outcomes = run_ranks(
        3, faulty.attach_with_fault, stage, action, VICTIM, group_timeout_s=6, deadline_s=60, expect_dead=(VICTIM,)
    )
    for rank in (0, 2):
        kind, text = values([outcomes[rank]])[0]
        assert kind is tg.ExchangeError, text
        assert re.match(rf"rank {rank}(, step 0)?, attach: ", text), text


@pytest.mark.parametrize("victim", [0, VICTIM])
def test_attach_works_after_one_rank_had_an_error_of_its_own(victim: int) -> None:
    ranks = values(run_ranks(3, faulty.attach_again, victim, 5.0, group_timeout_s=5, deadline_s=60))
    assert ranks == [["ConfigurationError" if rank == victim else "ExchangeError", None] for rank in range(3)]


# Messages that are not what they should be


def _assert_refused(failures: dict[int, Failure], ranks: tuple[int, ...], what: str) -> None:
    """All raise in that step, and whoever came to read the message says what is wrong with it.

    A bucket is read when the next one is on its way. A rank that is still busy with that one when others have refused
    the message and left sees that they have gone, and refers to them.
    """
    assert any(failures[rank].kind is tg.WireError for rank in ranks), failures
    for rank in ranks:
        failure = failures[rank]
        assert failure.step == 2
        if failure.kind is tg.WireError:
            assert re.match(rf"message from rank {VICTIM}, step 2, bucket 1: .*{what}", failure.text), failure
        else:
            assert failure.kind is tg.ExchangeError, failure
            assert "look for the first error among all ranks" in failure.text, failure


@pytest.mark.parametrize(
    ("exchange", "body", "bit", "what"),
    [
        ("all-gather", CODES, 0, "this is no terngrad message"),
        ("all-gather", CODES, 33, "corrupt"),
        ("all-gather", SCALERS, 64, "corrupt"),
        ("two-shot", SCALERS, 399, "corrupt"),
        ("two-shot", CODES, 200, "corrupt"),
        ("two-shot", SUMS, 97, "corrupt"),
    ],
)
def test_a_flipped_bit_in_a_header_is_refused_by_all(exchange: str, body: Body, bit: int, what: str) -> None:
    action = partial(faulty.flip_header_bit, bit=bit)
    # Which message it is for, and so whether to flip the bit, is read before.
    fault = partial(faulty.on_the_wire, place=Place(2, 1, body), action=action)
    _assert_refused(_failures(replace(SMALL, exchange=exchange), fault, dead=False), (0, 1, 2), what)


@pytest.mark.parametrize(
    ("body", "field", "value", "what"),
    [
        (SCALERS, "step", 1, "step is 1, need 2"),
        (CODES, "step", 3, "step is 3, need 2"),
        (CODES, "bucket", 0, "bucket is 0, need 1"),
        (CODES, "sender", 2, "sender is 2, need 1"),
        (SUMS, "num_coded", 0, "num_coded is 0, need"),
    ],
)
def test_a_sound_message_of_another_place_is_refused(body: Body, field: str, value: int, what: str) -> None:
    action = partial(faulty.change_header, **{field: value})
    fault = partial(faulty.on_the_wire, place=Place(2, 1, body), action=action)
    _assert_refused(_failures(replace(SMALL, exchange="two-shot"), fault, dead=False), (0, 1, 2), what)


@pytest.mark.parametrize(
    ("exchange", "codec", "body"),
    [
        ("all-gather", "base3", Body.BASE3),
        ("all-gather", "two-bit", Body.TWO_BIT),
        ("two-shot", "base3", Body.BASE3),
        ("two-shot", "two-bit", Body.TWO_BIT),
        ("two-shot", "base3", SUMS),
    ],
)
def test_codes_that_no_encoder_writes_are_refused_and_their_sender_named(exchange: str, codec: str, body: Body) -> None:
    setting = replace(SMALL, exchange=exchange, method=tg.TernGrad(dense_below=64, codec=codec))
    fault = partial(faulty.on_the_wire, place=Place(2, 1, body), action=faulty.write_no_code)
    _assert_refused(_failures(setting, fault, dead=False), (0, 1, 2), "no encoder writes")


def test_a_message_broken_for_one_rank_makes_that_rank_refuse_it_and_the_others_raise() -> None:
    action = partial(faulty.spoil_for_rank, rank=2)
    fault = partial(faulty.on_the_wire, place=Place(2, 1), action=action)
    failures = _failures(replace(SMALL, exchange="two-shot"), fault, dead=False, timeout_s=6)
    _assert_refused(failures, (2,), "this is no terngrad message")
    # The sums of rank 2 never came.
    _assert_names_the_place({rank: failures[rank] for rank in (0, 1)}, 2, range(1, 3))


# Ranks that were given different things


def _assert_all_told(results: list[Any], setting: str, shown: list[str]) -> None:
    """Every rank raised the same ConfigurationError, which names the setting and what each rank has."""
    for kind, text in results:
        assert kind is tg.ConfigurationError, text
        assert f"ranks differ in {setting}" in text
        for rank, value in enumerate(shown):
            assert f"rank {rank}: {value}" in text, text


def test_ranks_with_different_settings_are_all_told_and_can_attach_again() -> None:
    cases = {
        "method": ["terngrad", "fp16", "terngrad:clip=1.0"],
        "exchange": ["all-gather", "two-shot", "auto"],
        "seed": [1, 2, 1],
        "verify_every": [0, 0, 7],
    }
    options = [[{setting: value} for value in per_rank] for setting, per_rank in cases.items()]
    results = values(run_ranks(3, faulty.attach_each, options, group_timeout_s=10, deadline_s=60))
    assert len({checksum for _, checksum in results}) == 1
    for number, (setting, per_rank) in enumerate(cases.items()):
        _assert_all_told([raised[number] for raised, _ in results], setting, [str(value) for value in per_rank])


def test_ranks_with_different_models_are_all_told() -> None:
    modules = [partial(OddModel, (*FEW_SIZES[:3], last)) for last in (7, 7, 8)]
    shown = [f"4 parameters, number 3 is ('weights.3', ({last},))" for last in (7, 7, 8)]
    _assert_all_told(values(run_ranks(3, faulty.hook_each, modules, deadline_s=60)), "parameters", shown)

    modules = [partial(OddModel, FEW_SIZES[:count]) for count in (3, 4)]
    shown = ["3 parameters, number 3 is None", "4 parameters, number 3 is ('weights.3', (5000,))"]
    _assert_all_told(values(run_ranks(2, faulty.hook_each, modules, deadline_s=60)), "parameters", shown)


# The end of the process

_SCRIPT = """
import datetime, sys
from functools import partial
import torch, torch.distributed as dist
from distributed import faulty
from distributed.odd_model import Training

rank, store, caught = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "caught"
dist.init_process_group(
    "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=10)
)
training = Training(rank, faulty.SMALL)
if rank == 1:
    faulty.before_bucket(training, faulty.Place(2, 2), faulty.kill)
try:
    for _ in range(6):
        training.step()
except faulty.tg.ExchangeError:
    if not caught:
        raise
"""


@pytest.mark.parametrize(("how", "exit_code"), [("caught", 0), ("uncaught", 1)])
def test_an_interpreter_with_a_dead_peer_comes_to_its_end(how: str, exit_code: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-W", "error", "-c", _SCRIPT]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), how], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    try:
        _, text = processes[0].communicate(timeout=90)
        processes[1].communicate(timeout=90)
    finally:
        for process in processes:
            process.kill()
    assert processes[1].returncode < 0
    assert processes[0].returncode == exit_code, text
    assert ("terngrad.errors.ExchangeError: rank 0, step 2, bucket" in text) == (how == "uncaught"), text
