"""The recipes. What each was measured to reach, and where it differs from its paper, is in docs/recipes.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from terngrad.recipes import images
from terngrad.recipes.base import Optimizer, Recipe, Task
from terngrad.recipes.data.cifar10 import load_cifar10
from terngrad.recipes.data.digits import load_digits
from terngrad.recipes.data.fsdd import NUM_BANDS, load_fsdd
from terngrad.recipes.data.mnist import load_mnist
from terngrad.recipes.data.synthetic import NUM_CLASSES, make_noise
from terngrad.recipes.data.wikitext2 import load_wikitext2
from terngrad.recipes.models.convnets import CifarNet, DigitsNet, LeNet
from terngrad.recipes.models.imagenet import VGGA, AlexNet, GoogLeNet
from terngrad.recipes.models.recurrent import GRUClassifier, LSTMLanguageModel
from terngrad.recipes.models.resnet import ResNet20, ResNet50
from terngrad.recipes.models.transformer import GPT
from terngrad.recipes.tasks import Classification, LanguageModelling

LSTM_WINDOW = 35  # words
GPT_WINDOW = 64
VALID_WORDS = 8 * 35 * 64  # the first ones of the validation split's 217,646, on which perplexity is measured


def read_digits(_root: Path) -> Task:
    return Classification(*load_digits(), num_outputs=10, prepare=images.as_they_are)


def read_mnist(root: Path) -> Task:
    return Classification(*load_mnist(root), num_outputs=10, prepare=images.from_zero_to_one)


def read_cifar10_for_cifarnet(root: Path) -> Task:
    prepare, augment = images.central_crop_standardized, images.distort
    return Classification(*load_cifar10(root), num_outputs=10, prepare=prepare, augment=augment)


def read_cifar10_for_resnet(root: Path) -> Task:
    prepare, augment = images.standardize_colours, images.crop_and_flip
    return Classification(*load_cifar10(root), num_outputs=10, prepare=prepare, augment=augment)


def read_fsdd(root: Path) -> Task:
    return Classification(*load_fsdd(root), num_outputs=10, prepare=images.as_they_are)


def read_wikitext2(root: Path, window: int) -> Task:
    text = load_wikitext2(root)
    return LanguageModelling(text.train, text.valid, text.num_words, window, VALID_WORDS // window)


def read_noise(_root: Path) -> Task:
    """Evaluated on what it is trained on, since there is nothing to learn."""
    noise = make_noise()
    return Classification(noise, noise, NUM_CLASSES, prepare=images.from_minus_one_to_one)


def speed_only(name: str, summary: str, build: Callable[[int], nn.Module]) -> Recipe:
    return Recipe(
        name=name,
        summary=summary,
        metric="",
        target=None,
        batch=16,
        steps=20,
        eval_every=0,
        optimizer=Optimizer("sgd", lr=0.01, momentum=0.9, weight_decay=5e-4),
        schedule="constant",
        vectorizes=False,
        read=read_noise,
        build=build,
    )


ALL = (
    Recipe(
        name="digits",
        summary="a small convolutional net on scikit-learn's digits; needs no download",
        metric="accuracy",
        target=0.97,
        batch=64,
        steps=500,
        eval_every=25,
        optimizer=Optimizer("sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule="cosine",
        vectorizes=True,
        read=read_digits,
        build=DigitsNet,
    ),
    Recipe(
        name="lenet-mnist",
        summary="Caffe's LeNet on MNIST, as in the TernGrad paper",
        metric="accuracy",
        target=0.99,
        batch=64,
        steps=10_000,
        eval_every=250,
        optimizer=Optimizer("sgd", lr=0.01, momentum=0.9, weight_decay=5e-4),
        schedule="poly",
        vectorizes=True,
        read=read_mnist,
        build=LeNet,
    ),
    Recipe(
        name="cifarnet-cifar10",
        summary="TensorFlow's CifarNet on CIFAR-10, as in the TernGrad paper but for far fewer steps",
        metric="accuracy",
        target=0.60,
        batch=128,
        steps=2_000,
        eval_every=200,
        optimizer=Optimizer("adam", lr=2e-4, weight_decay=0.004),
        schedule="constant",
        vectorizes=True,
        read=read_cifar10_for_cifarnet,
        build=CifarNet,
    ),
    Recipe(
        name="resnet20-cifar10",
        summary="ResNet-20 on CIFAR-10",
        metric="accuracy",
        target=0.75,
        batch=128,
        steps=2_000,
        eval_every=200,
        optimizer=Optimizer("sgd", lr=0.1, momentum=0.9, weight_decay=1e-4),
        schedule="cosine",
        vectorizes=False,
        read=read_cifar10_for_resnet,
        build=ResNet20,
    ),
    Recipe(
        name="lstm-wikitext2",
        summary="an LSTM of two layers on the words of WikiText-2",
        metric="perplexity",
        target=400.0,
        batch=16,
        steps=1_500,
        eval_every=100,
        optimizer=Optimizer("sgd", lr=20.0, clip_norm=0.25),
        schedule="cosine",
        vectorizes=False,
        read=partial(read_wikitext2, window=LSTM_WINDOW),
        build=partial(LSTMLanguageModel, width=128, num_layers=2),
    ),
    Recipe(
        name="gpt-wikitext2",
        summary="a transformer of four layers on the words of WikiText-2",
        metric="perplexity",
        target=400.0,
        batch=16,
        steps=800,
        eval_every=50,
        optimizer=Optimizer("adam", lr=1e-3, clip_norm=1.0),
        schedule="warmup-cosine",
        vectorizes=True,
        read=partial(read_wikitext2, window=GPT_WINDOW),
        build=partial(GPT, width=128, num_heads=4, num_layers=4, context=GPT_WINDOW),
    ),
    Recipe(
        name="gru-fsdd",
        summary="a GRU on the spoken digits of six speakers",
        metric="accuracy",
        target=0.98,
        batch=64,
        steps=500,
        eval_every=25,
        optimizer=Optimizer("adam", lr=2e-3, clip_norm=1.0),
        schedule="cosine",
        vectorizes=False,
        read=read_fsdd,
        build=partial(GRUClassifier, num_features=NUM_BANDS, width=128, num_layers=2),
    ),
    speed_only("alexnet", "AlexNet, 61.1 million parameters, on noise: speed only", AlexNet),
    speed_only("vgg-a", "VGG-A, 132.9 million parameters, on noise: speed only", VGGA),
    speed_only("googlenet", "GoogLeNet, 7.0 million parameters, on noise: speed only", GoogLeNet),
    speed_only("resnet50", "ResNet-50, 25.6 million parameters, on noise: speed only", ResNet50),
)

RECIPES = {recipe.name: recipe for recipe in ALL}
