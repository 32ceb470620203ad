"""Small convolutional nets, each as the TernGrad paper names them or smaller."""

from __future__ import annotations

from torch import nn

from terngrad.recipes.models.normalization import LocalResponseNorm


class DigitsNet(nn.Sequential):
    """conv32, conv64, 256 hidden units: 283,786 parameters for images of 8 x 8 pixels and ten classes."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 4 * 4, 256), nn.ReLU(),
            nn.Linear(256, num_outputs),
        )  # fmt: skip


class LeNet(nn.Sequential):
    """Caffe's: 431,080 parameters for 28 x 28 pixels and ten classes; between convolutions it has maxima only.

    Its biases learn at the rate of its weights, not at twice that.
    """

    def __init__(self, num_outputs: int) -> None:
        super().__init__(
            nn.Conv2d(1, 20, 5), nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(50 * 4 * 4, 500), nn.ReLU(),
            nn.Linear(500, num_outputs),
        )  # fmt: skip
        for layer in self:
            if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
                bound = (3 / layer.weight[0].numel()) ** 0.5  # Caffe's "xavier" looks at the inputs only
                nn.init.uniform_(layer.weight, -bound, bound)
                nn.init.zeros_(layer.bias)


class CifarNet(nn.Sequential):
    """TensorFlow's tutorial net for CIFAR-10: 1,068,298 parameters for 24 x 24 pixels and ten classes."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__(
            nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1), local_response_norm(),
            nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), local_response_norm(), nn.MaxPool2d(3, 2, padding=1),
            nn.Flatten(), nn.Linear(64 * 6 * 6, 384), nn.ReLU(),
            nn.Linear(384, 192), nn.ReLU(),
            nn.Linear(192, num_outputs),
        )  # fmt: skip


def local_response_norm() -> LocalResponseNorm:
    """Over 9 channels. Their mean, not their sum, is taken, which makes alpha the tutorial's 0.001 / 9."""
    return LocalResponseNorm(9, alpha=0.001, k=1.0)
