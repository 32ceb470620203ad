"""Momentum, taken out of an optimizer and given back.

Sparse methods apply momentum to what they hold back, before it is sent; the optimizer must then have none of its own.
Weight decay does not travel and keeps its momentum here, in a velocity of its own, as in DGC: with what the method does
to the gradient, a parameter then moves as it would by plain SGD.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from terngrad.errors import ConfigurationError
from terngrad.methods import SAM, Coder, Method, Momentum, Sparse

_MOVED = ("momentum", "nesterov", "weight_decay")

Mean = Callable[[Sequence[Tensor]], None]  # replaces tensors by their means over ranks


def _wants_momentum(method: Method) -> bool:
    return isinstance(method, Sparse) and method.compensates


def check_optimizer(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], method: Method) -> None:
    """Raises unless this optimizer's momentum can be moved to this method."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.SGD):
        raise ConfigurationError(
            f"attach(optimizer={name}): momentum can be taken out of torch.optim.SGD only; train with SGD, or give the "
            "method compensation='none', which leaves momentum where it is"
        )
    for number, group in enumerate(optimizer.param_groups):
        if group["dampening"] or group["maximize"]:
            raise ConfigurationError(
                f"attach(optimizer={name}): group {number} has dampening={group['dampening']}, "
                f"maximize={group['maximize']}; momentum can be moved for dampening=0 and maximize=False"
            )
    momenta = {(group["momentum"], group["nesterov"]) for group in optimizer.param_groups}
    if isinstance(method, Sparse) and method.compensation == SAM and (len(momenta) > 1 or any(n for _, n in momenta)):
        raise ConfigurationError(
            f"attach(optimizer={name}): compensation='sam' is for one momentum, not Nesterov's, and the groups have "
            f"{sorted(momenta)}; pass compensation='masking'"
        )
    mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in parameters.items() if p.requires_grad and id(p) not in mine]
    if missing:
        raise ConfigurationError(
            f"attach(optimizer={name}): it does not have {len(missing)} of the model's parameters ({missing[0]}, ...); "
            "pass the optimizer of this model, with all that is trained"
        )


class MomentumLink:
    """An optimizer and the coders that may hold its momentum: one for this rank, or one for each virtual worker."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        parameters: Mapping[str, nn.Parameter],
        coders: Sequence[Coder],
    ) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._coders = coders
        self._moved: MovedMomentum | None = None
        self._in_residuals = False  # as `sam` keeps velocities

    def check(self, method: Method) -> None:
        """Raises unless the method can have this optimizer's momentum."""
        if not _wants_momentum(method):
            return
        if self._optimizer is None:
            raise ConfigurationError(
                f"{method.spec} compensates momentum, and needs the optimizer that has it: pass optimizer=, or "
                "compensation='none' if there is no momentum or it is to stay where it is"
            )
        if self._moved is None:
            check_optimizer(self._optimizer, self._parameters, method)

    def follow(self, method: Method, mean: Mean) -> None:
        """Moves momentum to where this method wants it. `mean` replaces tensors by their means over ranks."""
        if not _wants_momentum(method):
            self.give_back(mean)
        elif self._moved is None and self._optimizer is not None:
            self._moved = MovedMomentum(self._optimizer, self._parameters)
            self._in_residuals = isinstance(method, Sparse) and method.compensation == SAM
            velocities = self._moved.take()
            for coder in self._coders:
                coder.momenta = self._moved.momenta
                for i, velocity in velocities.items():
                    if self._in_residuals:  # where a value counts 1 / (1 - m) times in the end, as in the optimizer
                        coder.residual(i, velocity.numel(), velocity.device).add_(
                            velocity, alpha=coder.momenta[i].factor
                        )
                    else:
                        coder.velocities[i] = velocity.clone()

    def give_back(self, mean: Mean) -> None:
        """The optimizer has its momentum again, and the mean of all ranks' velocities.

        What is still held back has its momentum in it already, unless it is the velocity too. The optimizer will apply
        it anew, so the part is kept that comes to the same in the end.
        """
        if self._moved is None:
            return
        for coder in self._coders if not self._in_residuals else ():
            for i, residual in coder.residuals.items():
                residual.mul_(1 - coder.momenta.get(i, Momentum()).factor)
        velocities = self._mean_velocities()
        mean(list(velocities.values()))
        self._moved.give_back(velocities)
        self._moved = None
        for coder in self._coders:
            coder.velocities, coder.momenta = {}, {}

    def _mean_velocities(self) -> dict[int, Tensor]:
        """Over the coders here, in the gradient's own scale and in the order of parameters."""
        held = [coder.velocities for coder in self._coders]
        scale = self._coders[0].scale * len(held)
        return {i: torch.stack([velocities[i] for velocities in held]).sum(dim=0) / scale for i in sorted(held[0])}

    def state_dict(self) -> dict[str, Any] | None:
        return self._moved.state_dict() if self._moved is not None else None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if self._moved is not None and state is not None:
            self._moved.load_state_dict(state)


