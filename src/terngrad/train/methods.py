"""How the gradients of a DDP model are averaged: torch's own ways and terngrad's, behind one interface.

A registry by the name that a spec begins with; what is not in it is a spec for `terngrad.attach`. Only torch's own
results depend on how DDP has laid out its buckets, which it does anew after the first step.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

import terngrad as tg
from terngrad.errors import ConfigurationError

NONE = "none"
CHOSEN = "auto"
PHASES = ("encode_s", "exchange_s", "decode_s")
ONE_BUCKET_MB = 1 << 20


@dataclass(frozen=True)
class Options:
    """What a connection needs besides its spec; torch's own take no notice of it."""

    exchange: Any  # a name, or tg.ParameterServers
    seed: int
    measure_every: int
    clip_norm: float  # of the sum of all workers' gradients


class Connection(ABC):
    """A method between its choice and its end: made from a spec, attached to a model, saved and restored."""

    bucket_cap_mb: ClassVar[int | None] = None
    depends_on_buckets: ClassVar[bool] = True

    def __init__(self, spec: str) -> None:
        if ":" in spec:
            raise ConfigurationError(f"method {spec!r}: {spec.partition(':')[0]} takes no options")

    @abstractmethod
    def attach(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, options: Options) -> None:
        """Averages the gradients of this model from the next backward pass on. On all ranks."""

    def computing(self, model: DistributedDataParallel) -> AbstractContextManager[None]:
        """What forward and backward run in."""
        return nullcontext()

    def phases(self) -> dict[str, float] | None:
        """Seconds so far of each of PHASES; None if the method does not tell."""
        return None

    def take_measurements(self) -> dict[str, dict[str, Any]]:
        """What was measured of each parameter since the last call."""
        return {}

    def take_decisions(self) -> list[dict[str, Any]]:
        """What was chosen since the last call, by a connection that chooses."""
        return []

    def set_epoch(self, epoch: int) -> None:
        """Tells the epoch. On all ranks."""
        return

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on exactly."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken. On all ranks."""
        return


class PlainDDP(Connection):
    """DDP's own all-reduce."""

    def attach(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, options: Options) -> None:
        """Nothing to do."""


class NoCommunication(PlainDDP):
    """Every worker on its own: how fast a step could be, not a way to train."""

    depends_on_buckets = False

    def computing(self, model: DistributedDataParallel) -> AbstractContextManager[None]:
        return model.no_sync()


class HalfPrecision(Connection):
    """Torch's hook that sends fp16. Its bf16 one wants NCCL, so that "bf16" is terngrad's own."""

    def attach(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, options: Options) -> None:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)


