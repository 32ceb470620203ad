"""Faults to inject into one rank, and what the others make of them."""

from __future__ import annotations

import os
import signal
import struct
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import terngrad as tg
from distributed.odd_model import FEW_SIZES, SMALL_BUCKETS_MB, OddModel, Setting, Training, checksum
from terngrad.codecs.header import HEADER_BYTES, Body, Header
from terngrad.ddp import handle
from terngrad.exchange import channel

SMALL = Setting(bucket_cap_mb=SMALL_BUCKETS_MB, sizes=FEW_SIZES)
SUMS, CODES, SCALERS = Body.LEVELS, Body.BASE3, Body.SCALERS

Action = Callable[..., None]
Fault = Callable[[Training], None]


class Place(NamedTuple):
    """A bucket of a step, and the message of it that is concerned."""

    step: int
    bucket: int
    body: Body = CODES


def kill() -> None:
    """Ends this process at once, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    """Alive, connected, and never heard of again."""
    time.sleep(3600)


def before_bucket(training: Training, place: Place, action: Action) -> None:
    """Has `action` run when DDP hands over that bucket."""
    reduce = training.handle.reduce

    def replaced(bucket: dist.GradBucket) -> Any:
        if (training.handle.step, bucket.index()) == place[:2]:
            action()
        return reduce(bucket)

    training.handle.reduce = replaced  # type: ignore[method-assign]


def on_the_wire(training: Training, place: Place, action: Action, posted: bool = False) -> None:
    """Has `action` run on this rank's outgoing rows of that message: before they are sent, or when they are posted."""
    wire = training.handle._channel
    all_gather, all_to_all = wire.all_gather, wire.all_to_all

    def call(outgoing: Tensor, post: Callable[[], Any]) -> Any:
        _, _, body, _, _, _, _, bucket, step, *_ = struct.unpack("<4sBBBBHHIQQQQ", bytes(outgoing[0].tolist())[:48])
        if (step, bucket, body) != place:
            return post()
        if posted:
            post()
        action(outgoing)
        return post()

    def gather(rows: Tensor) -> Any:
        return call(rows[wire.rank : wire.rank + 1], lambda: all_gather(rows))

    def swap(received: Tensor, messages: Tensor) -> Any:
        return call(messages, lambda: all_to_all(received, messages))

    wire.all_gather, wire.all_to_all = gather, swap  # type: ignore[method-assign]


def kill_on_the_wire(outgoing: Tensor) -> None:
    kill()


def hang_on_the_wire(outgoing: Tensor) -> None:
    hang()


def dead_when_posting(training: Training, place: Place, victim: int) -> None:
    """Has one rank die before it sends that message, and the others wait until it surely has."""
    victims = training.handle._channel.rank == victim
    on_the_wire(training, place, kill_on_the_wire if victims else lambda outgoing: time.sleep(1))


def flip_header_bit(outgoing: Tensor, bit: int) -> None:
    outgoing[:, bit // 8] ^= 1 << bit % 8


def change_header(outgoing: Tensor, **fields: int) -> None:
    """A sound header that says something else: another step's, another sender's."""
    for message in outgoing:
        _, _, body, dense_type, _, *rest = struct.unpack("<4sBBBBHHIQQQQ", bytes(message.tolist())[:48])
        names = ("sender", "shard", "bucket", "step", "num_coded", "num_dense", "num_bytes")
        values = {"body": body, "dense_type": dense_type, **dict(zip(names, rest, strict=True)), **fields}
        Header(**values).write(message)


def write_no_code(outgoing: Tensor) -> None:
    """All bits set in the first word of codes: no digit of any code is that large."""
    outgoing[:, HEADER_BYTES : HEADER_BYTES + 4] = 255


def spoil_for_rank(outgoing: Tensor, rank: int) -> None:
    """Breaks the message to one rank only."""
    flip_header_bit(outgoing[rank : rank + 1], 0)


@dataclass
class Failure:
    """How training ended on one rank."""

    kind: type[BaseException]
    text: str
    step: int
    parameters_untouched: bool
    again: list[bool]  # was it this very error that each of the next backward passes raised?


def train_until_it_fails(
    rank: int, world_size: int, setting: Setting, fault: Fault, victims: tuple[int, ...], direct: bool
) -> Failure | None:
    """Up to six steps with codes sent directly or by torch's collective; None if none failed."""
    warnings.simplefilter("error")
    channel.SMALL_BYTES = 600 if direct else 1 << 15
    training = Training(rank, setting)
    if rank in victims:
        fault(training)
    for step in range(6):
        before = training.checksum()
        try:
            training.backward()
        except Exception as error:
            untouched = training.checksum() == before
            again = [_fails_with(training, error) for _ in range(3)]
            training.handle.detach()
            dist.destroy_process_group()
            return Failure(type(error), str(error), step, untouched, again)
        training.optimizer.step()
    return None


def _fails_with(training: Training, error: Exception) -> bool:
    try:
        training.backward()
    except Exception as second:
        return second is error
    return False


def attach_with_fault(rank: int, world_size: int, stage: str, action: Callable[[], None], victim: int) -> Any:
    """What attaching raises where one rank fails while the group is made or while ranks compare settings."""
    warnings.simplefilter("error")
    model = DistributedDataParallel(OddModel(FEW_SIZES))
    if rank == victim:
        setattr(*{"group": (handle, "own_group"), "agreement": (dist, "all_gather_object")}[stage], _instead(action))
    raised = _raised_by(partial(tg.attach, model))
    dist.destroy_process_group()
    return raised


def attach_again(rank: int, world_size: int, victim: int, timeout_s: float) -> list[str | None]:
    """What attaching raises where one rank has an error of its own at first, and then again."""
    model = DistributedDataParallel(OddModel(FEW_SIZES))
    options = {"verify_every": -1} if rank == victim else {}  # refused before anyone is asked
    found = [_raised_by(partial(tg.attach, model, **options))]
    if rank == victim:
        time.sleep(2 * timeout_s)  # until the others have given up
    found.append(_raised_by(partial(tg.attach, model)))
    return [raised[0].__name__ if raised else None for raised in found]


def _raised_by(function: Callable[[], object]) -> tuple[type[BaseException], str] | None:
    try:
        function()
    except Exception as error:
        return type(error), str(error)
    return None


def _instead(action: Callable[[], None]) -> Callable[..., None]:
    def replaced(*args: object, **options: object) -> None:
        action()

    return replaced


def attach_each(rank: int, world_size: int, cases: list[list[dict[str, Any]]]) -> Any:
    """What attaching raises in each case, with options for each rank; then a step with the same options on all."""
    warnings.simplefilter("error")
    module = OddModel(FEW_SIZES)
    model = DistributedDataParallel(module)
    raised = [_raised_by(partial(tg.attach, model, **options[rank])) for options in cases]
    tg.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.full((sum(FEW_SIZES),), float(rank))).backward()
    optimizer.step()
    return raised, checksum(module)


def hook_each(rank: int, world_size: int, modules: list[Callable[[], nn.Module]]) -> Any:
    """What making a hook raises where every rank has a module of its own; DDP itself compares shapes only."""
    warnings.simplefilter("error")
    return _raised_by(partial(tg.hook, "terngrad", modules[rank]()))