class MovedMomentum:
    """The momentum of one optimizer, while it is with a method."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._index = {id(p): i for i, p in enumerate(parameters.values())}
        self._kept: list[dict[str, Any]] = []  # of each group, what it was told to be
        self._decay: dict[int, Tensor] = {}  # velocity of weight decay, by parameter index
        self._hook: Any = None
        self.momenta: dict[int, Momentum] = {}  # by parameter index

    def take(self) -> dict[int, Tensor]:
        """Takes momentum out of the optimizer, and gives the velocities it had, by parameter index."""
        self._kept = [{key: group[key] for key in _MOVED} for group in self._optimizer.param_groups]
        self._hook = self._optimizer.register_step_pre_hook(self._before_step)
        self._empty_groups()
        velocities = {}
        for group in self._optimizer.param_groups:
            for p in group["params"]:
                found = self._optimizer.state[p].pop("momentum_buffer", None)
                if found is not None and id(p) in self._index:
                    velocities[self._index[id(p)]] = found.detach().float().flatten().clone()
        return velocities

    def give_back(self, velocities: Mapping[int, Tensor]) -> None:
        """Ends it: the optimizer has its momentum again, with these velocities."""
        if self._hook is None:
            return
        self._hook.remove()
        self._hook = None
        for group, kept in zip(self._optimizer.param_groups, self._kept, strict=True):
            group.update(kept)
            for p in group["params"]:
                index = self._index.get(id(p))
                if index is not None and index in velocities and group["momentum"]:
                    total = velocities[index] + self._decay.get(index, 0.0)
                    self._optimizer.state[p]["momentum_buffer"] = total.view_as(p).to(p.dtype)
        self._decay.clear()

    def _empty_groups(self) -> None:
        """Notes what groups hold (a scheduler may have changed it) and sets it to nothing."""
        for group, kept in zip(self._optimizer.param_groups, self._kept, strict=True):
            if group["momentum"]:
                kept["momentum"] = group["momentum"]
            if group["weight_decay"]:
                kept["weight_decay"] = group["weight_decay"]
            group.update(momentum=0.0, nesterov=False, weight_decay=0.0)
            for p in group["params"]:
                if id(p) in self._index:
                    self.momenta[self._index[id(p)]] = Momentum(kept["momentum"], kept["nesterov"])

    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        """Adds weight decay, with its momentum, to the averaged gradients."""
        self._empty_groups()
        for group, kept in zip(self._optimizer.param_groups, self._kept, strict=True):
            for p in group["params"]:
                if p.grad is not None and kept["weight_decay"]:
                    self._add_decay(p, kept)

    def _add_decay(self, p: nn.Parameter, kept: Mapping[str, Any]) -> None:
        decay = kept["weight_decay"] * p.detach()
        momentum = kept["momentum"]
        index = self._index.get(id(p))
        if momentum and index is not None:
            velocity = self._decay.setdefault(index, torch.zeros_like(decay).flatten()).view_as(decay)
            velocity.mul_(momentum).add_(decay)
            decay = decay + momentum * velocity if kept["nesterov"] else velocity
        assert p.grad is not None  # the caller has looked
        p.grad.add_(decay)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs, by parameter index."""
        return {"groups": self._kept, "decay": {i: velocity.clone() for i, velocity in self._decay.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept = [dict(kept) for kept in state["groups"]]
        self._decay = {i: velocity.clone() for i, velocity in state["decay"].items()}
        self._empty_groups()
