"""The kernels of every backend, for tests that compare them."""

from __future__ import annotations

import torch

from terngrad.kernels import Kernels, backend, kernels_for, set_backend


def named(name: str, threads: int = 1) -> Kernels:
    """The kernels of a backend, which is not left in place."""
    before = backend()
    set_backend(name, threads)
    kernels = kernels_for(torch.device("cpu"))
    set_backend(before)
    return kernels
