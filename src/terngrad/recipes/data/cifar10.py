"""CIFAR-10 (Krizhevsky, 2009): 60,000 colour images of 32 x 32 pixels in ten classes, in its "binary version"."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import torch

from terngrad.errors import ConfigurationError
from terngrad.recipes.data.cache import DownloadFailed, Layout, Source, download, renamed_at_the_end
from terngrad.recipes.tasks import Split

ARCHIVE = Source(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), "c32a1d4ab5d03f1284b67883e8d87530")
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
LAYOUT = Layout(
    "CIFAR-10",
    "cifar-10-batches-bin",
    TRAIN + TEST,
    "Unpack the binary version of CIFAR-10, cifar-10-binary.tar.gz, which has them in a folder of that name.",
)
IMAGE_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32  # a label, then red, green and blue


def load_cifar10(root: Path) -> tuple[Split, Split]:
    """Training and test split; images are bytes, N x 3 x 32 x 32."""
    folder = LAYOUT.complete(root, fetch)
    return read_split(folder, TRAIN), read_split(folder, TEST)


def fetch(folder: Path, names: list[str]) -> None:
    """Downloads the archive, takes the named files out of it, and removes it."""
    archive = folder / f"cifar-10-binary.{os.getpid()}.tar.gz"  # several processes may be at it
    download(ARCHIVE, archive)
    try:
        with tarfile.open(archive) as files:
            for name in names:
                extract(files, f"{folder.name}/{name}", folder / name)
    finally:
        archive.unlink(missing_ok=True)


def extract(files: tarfile.TarFile, member: str, target: Path) -> None:
    try:
        content = files.extractfile(member)
    except KeyError:
        content = None
    if content is None:
        raise DownloadFailed(f"the archive holds no file {member}")
    with renamed_at_the_end(target) as partial, partial.open("wb") as file:
        shutil.copyfileobj(content, file)


def read_split(folder: Path, names: tuple[str, ...]) -> Split:
    records = torch.cat([read_records(folder / name) for name in names])
    return Split(records[:, 1:].reshape(-1, *IMAGE_SHAPE), records[:, 0].long())


def read_records(path: Path) -> torch.Tensor:
    content = bytearray(path.read_bytes())
    if not content or len(content) % RECORD_BYTES:
        raise ConfigurationError(
            f"{path}: {len(content)} bytes are no whole number of records of {RECORD_BYTES}; delete it and get it anew"
        )
    return torch.frombuffer(content, dtype=torch.uint8).view(-1, RECORD_BYTES)
