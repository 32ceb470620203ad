"""The big nets of the TernGrad paper without residuals, for images of 224 x 224 pixels.

AlexNet in its single-column form (Krizhevsky, 2014), VGG's configuration A (Simonyan and Zisserman, 2014), GoogLeNet
(Szegedy et al., 2014) without its two auxiliary classifiers. Dropout is as in the papers, and is drawn from torch's
global generator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from terngrad.recipes.models.normalization import LocalResponseNorm


def classifier(num_in: int, num_outputs: int) -> list[nn.Module]:
    """The two hidden layers of 4,096 that AlexNet and VGG end with."""
    return [
        nn.Flatten(),
        nn.Linear(num_in, 4096), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(4096, num_outputs),
    ]  # fmt: skip


class AlexNet(nn.Sequential):
    """61,100,840 parameters for a thousand classes."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__(
            nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
            *classifier(256 * 6 * 6, num_outputs),
        )  # fmt: skip


class VGGA(nn.Sequential):
    """Eight convolutions and three fully connected layers: 132,863,336 parameters for a thousand classes."""

    def __init__(self, num_outputs: int) -> None:
        layers: list[nn.Module] = []
        num_in = 3
        for stage in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
            for width in stage:
                layers += [nn.Conv2d(num_in, width, 3, padding=1), nn.ReLU()]
                num_in = width
            layers += [nn.MaxPool2d(2)]
        super().__init__(*layers, *classifier(num_in * 7 * 7, num_outputs))


def convolution(num_in: int, num_out: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(num_in, num_out, size, stride, padding=size // 2), nn.ReLU())


def local_response_norm() -> LocalResponseNorm:
    """AlexNet's own, over 5 channels; GoogLeNet's paper names no numbers."""
    return LocalResponseNorm(5, alpha=1e-4, k=1.0)


class Inception(nn.Module):
    """Four ways through a layer, side by side; `threes` and `fives` are channels before and after the convolution."""

    def __init__(self, num_in: int, ones: int, threes: tuple[int, int], fives: tuple[int, int], pooled: int) -> None:
        super().__init__()
        self.ones = convolution(num_in, ones, 1)
        self.threes = nn.Sequential(convolution(num_in, threes[0], 1), convolution(*threes, 3))
        self.fives = nn.Sequential(convolution(num_in, fives[0], 1), convolution(*fives, 5))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, padding=1), convolution(num_in, pooled, 1))
        self.num_out = ones + threes[1] + fives[1] + pooled

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.ones(x), self.threes(x), self.fives(x), self.pooled(x)], dim=1)


INCEPTIONS = (  # of 28, 14 and 7 pixels, with maxima of 3 x 3 in between
    ((64, (96, 128), (16, 32), 32), (128, (128, 192), (32, 96), 64)),
    (
        (192, (96, 208), (16, 48), 64),
        (160, (112, 224), (24, 64), 64),
        (128, (128, 256), (24, 64), 64),
        (112, (144, 288), (32, 64), 64),
        (256, (160, 320), (32, 128), 128),
    ),
    ((256, (160, 320), (32, 128), 128), (384, (192, 384), (48, 128), 128)),
)


class GoogLeNet(nn.Sequential):
    """Nine inception layers: 6,998,552 parameters for a thousand classes, without auxiliary classifiers."""

    def __init__(self, num_outputs: int) -> None:
        layers: list[nn.Module] = [
            convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), local_response_norm(),
            convolution(64, 64, 1), convolution(64, 192, 3), local_response_norm(),
        ]  # fmt: skip
        num_in = 192
        for stage in INCEPTIONS:
            layers += [nn.MaxPool2d(3, 2, ceil_mode=True)]
            for channels in stage:
                inception = Inception(num_in, *channels)
                layers += [inception]
                num_in = inception.num_out
        super().__init__(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(num_in, num_outputs)
        )
