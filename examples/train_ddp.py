"""Trains a small convolutional net on scikit-learn's digits, with or without TernGrad.

    torchrun --nproc-per-node 2 examples/train_ddp.py                      plain DistributedDataParallel
    torchrun --nproc-per-node 2 examples/train_ddp.py --method terngrad    gradients sent as ternary codes

The two lines marked "# terngrad" are all that it adds to a script; the rest is plain PyTorch.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import terngrad as tg  # terngrad


class Net(nn.Sequential):
    """conv32, conv64, 256 hidden units: 283,786 parameters for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 4 * 4, 256), nn.ReLU(),
            nn.Linear(256, 10),
        )  # fmt: skip


def load_data() -> tuple[TensorDataset, Tensor, Tensor]:
    """The 1,797 digits, always split in the same way: 1,437 to train on, 360 to test on."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    split = train_test_split(images, torch.tensor(labels), test_size=360, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = split
    return TensorDataset(train_images, train_labels), test_images, test_labels


def train(method: str, epochs: int, seed: int) -> None:
    """Trains this worker's replica; rank 0 reports after every epoch."""
    torch.manual_seed(seed)
    data, test_images, test_labels = load_data()
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data, seed=seed, drop_last=True)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)

    model = DistributedDataParallel(Net())
    handle = None
    if method != "none":
        handle = tg.attach(model, method)  # terngrad

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=epochs * len(loader))
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            accuracy = (model.module(test_images).argmax(dim=1) == test_labels).float().mean().item()
        if dist.get_rank() == 0:
            sent = f", {handle.stats()['ratio']:.1f}x fewer bytes sent" if handle else ""
            print(f"epoch {epoch:2}/{epochs}: accuracy {accuracy:.1%}{sent}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="none", help='"terngrad", "terngrad:block=512", "fp16"...; default: none')
    parser.add_argument("--epochs", type=int, default=15, help="default: 15")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order of images")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(args.method, args.epochs, args.seed)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
