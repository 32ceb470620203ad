"""The Free Spoken Digit Dataset (Jackson and others): six speakers say each digit 50 times, at 8 kHz.

A recording becomes frames of log-mel features: energies in bands that are even on the mel scale of pitch, every 16 ms.
"""

from __future__ import annotations

import math
import wave
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from terngrad.errors import ConfigurationError
from terngrad.recipes.data.cache import Layout
from terngrad.recipes.tasks import Split

SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
NUM_TAKES = 50
NUM_TEST_TAKES = 5  # the first ones of each speaker and digit are the test split, as published
RATE = 8000  # samples a second

NUM_BANDS = 40
LOWEST_HZ = 60.0
FFT = 512  # samples, of which a window of 32 ms in the middle is not zero
WINDOW = 256
HOP = 128
NUM_FRAMES = 64
NUM_SAMPLES = FFT + (NUM_FRAMES - 1) * HOP  # 1.07 s: longer recordings lose their end
FLOOR = 1e-3  # added to energies: what is below counts as silence
CHUNK = 256  # recordings transformed at a time, to bound memory


def load_fsdd(root: Path, speakers: tuple[str, ...] = SPEAKERS, num_takes: int = NUM_TAKES) -> tuple[Split, Split]:
    """Training and test split; inputs are N x 64 frames x 40 bands, standardised by the training split."""
    names = {
        f"{digit}_{speaker}_{take}.wav": (digit, take)
        for digit in range(10)
        for speaker in speakers
        for take in range(num_takes)
    }
    folder = layout_of(tuple(names)).complete(root)
    recordings = torch.stack([fit(read_wav(folder / name)) for name in names])
    features = torch.cat([log_mel(recordings[at : at + CHUNK]) for at in range(0, len(recordings), CHUNK)])
    labels, takes = torch.tensor(list(names.values())).unbind(dim=1)
    is_test = takes < NUM_TEST_TAKES
    train = features[~is_test]
    features = (features - train.mean(dim=(0, 1))) / train.std(dim=(0, 1))
    return Split(features[~is_test], labels[~is_test]), Split(features[is_test], labels[is_test])


def layout_of(names: tuple[str, ...]) -> Layout:
    return Layout(
        "Free Spoken Digit Dataset",
        "fsdd/recordings",
        names,
        'No archive with a checksum is known. Get the public git repository "free-spoken-digit-dataset" and put its '
        "folder recordings there.",
    )


def read_wav(path: Path) -> Tensor:
    """Samples from -1 to 1."""
    try:
        with wave.open(str(path)) as file:
            kind = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            samples = bytearray(file.readframes(file.getnframes()))
    except (wave.Error, EOFError) as error:
        raise ConfigurationError(f"{path}: not a WAV file ({error}); get it anew") from error
    if kind != (1, 2, RATE) or not samples:
        raise ConfigurationError(
            f"{path}: {len(samples)} bytes of {kind[0]} channels, {kind[1]} bytes a sample, {kind[2]} Hz; it should be "
            f"1 channel, 2 bytes a sample, {RATE} Hz; get it anew"
        )
    return torch.frombuffer(samples, dtype=torch.int16) / 32768


def fit(samples: Tensor) -> Tensor:
    """To one length, silence first, so that a model that reads frame by frame ends with speech."""
    samples = samples[:NUM_SAMPLES]
    return F.pad(samples, (NUM_SAMPLES - len(samples), 0))


def log_mel(recordings: Tensor) -> Tensor:
    """Log energies of samples N x NUM_SAMPLES, as N x frames x bands."""
    spectrum = torch.stft(
        recordings, FFT, HOP, WINDOW, torch.hann_window(WINDOW), center=False, return_complex=True
    )  # N x frequencies x frames
    energies = spectrum.abs().square().transpose(1, 2) @ mel_bands()
    return (energies + FLOOR).log()


def mel_bands() -> Tensor:
    """Weights of each frequency in each band: triangles that overlap by half, even on the mel scale."""
    highest = mel(RATE / 2)
    edges = torch.linspace(mel(LOWEST_HZ), highest, NUM_BANDS + 2)
    edges_hz = 700 * (10 ** (edges / 2595) - 1)
    frequencies = torch.linspace(0, RATE / 2, FFT // 2 + 1).unsqueeze(1)
    lower, peak, upper = edges_hz[:-2], edges_hz[1:-1], edges_hz[2:]
    rising = (frequencies - lower) / (peak - lower)
    falling = (upper - frequencies) / (upper - peak)
    return torch.minimum(rising, falling).clamp(min=0)


def mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)
