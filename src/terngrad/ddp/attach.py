"""Attaching to a DDP model: finding it, taking its hook slot, giving it back."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from terngrad.ddp._hook import Slot, terngrad_hook
from terngrad.ddp.auto import Auto
from terngrad.ddp.handle import Handle
from terngrad.ddp.servers import ParameterServers
from terngrad.errors import ConfigurationError
from terngrad.methods import Method

_WRAPPERS = ("strategy.model", "trainer.strategy.model", "model_wrapped", "model")

_slots: weakref.WeakKeyDictionary[DistributedDataParallel, Slot] = weakref.WeakKeyDictionary()


def _follow(wrapper: Any, path: str) -> Any:
    try:
        return reduce(lambda inner, name: getattr(inner, name, None), path.split("."), wrapper)
    except RuntimeError:  # a property that is not ready, such as a module's trainer before there is one
        return None


def find_ddp(model: Any) -> DistributedDataParallel:
    """The DistributedDataParallel inside a module, a compiled module, a trainer or another wrapper."""
    for candidate in (model, *(_follow(model, path) for path in _WRAPPERS)):
        if isinstance(candidate, nn.Module):
            found = [m for m in candidate.modules() if isinstance(m, DistributedDataParallel)]
            if len(found) > 1:
                raise ConfigurationError(f"attach: {len(found)} DDP models in one {type(model).__name__}; attach each")
            if found:
                return found[0]
    raise ConfigurationError(
        f"attach: no DistributedDataParallel in this {type(model).__name__}; wrap it first: "
        "model = DistributedDataParallel(model)"
    )


def attach(
    model: Any,
    method: Method | Auto | str = "terngrad",
    *,
    exchange: str | ParameterServers = "auto",
    optimizer: torch.optim.Optimizer | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
    seed: int = 0,
    verify_every: int = 0,
    measure_every: int = 100,
) -> Handle:
    """Sends the gradients of a DDP model by `method` from the next backward pass on. Call it on all ranks.

    method: a method, or its spec: "terngrad", "terngrad:codec=entropy", "sdagc:threshold=4", "dgc", "fp16" and others;
        or "auto", which measures some steps of plain DDP and chooses by itself.
    exchange: "all-gather", "two-shot", "auto" for the cheaper of the two for each bucket, or ParameterServers.
    optimizer: the model's, for methods that take its momentum over ("sdagc", "dgc"); detach() gives it back.
    grad_scaler: of AMP, for methods that hold something back, so that this follows the scale of the loss.
    seed: of the ternary draws; the same on every rank.
    verify_every: compare all parameters across ranks every so many steps (0: never).
    measure_every: measure density and compression error every so many steps (0: never).
    """
    ddp = find_ddp(model)
    slot = _slots.get(ddp)
    if slot is not None and slot.handle is not None and slot.handle.attached:
        raise ConfigurationError("attach: this model has a terngrad handle already; use its set_method, or detach it")
    others = [hook for hook, state in ddp._comm_hooks if not isinstance(state, Slot) or state.handle is not None]
    if slot is None and others:
        taken = getattr(others[0], "__qualname__", repr(others[0]))
        raise ConfigurationError(f"attach: the model's hook slot is taken by {taken}; DDP takes one hook only")
    handle = Handle(
        ddp.module,
        ddp.process_group,
        method,
        exchange=exchange,
        optimizer=optimizer,
        grad_scaler=grad_scaler,
        seed=seed,
        verify_every=verify_every,
        measure_every=measure_every,
        leaves_unused=ddp.find_unused_parameters or ddp.static_graph,
    )
    if slot is not None:
        slot.handle = handle
    else:
        _slots[ddp] = Slot(handle)
        ddp.register_comm_hook(_slots[ddp], terngrad_hook)
    return handle


def hook(
    method: Method | Auto | str, model: nn.Module, *, group: dist.ProcessGroup | None = None, **options: Any
) -> tuple[Slot, Callable[..., Any]]:
    """The (state, hook) pair for `register_comm_hook`, for a module that DDP will wrap; `state.handle` is the handle.

    Takes the options of `attach`; and, if `find_unused_parameters` will be set, `leaves_unused=True`.
    """
    if isinstance(model, DistributedDataParallel):
        options.setdefault("leaves_unused", model.find_unused_parameters or model.static_graph)
        group = group or model.process_group
        model = model.module
    group = group or dist.distributed_c10d._get_default_group()
    return Slot(Handle(model, group, method, **options)), terngrad_hook
