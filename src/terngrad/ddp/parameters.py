"""The parameters of a model that are averaged."""

from __future__ import annotations

from torch import nn


def averaged_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are DDP's business, by their names in the bare model, whether compiled or not."""
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    return {name.replace("_orig_mod.", ""): p for name, p in module.named_parameters() if name not in ignored}
