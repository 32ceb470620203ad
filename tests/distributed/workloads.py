"""What the distributed tests train: small models, fixed data, and scenarios that share one set of processes.

A scenario is a function `(rank, world_size) -> value`. All scenarios of one module that ask for the same number of
ranks run one after the other in the same processes, because starting those is what takes the time.
"""

from __future__ import annotations

import hashlib
import io
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import terngrad as tg

from .harness import run_ranks, values

METHODS = (
    "fp32",
    "fp16",
    "bf16",
    "terngrad",
    "terngrad:codec=two-bit,clip=0",
    "terngrad:block=64,sigma=std",
    "terngrad:shared=false",
    "terngrad:error_feedback=true",
    "terngrad-paper:dense_below=2048",
)
FEATURES, CLASSES = 24, 10

Scenario = Callable[[int, int], Any]


def _play(rank: int, world_size: int, scenarios: list[Scenario]) -> dict[str, tuple[Any, str | None]]:
    """Each scenario's value, or the text of what it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return {scenario.__name__: _attempt(scenario, rank, world_size) for scenario in scenarios}


def _attempt(scenario: Scenario, rank: int, world_size: int) -> tuple[Any, str | None]:
    try:
        return scenario(rank, world_size), None
    except Exception:
        return None, traceback.format_exc()


class Stage:
    """The scenarios of one test module."""

    def __init__(self) -> None:
        self._scenarios: dict[int, list[Scenario]] = {}
        self._played: dict[int, list[dict[str, tuple[Any, str | None]]]] = {}

    def scenario(self, *world_sizes: int) -> Callable[[Scenario], Scenario]:
        """Lets a function take part in the processes for these numbers of ranks."""

        def add(function: Scenario) -> Scenario:
            for world_size in world_sizes:
                self._scenarios.setdefault(world_size, []).append(function)
            return function

        return add

    def play(self, scenario: Scenario, world_size: int) -> list[Any]:
        """What the scenario gave on each rank; fails with the first rank's error if one raised."""
        if world_size not in self._played:
            outcomes = run_ranks(world_size, _play, self._scenarios[world_size], group_timeout_s=30.0, deadline_s=150.0)
            self._played[world_size] = values(outcomes)
        found = [results[scenario.__name__] for results in self._played[world_size]]
        for rank, (_, error) in enumerate(found):
            assert error is None, f"rank {rank} raised:\n{error}"
        return [value for value, _ in found]


class Net(nn.Module):
    """Two parameters large enough to be ternary, and four that stay dense."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(FEATURES, 96)
        self.middle = nn.Linear(96, 96)
        self.last = nn.Linear(96, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The examples that a rank sees in a step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, FEATURES, generator=generator).to(dtype)
    return inputs, torch.randint(CLASSES, (8,), generator=generator)


def loss_of(model: nn.Module, rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    inputs, labels = batch(rank, step, dtype)
    return nn.functional.cross_entropy(model(inputs).float(), labels)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all gradients, dense, under the names that the parameters have in the bare model."""
    return {
        name.replace("module.", "").replace("_orig_mod.", ""): p.grad.detach().clone().to_dense()
        for name, p in model.named_parameters()
        if p.grad is not None
    }


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {
        name.replace("module.", "").replace("_orig_mod.", ""): p.detach().clone()
        for name, p in model.named_parameters()
    }


def digest(tensors: dict[str, Tensor] | Iterable[Tensor]) -> str:
    """A fingerprint of every bit, which is what ranks can be compared by."""
    found = hashlib.sha256()
    for tensor in [tensors[name] for name in sorted(tensors)] if isinstance(tensors, dict) else tensors:
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def same(values: Sequence[Any]) -> bool:
    """Whether all are equal."""
    return all(value == values[0] for value in values)


def message_of(function: Callable[[], object], kind: type[Exception] = tg.ConfigurationError) -> str:
    """The text of the error of that kind that the function raises."""
    try:
        function()
    except kind as error:
        return str(error)
    return "nothing was raised"


def step_once(model: nn.Module, rank: int, step: int, sync: bool = True) -> dict[str, Tensor]:
    """One backward pass on fresh gradients; gives the gradients it left."""
    model.zero_grad()
    with nullcontext() if sync else model.no_sync():  # type: ignore[operator]
        loss_of(model, rank, step).backward()
    return gradients(model)


def train(
    model: nn.Module, rank: int, steps: Iterable[int], optimizer: torch.optim.Optimizer | None = None
) -> torch.optim.Optimizer:
    """Momentum SGD over the given steps; gives the optimizer."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    return optimizer


def attached(method: tg.Method | str | None, net: nn.Module | None = None, **ddp_options: Any) -> Any:
    """A new DDP model and its handle; no handle for method None, which is plain DDP."""
    options = {name: ddp_options.pop(name) for name in _ATTACH_OPTIONS & set(ddp_options)}
    model = DistributedDataParallel(net if net is not None else Net(), **ddp_options)
    return model, (tg.attach(model, method, **options) if method is not None else None)


_ATTACH_OPTIONS = {"exchange", "seed", "verify_every", "measure_every"}


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest difference between two sets of gradients, relative to each tensor's largest value."""
    assert found.keys() == wanted.keys()
    worst = 0.0
    for name, value in wanted.items():
        if value.numel():
            scale = float(value.double().abs().max()) or 1.0
            worst = max(worst, float((found[name].double() - value.double()).abs().max()) / scale)
    return worst


class Run:
    """A model with an optimizer whose momentum may move."""

    def __init__(self, method: str, rank: int, exchange: Any = "auto", group: Any = None, **settings: Any) -> None:
        torch.manual_seed(0)
        self.rank = rank
        self.model = DistributedDataParallel(Net(), process_group=group)
        options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, **settings}
        self.optimizer = torch.optim.SGD(self.model.parameters(), **options)
        self.handle = tg.attach(self.model, method, exchange=exchange, optimizer=self.optimizer, measure_every=2)

    def train(self, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            torch.autograd.backward(loss_of(self.model, self.rank, step))
            self.optimizer.step()

    def save(self) -> bytes:
        file = io.BytesIO()
        parts = {"model": self.model, "optimizer": self.optimizer, "handle": self.handle}
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)
        return file.getvalue()

    def load(self, checkpoint: bytes) -> None:
        state = torch.load(io.BytesIO(checkpoint), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.handle.load_state_dict(state["handle"])

    @property
    def digest(self) -> str:
        return digest(parameters(self.model))
