"""Momentum, taken out of an optimizer and given back.

Sparse methods apply momentum to what they hold back, before it is sent; the optimizer must then have none of its own.
Weight decay does not travel and has its momentum here, in the same form as the gradient: at once, or in a velocity of
its own, as in DGC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from terngrad.errors import ConfigurationError
from terngrad.methods import MASKING, SAM, UPFRONT, Coder, Method, Momentum, Sparse

_NONE: dict[str, Any] = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
_MOVED = tuple(_NONE)

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
        if group["dampening"] or group["maximize"] or group.get("fused") or group["momentum"] >= 1:
            raise ConfigurationError(
                f"attach(optimizer={name}): group {number} has momentum={group['momentum']}, dampening="
                f"{group['dampening']}, maximize={group['maximize']}, fused={group.get('fused')}; momentum can be "
                "moved if it is below 1, for dampening=0, maximize=False and fused=False"
            )
    momenta = {(group["momentum"], group["nesterov"]) for group in optimizer.param_groups}
    if isinstance(method, Sparse) and method.compensation == SAM and (len(momenta) > 1 or any(n for _, n in momenta)):
        raise ConfigurationError(
            f"attach(optimizer={name}): compensation='sam' is for one momentum, not Nesterov's, and the groups have "
            f"{sorted(momenta)}; pass compensation='upfront' or 'masking'"
        )
    mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
    theirs = {id(p) for p in parameters.values()}
    missing = [name for name, p in parameters.items() if p.requires_grad and id(p) not in mine]
    if missing or not mine <= theirs:
        raise ConfigurationError(
            f"attach(optimizer={name}): it has {len(mine - theirs)} parameters that are not the model's, and of the "
            f"model's it does not have {len(missing)} ({', '.join(missing[:1])}); pass an optimizer of this model "
            "alone, with all of it that is trained"
        )


class MomentumLink:
    """An optimizer and the coders that may hold its momentum: one for this rank, or one for each virtual worker.

    `by_memory`: velocities are flat in the order of memory, as DDP lays out its buckets; else in that of indices.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        parameters: Mapping[str, nn.Parameter],
        coders: Sequence[Coder],
        by_memory: bool,
    ) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._list = list(parameters.values())
        self._coders = coders
        self._by_memory = by_memory
        self._moved: MovedMomentum | None = None
        self._sparse: frozenset[int] = frozenset()  # parameters that the method does not send whole
        self._form = ""  # of these parameters' momentum: the method's compensation
        self._check: Callable[[], None] = lambda: None  # raises unless the method can have what groups hold

    @property
    def moved(self) -> bool:
        """Whether a method has the optimizer's momentum."""
        return self._moved is not None

    def check(self, method: Method) -> None:
        """Raises unless the method can have this optimizer's momentum."""
        if not _wants_momentum(method):
            return
        if self._optimizer is None:
            raise ConfigurationError(
                f"{method.spec} compensates momentum, and needs the optimizer that has it: attach with optimizer=, or "
                "pass compensation='none' if there is no momentum or it is to stay where it is"
            )
        with self._moved.shown() if self._moved is not None else nullcontext():
            check_optimizer(self._optimizer, self._parameters, method)

    def follow(self, method: Method, mean: Mean) -> None:
        """Moves momentum to where this method wants it. `mean` replaces tensors by their means over ranks."""
        optimizer = self._optimizer if _wants_momentum(method) else None
        wants = optimizer is not None
        infos = self._coders[0].parameters
        sparse = frozenset(i for i, info in enumerate(infos) if wants and not method.sends_dense(info))
        form = method.compensation if isinstance(method, Sparse) else ""
        if wants and self.moved and (sparse, form) == (self._sparse, self._form):
            return
        self.give_back(mean)
        if optimizer is not None:
            self._sparse, self._form = sparse, form
            self._check = partial(check_optimizer, optimizer, self._parameters, method)
            self._take()

    def _weight(self, momentum: Momentum) -> float:
        """How often a gradient counts that is held back, as the optimizer would have it count 1 / (1 - m) times."""
        return {MASKING: 1 / (1 - momentum.factor), UPFRONT: momentum.upfront}.get(self._form, 1.0)

    def _take(self) -> None:
        """What is held back was a gradient for the optimizer, and becomes what it would be if it came now."""
        assert self._optimizer is not None  # the caller has looked
        at_once = self._sparse if self._form == UPFRONT else frozenset()
        self._moved = moved = MovedMomentum(self._optimizer, self._list, at_once, self._adopt, self._check)
        moved.take()
        for coder in self._coders:
            coder.momenta = moved.momenta
            for i in self._sparse & set(coder.residuals):
                coder.residuals[i] = coder.residuals[i].float() * self._weight(moved.momenta[i])
        moved.take_velocities()

    def _adopt(self, found: Mapping[int, Tensor]) -> None:
        """Velocities of the optimizer become the method's."""
        assert self._moved is not None  # it calls
        moved = self._moved
        velocities = {i: self._flat(i, velocity) for i, velocity in found.items()}
        for coder in self._coders:
            for i, velocity in velocities.items():
                momentum = moved.momenta[i]
                if i in self._sparse and self._form != MASKING:
                    to_come = momentum.factor if self._form == SAM else (momentum.upfront - 1) * momentum.ahead
                    held = coder.residual(i, velocity.numel(), velocity.device)
                    held.add_(velocity, alpha=to_come * coder.scale)
                else:
                    coder.velocities[i] = velocity * (coder.scale * momentum.ahead)

    def take_loaded(self) -> None:
        """Takes what the optimizer has got since: velocities from a checkpoint, settings from a scheduler."""
        if self._moved is not None:
            self._moved.take_velocities()
            self._moved.note_groups()

    def give_back(self, mean: Mean) -> None:
        """The optimizer has its momentum again, and the mean of all ranks' velocities, where the method had any."""
        if self._moved is None:
            return
        self.take_loaded()
        velocities: dict[int, Tensor] = {}
        known = self._sparse if self._form == SAM else frozenset()  # on all ranks, whatever they hold back
        for i in sorted({*known, *(i for coder in self._coders for i in (*coder.velocities, *coder.residuals))}):
            found = self._mean_velocity(i)
            if found is not None:
                velocities[i] = found
        mean(list(velocities.values()))
        self._moved.give_back({i: self._shaped(i, velocity) for i, velocity in velocities.items()})
        self._moved = None
        for coder in self._coders:
            coder.velocities, coder.momenta = {}, {}

    def _mean_velocity(self, i: int) -> Tensor | None:
        """Of one parameter, over the coders here, as the optimizer has it; what is held back is converted too."""
        momentum = self._coders[0].momenta.get(i, Momentum())
        found: list[Tensor | None] = []
        for coder in self._coders:
            if i in self._sparse and self._form == SAM and momentum.factor:
                p = self._list[i]
                held = coder.residuals.pop(i, torch.zeros(p.numel(), device=p.device))
                found.append(held / (momentum.factor * coder.scale))
                continue
            if i in self._sparse and i in coder.residuals:
                coder.residuals[i] = coder.residuals[i] / self._weight(momentum)
            velocity = coder.velocities.get(i)
            found.append(velocity / (coder.scale * momentum.ahead) if velocity is not None else None)
        there = [velocity for velocity in found if velocity is not None]
        return torch.stack(there).sum(dim=0) / len(self._coders) if there else None

    def abandon(self) -> None:
        """The optimizer has its settings again; velocities are lost. For after an error, when ranks cannot agree."""
        if self._moved is not None:
            self._moved.give_back({})
            self._moved = None

    def _flat(self, i: int, tensor: Tensor) -> Tensor:
        p = self._list[i]
        if not self._by_memory:
            return tensor.float().flatten()
        whole = torch.empty_like(p, dtype=torch.float32).copy_(tensor)
        return whole.as_strided((p.numel(),), (1,)).clone()

    def _shaped(self, i: int, flat: Tensor) -> Tensor:
        p = self._list[i]
        if not self._by_memory:
            return flat.view_as(p)
        whole = torch.empty_like(p, dtype=torch.float32)
        whole.as_strided((p.numel(),), (1,)).copy_(flat)
        return whole

    def settings(self) -> list[dict[str, Any]] | None:
        """What ranks must have in common."""
        if self._moved is not None or self._optimizer is None:
            return self._moved.settings() if self._moved is not None else None
        return [{key: group.get(key) for key in _MOVED} for group in self._optimizer.param_groups]

    def problem_with(self, state: Mapping[str, Any]) -> str | None:
        """Why the momentum in a saved state cannot go on here."""
        saved = state["momentum"]
        if saved is None or self._optimizer is None:
            return None
        groups, own = len(saved["groups"]), len(self._optimizer.param_groups)
        if groups == own:
            return None
        return f"it is of an optimizer with {groups} groups, this one has {own}; make the groups as they were"

    def state_dict(self) -> dict[str, Any] | None:
        return self._moved.state_dict() if self._moved is not None else None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Goes on with a state; where momentum is the optimizer's business, that gets back what it was told to be."""
        if state is None:
            return
        if self._moved is not None:
            self._moved.load_state_dict(state)
        elif self._optimizer is not None:
            for group, kept in zip(self._optimizer.param_groups, state["groups"], strict=True):
                group.update(kept)


