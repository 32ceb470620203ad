"""Small files in the layouts of the public datasets, with contents that tests can foresee."""

from __future__ import annotations

import gzip
import struct
import wave
from pathlib import Path

import torch
from torch import Tensor

NUM_TRAIN = 200
NUM_TEST = 20
WORDS = ("the", "cat", "sat", "on", "<unk>", "mat", ".")


def random_bytes(seed: int, *shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def labels(length: int) -> Tensor:
    return torch.arange(length, dtype=torch.uint8) % 10


def idx(values: Tensor) -> bytes:
    """The idx format, compressed."""
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return gzip.compress(header + values.numpy().tobytes())


def mnist_files() -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte.gz": idx(random_bytes(1, NUM_TRAIN, 28, 28)),
        "train-labels-idx1-ubyte.gz": idx(labels(NUM_TRAIN)),
        "t10k-images-idx3-ubyte.gz": idx(random_bytes(2, NUM_TEST, 28, 28)),
        "t10k-labels-idx1-ubyte.gz": idx(labels(NUM_TEST)),
    }


def cifar_records(seed: int, length: int) -> Tensor:
    return torch.cat([labels(length).unsqueeze(1), random_bytes(seed, length, 3 * 32 * 32)], dim=1)


def cifar10_files() -> dict[str, bytes]:
    train = {f"data_batch_{n}.bin": cifar_records(n, NUM_TRAIN // 5).numpy().tobytes() for n in range(1, 6)}
    return {**train, "test_batch.bin": cifar_records(9, NUM_TEST).numpy().tobytes()}


def wikitext2_files(num_lines: int = 600) -> dict[str, bytes]:
    lines = [" " + " ".join(WORDS[: 2 + number % 6]) + " \n" for number in range(num_lines)]
    valid = [*lines[:100], " the dog sat . \n"]  # "dog" is in no other split
    return {
        f"wiki.{split}.tokens": "".join(part).encode()
        for split, part in (("train", lines), ("valid", valid), ("test", lines[:10]))
    }


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write_wav(path: Path, samples: Tensor, rate: int = 8000, channels: int = 1) -> None:
    """`samples` are from -1 to 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes((samples * 32767).to(torch.int16).numpy().tobytes())


def tone(hertz: float, num_samples: int) -> Tensor:
    return torch.sin(2 * torch.pi * hertz * torch.arange(num_samples) / 8000) / 2


def write_fsdd(root: Path, speakers: tuple[str, ...], num_takes: int, num_samples: int = 1000) -> None:
    """Digit d is a tone of 200 (d + 1) Hz."""
    for digit in range(10):
        sound = tone(200 * (digit + 1), num_samples)
        for speaker in speakers:
            for take in range(num_takes):
                write_wav(root / "fsdd" / "recordings" / f"{digit}_{speaker}_{take}.wav", sound)


def write_all(root: Path) -> None:
    write(root / "MNIST" / "raw", mnist_files())
    write(root / "cifar-10-batches-bin", cifar10_files())
    write(root / "wikitext-2", wikitext2_files())
    write_fsdd(root, ("george", "jackson", "lucas", "nicolas", "theo", "yweweler"), 50, num_samples=200)
