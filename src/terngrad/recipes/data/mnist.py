"""MNIST (LeCun, Cortes, Burges): 70,000 handwritten digits of 28 x 28 pixels, as four compressed idx files."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from terngrad.errors import ConfigurationError
from terngrad.recipes.data.cache import Layout, Source, download
from terngrad.recipes.tasks import Split

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
LAYOUT = Layout(
    "MNIST",
    "MNIST/raw",
    tuple(MD5),
    "Put the four original files there, compressed as they are published.",
)
UNSIGNED_BYTES = 8  # the type in an idx header


def load_mnist(root: Path) -> tuple[Split, Split]:
    """Training and test split; images are bytes, N x 1 x 28 x 28."""
    folder = LAYOUT.complete(root, fetch)
    return read_split(folder, "train"), read_split(folder, "t10k")


def fetch(folder: Path, names: list[str]) -> None:
    for name in names:
        download(Source(tuple(mirror + name for mirror in MIRRORS), MD5[name]), folder / name)


def read_split(folder: Path, prefix: str) -> Split:
    images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", num_dimensions=3)
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", num_dimensions=1)
    if len(images) != len(labels):
        raise ConfigurationError(
            f"{folder}: {len(images)} {prefix} images but {len(labels)} labels; get the files anew"
        )
    return Split(images.unsqueeze(1), labels.long())


def read_idx(path: Path, num_dimensions: int) -> Tensor:
    """Bytes in their shape. Header, big-endian: two zeros, type, number of dimensions, then each dimension."""
    try:
        content = bytearray(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path}: not a complete gzip file ({error}); delete it and get it anew") from error
    header = 4 + 4 * num_dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    if content[:4] != bytes((0, 0, UNSIGNED_BYTES, num_dimensions)) or len(content) != header + math.prod(shape):
        raise ConfigurationError(
            f"{path}: {len(content)} bytes that begin with {content[:4].hex()} are no idx file of bytes with "
            f"{num_dimensions} dimensions; delete it and get it anew"
        )
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).view(shape)
