"""scikit-learn's digits: 1,797 handwritten digits of 8 x 8 pixels, which come with that package."""

from __future__ import annotations

import torch

from terngrad.recipes.data.cache import DataMissing
from terngrad.recipes.tasks import Split

NUM_TEST = 360


def load_digits() -> tuple[Split, Split]:
    """Always split in the same way, with the classes in proportion; images are from 0 to 1, N x 1 x 8 x 8."""
    try:
        from sklearn import datasets, model_selection
    except ImportError as error:
        raise DataMissing(f"the digits come with scikit-learn, which is not installed ({error}); install it") from error
    pixels, classes = datasets.load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(classes)
    train, test = model_selection.train_test_split(
        torch.arange(len(labels)), test_size=NUM_TEST, random_state=0, stratify=classes
    )
    return Split(images[train], labels[train]), Split(images[test], labels[test])
