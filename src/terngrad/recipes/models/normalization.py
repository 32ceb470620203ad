"""Local response normalisation (Krizhevsky et al., 2012) over neighbouring channels.

The same as torch's, which on CPU takes a third of the time of CifarNet: sums over neighbours are a product with a band
matrix here, and the exponent is always 3/4.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LocalResponseNorm(nn.Module):
    """x / (k + alpha * mean of the squares of `size` neighbouring channels)^(3/4); `size` must be odd."""

    def __init__(self, size: int, alpha: float, k: float) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        # Made anew each time, for it costs nothing: as a buffer it would be sent to all workers in every step.
        channels = torch.arange(x.shape[-3], device=x.device)
        is_near = (channels - channels.unsqueeze(1)).abs() <= self.size // 2
        sums = is_near.to(x.dtype) @ x.square().flatten(-2)
        root = (self.k + self.alpha / self.size * sums).rsqrt().view_as(x)
        return x * (root * root.sqrt())
