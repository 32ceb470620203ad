"""The parameters of a model, as methods see them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from terngrad.methods import ParameterInfo


def averaged_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are DDP's business, by their names in the bare model, whether compiled or not."""
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    return {name.replace("_orig_mod.", ""): p for name, p in module.named_parameters() if name not in ignored}


def describe(parameters: Mapping[str, nn.Parameter]) -> list[ParameterInfo]:
    """All parameters in the order of registration; the last layer is the module that owns the last of them."""
    last = list(parameters)[-1].rpartition(".")[0] if parameters else ""
    return [ParameterInfo(name, p.numel(), name.rpartition(".")[0] == last, p.dim()) for name, p in parameters.items()]
