"""Residual networks (He et al., 2015): ResNet-20 for CIFAR-10 and ResNet-50 for ImageNet."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def convolution(num_in: int, num_out: int, size: int, stride: int = 1) -> nn.Sequential:
    """With batch normalisation in place of a bias."""
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(num_out)
    )


def initialize(model: nn.Module) -> None:
    """He initialisation of all convolutions."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class PaddedShortcut(nn.Module):
    """The paper's option A, which has no parameters: every other pixel, and zeros for the new channels."""

    def __init__(self, num_new: int, stride: int) -> None:
        super().__init__()
        self.num_new = num_new
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.num_new))


class Residual(nn.Module):
    """A block's convolutions, added to its shortcut."""

    def __init__(self, block: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.block(x) + self.shortcut(x))


def basic(num_in: int, num_out: int, stride: int) -> Residual:
    """Two convolutions of 3 x 3."""
    block = nn.Sequential(convolution(num_in, num_out, 3, stride), nn.ReLU(), convolution(num_out, num_out, 3))
    same = stride == 1 and num_in == num_out
    return Residual(block, nn.Identity() if same else PaddedShortcut(num_out - num_in, stride))


def bottleneck(num_in: int, width: int, stride: int) -> Residual:
    """1 x 1, 3 x 3 with the stride, and 1 x 1 to four times the width; a projection where shapes differ."""
    num_out = 4 * width
    block = nn.Sequential(
        convolution(num_in, width, 1), nn.ReLU(),
        convolution(width, width, 3, stride), nn.ReLU(),
        convolution(width, num_out, 1),
    )  # fmt: skip
    return Residual(block, nn.Identity() if num_in == num_out else convolution(num_in, num_out, 1, stride))


class ResNet20(nn.Sequential):
    """Three stages of three basic blocks, 16, 32 and 64 channels: 269,722 parameters for ten classes."""

    def __init__(self, num_outputs: int) -> None:
        layers: list[nn.Module] = [convolution(3, 16, 3), nn.ReLU()]
        num_in = 16
        for width, stride in ((16, 1), (32, 2), (64, 2)):
            layers += [basic(num_in, width, stride), basic(width, width, 1), basic(width, width, 1)]
            num_in = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_outputs))
        initialize(self)


class ResNet50(nn.Sequential):
    """Four stages of bottlenecks: 25,557,032 parameters for a thousand classes."""

    def __init__(self, num_outputs: int) -> None:
        layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        num_in = 64
        for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            layers += [bottleneck(num_in, width, stride)]
            num_in = 4 * width
            layers += [bottleneck(num_in, width, 1) for _ in range(depth - 1)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_in, num_outputs))
        initialize(self)
