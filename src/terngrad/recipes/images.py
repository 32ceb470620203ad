"""From stored images to what a model sees. Every function takes a whole batch; random ones also take a generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

CIFAR_MEAN = (125.3, 123.0, 113.9)  # of each colour over the training images
CIFAR_STD = (63.0, 62.1, 66.7)
CIFARNET_SIZE = 24  # pixels that CifarNet sees of 32
MAX_BRIGHTNESS = 63.0  # of 255, in either direction
CONTRAST = (0.2, 1.8)


def as_they_are(images: Tensor) -> Tensor:
    return images


def from_zero_to_one(images: Tensor) -> Tensor:
    """Bytes divided by 256, as Caffe's LeNet has them."""
    return images.float().div_(256)


def from_minus_one_to_one(images: Tensor) -> Tensor:
    return images.float().sub_(127.5).div_(127.5)


def standardize_colours(images: Tensor) -> Tensor:
    """CIFAR-10's, by the mean and standard deviation of each colour in the training split."""
    mean, std = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in (CIFAR_MEAN, CIFAR_STD))
    return images.float().sub_(mean).div_(std)


def crop_and_flip(images: Tensor, generator: Generator) -> Tensor:
    """He et al.'s augmentation of CIFAR-10: standardized, padded by 4 on each side, cropped to 32 x 32, flipped."""
    padded = F.pad(standardize_colours(images), (4, 4, 4, 4))
    return random_flip(random_crop(padded, images.shape[-1], generator), generator)


def central_crop_standardized(images: Tensor) -> Tensor:
    """What CifarNet is evaluated on: the 24 x 24 pixels in the middle."""
    margin = (images.shape[-1] - CIFARNET_SIZE) // 2
    inside = slice(margin, margin + CIFARNET_SIZE)
    return standardize_each(images[..., inside, inside].float())


def distort(images: Tensor, generator: Generator) -> Tensor:
    """What CifarNet is trained on: random crops and flips, other brightness and contrast, standardized."""
    cropped = random_flip(random_crop(images, CIFARNET_SIZE, generator), generator).float()
    brightness = uniform(-MAX_BRIGHTNESS, MAX_BRIGHTNESS, cropped, generator)
    return standardize_each(change_contrast(cropped + brightness, uniform(*CONTRAST, cropped, generator)))


def random_crop(images: Tensor, size: int, generator: Generator) -> Tensor:
    num_positions = images.shape[-1] - size + 1
    top, left = torch.randint(num_positions, (2, len(images)), generator=generator).to(images.device)
    crops = images.unfold(2, size, 1).unfold(3, size, 1)  # a view, N x colours x top x left x size x size
    return crops[torch.arange(len(images), device=images.device), :, top, left]


def random_flip(images: Tensor, generator: Generator) -> Tensor:
    """Left and right exchanged in every other image, by chance."""
    flipped = torch.rand(len(images), 1, 1, 1, generator=generator).to(images.device) < 0.5
    return torch.where(flipped, images.flip(3), images)


def change_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Distances from the mean of each colour, times the image's factor."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return torch.lerp(mean, images, factors)


def standardize_each(images: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 for each image; a flat image is not amplified."""
    num_values = images[0].numel()
    std, mean = torch.std_mean(images, dim=(1, 2, 3), correction=0, keepdim=True)
    return (images - mean) / std.clamp(min=num_values**-0.5)


def uniform(low: float, high: float, like: Tensor, generator: Generator) -> Tensor:
    """A number for each image."""
    return torch.rand(len(like), 1, 1, 1, generator=generator).to(like.device).mul_(high - low).add_(low)