class MovedMomentum:
    """The momentum of one optimizer, while it is with a method, which adds that of some parameters `at_once`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        at_once: frozenset[int],
        adopt: Callable[[Mapping[int, Tensor]], None],
        check: Callable[[], None],
    ) -> None:
        self._optimizer = optimizer
        self._at_once = at_once
        self._adopt = adopt  # takes the velocities that were the optimizer's, by parameter index
        self._check = check  # raises unless the method can have the momentum that groups hold
        self._index = {id(p): i for i, p in enumerate(parameters)}
        self._kept: list[dict[str, Any]] = []  # of each group, what it was told to be
        self._decay: dict[int, Tensor] = {}  # velocity of weight decay, by parameter index
        self._hooks: list[Any] = []
        self.momenta: dict[int, Momentum] = {}  # by parameter index

    def take(self) -> None:
        """Takes momentum out of the optimizer's groups."""
        self._kept = [{key: group[key] for key in _MOVED} for group in self._optimizer.param_groups]
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_state_dict_post_hook(self._show_saved),
            self._optimizer.register_load_state_dict_post_hook(self._take_settings),
        ]
        self._empty_groups()

    def take_velocities(self) -> None:
        """Takes those that the optimizer has: at first, and after a state that has some was loaded into it."""
        state = self._optimizer.state
        loaded = [p for group in self._optimizer.param_groups for p in group["params"] if "momentum_buffer" in state[p]]
        if loaded:
            self._empty_groups()
            found = {self._index[id(p)]: state[p].pop("momentum_buffer") for p in loaded}
            self._adopt({i: velocity.detach() for i, velocity in found.items() if velocity is not None})

    def _take_settings(self, _: Any) -> None:
        """Groups hold what a checkpoint says of momentum, zeros included: that is what they are told to be now."""
        try:
            self._check()
            self._kept = [{key: group[key] for key in _MOVED} for group in self._optimizer.param_groups]
        finally:
            for group in self._optimizer.param_groups:
                group.update(_NONE)
        self.note_groups()

    def _show_saved(self, _: Any, state: dict[str, Any]) -> None:
        """An optimizer's checkpoint says what groups were told to be, so that any optimizer can go on with it."""
        self.note_groups()
        for group, kept in zip(state["param_groups"], self._kept, strict=False):
            group.update(kept)

    def give_back(self, velocities: Mapping[int, Tensor]) -> None:
        """Ends it: the optimizer has its momentum again, with these velocities."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for group, kept in zip(self._optimizer.param_groups, self._kept, strict=False):
            group.update(kept)
            for p in group["params"]:
                parts = [held[i] for held in (velocities, self._decay) if (i := self._index.get(id(p), -1)) in held]
                if parts and group["momentum"]:
                    self._optimizer.state[p]["momentum_buffer"] = torch.stack(parts).sum(dim=0).to(p.dtype)
        self._decay.clear()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Within it, groups hold what they were told to be."""
        self.note_groups()
        for group, kept in zip(self._optimizer.param_groups, self._kept, strict=False):
            group.update(kept)
        try:
            yield
        finally:
            self._empty_groups()

    def settings(self) -> list[dict[str, Any]]:
        return [dict(kept) for kept in self._kept]

    def note_groups(self) -> None:
        """What groups hold now, they were told since they were emptied: by a scheduler, or with a checkpoint."""
        for group, kept in zip(self._optimizer.param_groups, self._kept, strict=False):
            if group["momentum"] >= 1:
                raise ConfigurationError(f"momentum={group['momentum']} in an optimizer's group: it must be below 1")
            for key in ("momentum", "weight_decay"):
                kept[key] = group[key] or kept[key]
            for p in group["params"]:
                self.momenta[self._index[id(p)]] = Momentum(kept["momentum"], kept["nesterov"])

    def _empty_groups(self) -> None:
        """Notes what groups hold and sets it to nothing."""
        if len(self._optimizer.param_groups) != len(self._kept):
            raise ConfigurationError(
                f"the optimizer has {len(self._optimizer.param_groups)} groups, and had {len(self._kept)} when its "
                "momentum was taken over; detach() before adding one, and attach anew"
            )
        self.note_groups()
        for group in self._optimizer.param_groups:
            group.update(_NONE)

    def _before_step(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Adds weight decay, with its momentum, to the averaged gradients; with a closure, to those that it leaves."""
        self._empty_groups()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._add_all_decay()
            return None

        def with_decay() -> Any:
            loss = closure()
            self._add_all_decay()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": with_decay}
        return (args[0], with_decay, *args[2:]), kwargs

    @torch.no_grad()
    def _add_all_decay(self) -> None:
        for group, kept in zip(self._optimizer.param_groups, self._kept, strict=True):
            for p in group["params"]:
                if p.grad is not None and kept["weight_decay"]:
                    self._add_decay(p, kept)

    def _add_decay(self, p: nn.Parameter, kept: Mapping[str, Any]) -> None:
        decay = kept["weight_decay"] * p.detach()
        momentum, i = kept["momentum"], self._index[id(p)]
        if i in self._at_once:
            decay *= self.momenta[i].upfront
        elif momentum:
            velocity = self._decay.setdefault(i, torch.zeros_like(decay))
            velocity.mul_(momentum).add_(decay)
            decay = decay + momentum * velocity if kept["nesterov"] else velocity
        assert p.grad is not None  # the caller has looked
        p.grad.add_(decay)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs, by parameter index."""
        return {"groups": self.settings(), "decay": {i: velocity.clone() for i, velocity in self._decay.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        parameters = {self._index[id(p)]: p for group in self._optimizer.param_groups for p in group["params"]}
        self._kept = [dict(kept) for kept in state["groups"]]
        self._decay = {i: torch.empty_like(parameters[i]).copy_(found) for i, found in state["decay"].items()}
        self._empty_groups()