class PowerSGD(Connection):
    """Torch's PowerSGD hook (Vogels et al., NeurIPS 2019), with warm start and error feedback."""

    # It posts collectives from callbacks, which for several buckets on gloo come in another order on every rank.
    bucket_cap_mb = ONE_BUCKET_MB

    def __init__(self, spec: str) -> None:
        options = dict(option.partition("=")[::2] for option in spec.partition(":")[2].split(",") if option)
        text = options.pop("rank", "1")
        if options or not text.isdecimal() or int(text) < 1:
            raise ConfigurationError(f"method {spec!r}: powersgd takes rank=R, an integer of at least 1, and no more")
        self._rank = int(text)

    def attach(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, options: Options) -> None:
        # Two plain steps are the least it allows: DDP lays out its buckets anew after the first.
        self._state = powersgd.PowerSGDState(
            None, matrix_approximation_rank=self._rank, start_powerSGD_iter=2, random_seed=options.seed
        )
        model.register_comm_hook(self._state, powersgd.powerSGD_hook)

    _BY_BUCKET = ("error_dict", "p_memory_dict", "q_memory_dict")

    def state_dict(self) -> dict[str, Any]:
        rng = self._state.rng.get_state(legacy=False)
        return {
            "iter": self._state.iter,
            "rng": {**rng, "state": {**rng["state"], "key": torch.from_numpy(rng["state"]["key"].astype("int64"))}},
            **{
                slot: {index: tensor.clone() for index, tensor in getattr(self._state, slot).items()}
                for slot in self._BY_BUCKET
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rng = state["rng"]
        self._state.iter = state["iter"]
        self._state.rng.set_state(
            {**rng, "state": {**rng["state"], "key": rng["state"]["key"].numpy().astype("uint32")}}
        )
        for slot in self._BY_BUCKET:
            setattr(self._state, slot, dict(state[slot]))


class TerngradHandle(Connection):
    """`terngrad.attach`."""

    depends_on_buckets = False

    def __init__(self, spec: str) -> None:
        self._method: tg.Method | tg.Auto = tg.from_spec(spec)

    def attach(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, options: Options) -> None:
        self._handle = tg.attach(
            model,
            with_local_clipping(self._method, options.clip_norm)
            if isinstance(self._method, tg.Method)
            else self._method,
            exchange=options.exchange,
            optimizer=optimizer,
            seed=options.seed,
            measure_every=options.measure_every,
        )

    def phases(self) -> dict[str, float] | None:
        stats = self._handle.stats()
        return {name: stats[name] for name in PHASES}

    def take_measurements(self) -> dict[str, dict[str, Any]]:
        return self._handle.take_measurements()

    def set_epoch(self, epoch: int) -> None:
        self._handle.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self._handle.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._handle.load_state_dict(state)


class Chosen(TerngradHandle):
    """`terngrad.attach` with "auto"."""

    depends_on_buckets = True  # as long as DDP's own all-reduce is what it uses

    def __init__(self, spec: str) -> None:
        self._method = tg.Auto.from_spec(spec)
        self._num_taken = 0

    def take_decisions(self) -> list[dict[str, Any]]:
        found = self._handle.decisions[self._num_taken :]
        self._num_taken += len(found)
        return [decision.describe() for decision in found]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._num_taken = max(0, len(self._handle.decisions) - 1)  # what it began with was not followed


def with_local_clipping(method: tg.Method, clip_norm: float) -> tg.Method:
    """A sparse method clips each worker's gradient before it is held back; clipping what arrives would lose it.

    `clip_norm` is of the sum of all workers' gradients.
    """
    if isinstance(method, tg.Sparse) and clip_norm and not method.clip_norm:
        return dataclasses.replace(method, clip_norm=clip_norm)
    return method


def clips_locally(spec: str) -> bool:
    """Whether clipping is this method's business."""
    return spec.partition(":")[0] in tg.Method.registry and isinstance(tg.from_spec(spec), tg.Sparse)


def compensates(spec: str) -> bool:
    """Whether this method takes the optimizer's momentum over."""
    if spec.partition(":")[0] not in tg.Method.registry:
        return False
    method = tg.from_spec(spec)
    return isinstance(method, tg.Sparse) and method.compensates


TORCH_METHODS: dict[str, type[Connection]] = {
    NONE: NoCommunication,
    "fp32": PlainDDP,
    "fp16": HalfPrecision,
    "powersgd": PowerSGD,
}
PROCESSES_ONLY: dict[str, type[Connection]] = {**TORCH_METHODS, CHOSEN: Chosen}


def connection_of(spec: str, torch_methods: bool = True) -> Connection:
    """The way a spec names, not yet attached; without torch's methods, "fp32" and "fp16" are terngrad's own."""
    name = spec.partition(":")[0]
    if torch_methods:
        return PROCESSES_ONLY.get(name, TerngradHandle)(spec)
    if name in PROCESSES_ONLY and name not in tg.Method.registry:
        raise ConfigurationError(
            f"method {spec!r} is not for parameter servers and virtual workers; pass another, or --workers alone"
        )
    return TerngradHandle(spec)


def check_method(spec: str, exchange: str, torch_methods: bool = True) -> None:
    """Raises ConfigurationError unless there is such a method, and such an exchange that can carry it."""
    name = spec.partition(":")[0]
    if name not in PROCESSES_ONLY and name not in tg.Method.registry:
        known = ", ".join(sorted({*PROCESSES_ONLY, *tg.Method.registry}))
        raise ConfigurationError(f"method {spec!r}: there is {known}; pass one of these")
    connection = connection_of(spec, torch_methods)
    if isinstance(connection, TerngradHandle):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        # It refuses what `attach` refuses.
        method = "terngrad" if isinstance(connection, Chosen) else spec
        tg.VirtualWorkers(model, method, num_workers=1, exchange=exchange, optimizer=optimizer)


def may_hold_back(spec: str) -> bool:
    """Whether "auto" may choose a sparse method."""
    return spec.partition(":")[0] == CHOSEN and any(
        isinstance(method, tg.Sparse) for method in tg.Auto.from_spec(spec).methods.values()
    )
