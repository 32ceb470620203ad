"""Trains a small convolutional net on scikit-learn's digits, with or without TernGrad.

    torchrun --nproc-per-node 2 examples/train_ddp.py                      plain DistributedDataParallel
    torchrun --nproc-per-node 2 examples/train_ddp.py --method terngrad    gradients sent as ternary codes
    python examples/train_ddp.py --compare                                 both, one after the other, and a table

The two lines marked "# terngrad" are all that it adds to a script; the rest is plain PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import terngrad as tg  # terngrad


@dataclass
class Report:
    """How training stands after an epoch, seen from rank 0."""

    epoch: int
    accuracy: float  # on the test images
    bytes_per_step: float  # sent by one worker
    seconds_per_step: float  # median


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


def ring_bytes(model: nn.Module) -> float:
    """What one worker sends in a step of plain DDP: a ring all-reduce of the fp32 gradient."""
    return 2 * (1 - 1 / dist.get_world_size()) * 4 * sum(p.numel() for p in model.parameters())


def train(method: str, epochs: int, seed: int) -> Iterator[Report]:
    """Trains this worker's replica, and reports after every epoch."""
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
    seconds = []
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            start = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            schedule.step()
            seconds.append(time.perf_counter() - start)
        with torch.no_grad():
            accuracy = (model.module(test_images).argmax(dim=1) == test_labels).float().mean().item()
        bytes_per_step = handle.stats()["bytes_sent"] / len(seconds) if handle else ring_bytes(model)
        yield Report(epoch, accuracy, bytes_per_step, statistics.median(seconds))


def work(method: str, epochs: int, seed: int, as_json: bool) -> None:
    """What each process that torchrun starts does; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for report in train(method, epochs, seed):
        if dist.get_rank() == 0:
            print(json.dumps(asdict(report)) if as_json else describe(method, report, epochs), flush=True)
    dist.destroy_process_group()


def describe(method: str, report: Report, epochs: int) -> str:
    return (
        f"{method}: epoch {report.epoch:2}/{epochs}, accuracy {report.accuracy:.1%}, "
        f"{report.bytes_per_step:,.0f} bytes a step, {report.seconds_per_step * 1e3:.1f} ms a step"
    )


def launch(method: str, workers: int, epochs: int, seed: int) -> Iterator[Report]:
    """Starts this script under torchrun and passes on what its rank 0 reports."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}", __file__]
    command += [f"--method={method}", f"--epochs={epochs}", f"--seed={seed}", "--json"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield Report(**json.loads(line))
    if process.returncode != 0:
        raise SystemExit(f"{method}: the workers failed with exit code {process.returncode}; see their error above")


def compare(methods: list[str], workers: int, epochs: int, seed: int) -> None:
    """Trains once with each method, the first being what the others are compared with, and prints a table."""
    console = Console(highlight=False)
    last: dict[str, Report] = {}
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bars = {method: progress.add_task(f"{method:>10}", total=epochs) for method in methods}
        for method in methods:
            for report in launch(method, workers, epochs, seed):
                last[method] = report
                progress.update(bars[method], completed=report.epoch)
                if not console.is_terminal:
                    print(describe(method, report, epochs), flush=True)
    baseline = last[methods[0]]
    table = Table(title=f"{workers} workers, {epochs} epochs of the digits")
    for heading in ("method", "test accuracy", "bytes sent per step", "ratio", "ms per step"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method, report in last.items():
        table.add_row(
            "plain DDP (fp32)" if method == "none" else method,
            f"{report.accuracy:.1%}",
            f"{report.bytes_per_step:,.0f}",
            f"{baseline.bytes_per_step / report.bytes_per_step:.1f}x",
            f"{report.seconds_per_step * 1e3:.1f}",
        )
    console.print(table)
    console.print(
        "Bytes are per worker: counted by handle.stats(); for plain DDP, which counts none, those of a ring "
        "all-reduce.\nAll workers share this machine, so sending costs next to nothing here; the gain is on a network.",
        soft_wrap=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="none", help='"terngrad", "terngrad:block=512", "fp16"...; default: none')
    parser.add_argument("--compare", action="store_true", help="start the workers here, without and with TernGrad")
    parser.add_argument("--workers", type=int, default=2, help="how many workers --compare starts (default: 2)")
    parser.add_argument("--epochs", type=int, default=15, help="default: 15")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order of images")
    parser.add_argument("--json", action="store_true", help="print reports as JSON, one a line")
    args = parser.parse_args()
    if args.compare:
        other = "terngrad" if args.method == "none" else args.method
        compare(["none", other], args.workers, args.epochs, args.seed)
    elif "RANK" not in os.environ:
        parser.error("start it with torchrun --nproc-per-node 2, or pass --compare")
    else:
        work(args.method, args.epochs, args.seed, args.json)


if __name__ == "__main__":
    main()
