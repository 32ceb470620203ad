"""A cheap model of a hundred parameters of odd sizes, and training that leaves a checksum after every step."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import terngrad as tg
from terngrad.methods import base

# One below, at and above a vector, a packed group (80, 128, 160 digits) and a chunk of sums (3840); then larger ones.
_EDGES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 79, 80, 81, 127, 128, 129, 159, 160, 161, 255, 257, 319,
          320, 321, 511, 513, 639, 640, 641, 1023, 1025, 1279, 1281, 3839, 3840, 3841)  # fmt: skip
ODD_SIZES = (*_EDGES, *range(3001, 3001 + 60 * 67, 67))
FEW_SIZES = (1, 640, 7, 5000, 127, 4001, 3, 6007, 5123, 64, 4999, 9)
SMALL_BUCKETS_MB = 0.01  # makes at least four buckets of the few, from the second step on: DDP begins with one
_LAYER = 10  # parameters whose gradients get ready together

# Ternary from 64 elements on, so that the model has both kinds.
TERNARY = tg.TernGrad(dense_below=64)


class OddModel(nn.Module):
    """A quadratic whose minimum differs from rank to rank, so that gradients never agree and never vanish."""

    def __init__(self, sizes: tuple[int, ...] = ODD_SIZES) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(size, generator=generator)) for size in sizes)

    def forward(self, target: Tensor) -> Tensor:
        loss, start = target.new_zeros(()), 0
        for first in range(0, len(self.weights), _LAYER):
            layer = torch.cat([*self.weights[first : first + _LAYER]])
            loss = loss + (layer - target[start : start + layer.numel()]).square().sum()
            start += layer.numel()
        return loss


def targets(rank: int, numel: int) -> Iterator[Tensor]:
    """Endless targets, different on every rank and in every step."""
    noise = torch.randn(numel + 1009, generator=torch.Generator().manual_seed(100 + rank))
    step = 0
    while True:
        shift = step * 17 % 1009
        yield noise[shift : shift + numel]
        step += 1


def checksum(module: nn.Module) -> int:
    """CRC-32 over all parameters' bytes."""
    crc = 0
    for parameter in module.parameters():
        crc = zlib.crc32(parameter.detach().view(torch.uint8).numpy(), crc)
    return crc


@dataclass(frozen=True)
class Setting:
    """One run."""

    method: tg.Method = TERNARY
    exchange: str = "auto"
    bucket_cap_mb: float = 25
    steps: int = 200
    backend: str = ""  # the best there is
    threads: int = 1
    sizes: tuple[int, ...] = ODD_SIZES
    seed: int = 5
    part_elements: int = base.PART_ELEMENTS


class Training:
    """A model, its handle and its optimizer, a step at a time."""

    def __init__(self, rank: int, setting: Setting) -> None:
        self.module = OddModel(setting.sizes)
        self.model = DistributedDataParallel(self.module, bucket_cap_mb=setting.bucket_cap_mb)
        self.handle = tg.attach(self.model, setting.method, exchange=setting.exchange, seed=setting.seed)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.5)
        self.targets = targets(rank, sum(setting.sizes))

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(next(self.targets)).backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()

    def checksum(self) -> int:
        return checksum(self.module)


@dataclass
class Trace:
    """What a run left on one rank: a checksum of the parameters after every step, and how many buckets it had."""

    checksums: list[int]
    num_buckets: int


def run(rank: int, world_size: int, settings: list[Setting]) -> list[Trace]:
    """Trains once for each setting, always from the same start."""
    warnings.simplefilter("error")
    return [_run_one(rank, setting) for setting in settings]


def _run_one(rank: int, setting: Setting) -> Trace:
    tg.set_backend(setting.backend or tg.backends()[0], setting.threads)
    base.PART_ELEMENTS = setting.part_elements
    training = Training(rank, setting)
    num_buckets = count_buckets(training.handle)
    checksums = []
    for _ in range(setting.steps):
        training.step()
        checksums.append(training.checksum())
    training.handle.detach()
    return Trace(checksums, num_buckets[-1])


def count_buckets(handle: tg.Handle) -> list[int]:
    """A list to which every step will add its number of buckets."""
    counts: list[int] = []
    reduce = handle.reduce

    def counted(bucket: torch.distributed.GradBucket) -> torch.futures.Future[Tensor]:
        if bucket.is_last():
            counts.append(bucket.index() + 1)
        return reduce(bucket)

    handle.reduce = counted  # type: ignore[method-assign]
    return counts
