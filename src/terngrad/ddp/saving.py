"""What a handle saves of its coder, how it is put back, and what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from terngrad.methods import Coder

FORMAT = 5

_ENTRIES = (
    "seed", "step", "epoch", "draining", "residuals", "velocities", "densities", "last_norm", "scale", "momentum"
)  # fmt: skip
_ADVICE = {
    "format": "load it with the terngrad that wrote it",
    "method": "attach with, or set_method to, the method that was saved",
    "world_size": "what is held back belongs to a rank; resume with as many, drain() and detach() before saving, or "
    "pass on_resize='reset', which drops it",
    "rank": "every rank loads the state that it saved itself",
}


def problem_with(
    state: Mapping[str, Any], mine: Mapping[str, object], parameters: Mapping[str, nn.Parameter]
) -> str | None:
    """Why a saved state cannot be continued exactly by a handle that has `mine`, or None if it can."""
    residuals = {**state.get("residuals", {}), **state.get("velocities", {})}
    own = bool(residuals or state.get("last_norm"))  # whether it is another one on each rank
    for key in ("format", "method", *(("world_size", "rank") if own else ())):
        if state.get(key) != mine[key]:
            return f"{key} is {state.get(key)!r}, this handle has {mine[key]!r}; {_ADVICE[key]}"
    missing = [key for key in _ENTRIES if key not in state]
    if missing:
        return f"it has no {', '.join(missing)}; load what state_dict() gave, whole"
    unknown = sorted(set(residuals) - set(parameters))
    if unknown:
        return f"residuals of {unknown[:5]}, which this model does not have; load it into the model that wrote it"
    for name, residual in residuals.items():
        if residual.numel() != parameters[name].numel():
            return (
                f"the residual of {name} has {residual.numel()} elements, the parameter has "
                f"{parameters[name].numel()}; load it into the model that wrote it"
            )
    return None


def held_by(coder: Coder) -> dict[str, Any]:
    """The state of a rank, by the names of parameters."""

    def named(by_index: Mapping[int, Any]) -> dict[str, Any]:
        return {coder.parameters[i].name: found for i, found in list(by_index.items())}

    return {
        "draining": coder.draining,
        "residuals": {name: residual.clone() for name, residual in named(coder.residuals).items()},
        "velocities": {name: velocity.clone() for name, velocity in named(coder.velocities).items()},
        "densities": named(coder.densities),
        "last_norm": coder.last_norm,
        "scale": coder.scale,
    }


def restore(
    coder: Coder, state: Mapping[str, Any], parameters: Mapping[str, nn.Parameter], keep_momentum: bool
) -> None:
    """Puts it back, but for what has come from the optimizer's momentum, if that is to be kept."""
    index = {name: i for i, name in enumerate(parameters)}

    def tensors(named: Mapping[str, Any]) -> dict[int, Any]:
        return {index[name]: found.to(parameters[name].device, copy=True) for name, found in named.items()}

    coder.seed = state["seed"]
    coder.draining = state["draining"]
    if not keep_momentum:
        coder.residuals = tensors(state["residuals"])
        coder.velocities = tensors(state["velocities"])
    coder.densities = {index[name]: density for name, density in state["densities"].items()}
    coder.last_norm = state["last_norm"]
    coder.scale = state["scale"]
