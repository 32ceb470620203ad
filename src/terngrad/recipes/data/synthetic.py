"""Noise in the shape of ImageNet, for the speed of big models: there is nothing to learn in it."""

from __future__ import annotations

import torch

from terngrad.recipes.draws import Purpose, generator_of
from terngrad.recipes.tasks import Split

NUM_IMAGES = 256
NUM_CLASSES = 1000
IMAGE_SHAPE = (3, 224, 224)


def make_noise(num_images: int = NUM_IMAGES) -> Split:
    """The same images and labels every time; images are bytes."""
    generator = generator_of(Purpose.SYNTHESIS, num_images)
    images = torch.randint(256, (num_images, *IMAGE_SHAPE), generator=generator, dtype=torch.uint8)
    return Split(images, torch.randint(NUM_CLASSES, (num_images,), generator=generator))
