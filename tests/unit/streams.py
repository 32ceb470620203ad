"""Made-up symbols for the tests of the entropy coder."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from terngrad.kernels import (
    Kernels,
    backends,
    cut_streams,
    entropy_bound,
    symbol_digits,
)
from terngrad.kernels.layout import Int64Array

NATIVE = [name for name in backends() if name.startswith("native:")]
TERNARY = (3, 5)  # radix and digits of base3 bytes
ALPHABETS = (TERNARY, (5, 3), (9, 2), (15, 2), (17, 1), (255, 1), (256, 1), (2, 8), (2, 1))
LENGTHS = (0, 1, 7, 8, 9, 15, 16, 17, 36, 37, 63, 64, 65, 200, 0, 1000, 1023, 5003)


def pack(digits: Tensor, radix: int, num_digits: int) -> Tensor:
    """Consecutive digits as symbols, the first the most significant."""
    weights = torch.tensor([radix ** (num_digits - 1 - k) for k in range(num_digits)])
    return (digits.view(-1, num_digits) * weights).sum(dim=1).to(torch.uint8)


def ternary_values(numel: int, density: float, seed: int = 0, positive: float = 0.5) -> Tensor:
    """Independent values -1, 0, +1, of which `density` are not zero and `positive` of these above it."""
    generator = torch.Generator().manual_seed(seed)
    sent = torch.rand(numel, generator=generator) < density
    signs = torch.where(torch.rand(numel, generator=generator) < positive, 1, -1)
    return sent * signs


def ternary_symbols(num_symbols: int, density: float, seed: int = 0, positive: float = 0.5) -> Tensor:
    return pack(ternary_values(5 * num_symbols, density, seed, positive) + 1, *TERNARY)


def sum_values(numel: int, num_payloads: int, density: float) -> Tensor:
    return torch.stack([ternary_values(numel, density, seed) for seed in range(num_payloads)]).sum(dim=0)


def sum_alphabet(num_payloads: int) -> tuple[int, int]:
    return 2 * num_payloads + 1, symbol_digits(num_payloads)


def skewed_symbols(num_symbols: int, radix: int, digits: int, skew: float, seed: int = 0) -> Tensor:
    """Independent symbols, the smaller the likelier; all equally likely for a skew of one."""
    draws = torch.rand(num_symbols, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (draws**skew * radix**digits).to(torch.uint8)


def spans_of(*lengths: int, gap: int = 3) -> Int64Array:
    """Spans of these lengths, with symbols between them that belong to none."""
    first = np.cumsum([gap, *(length + gap for length in lengths)])[:-1]
    return np.stack([first, lengths], axis=1).astype(np.int64).reshape(-1, 2)


def room_for(spans: Int64Array) -> int:
    return int(spans.sum(axis=1).max(initial=0)) + 3


def encode(
    kernels: Kernels, symbols: Tensor, radix: int, digits: int, spans: Int64Array | None = None
) -> tuple[Tensor, Int64Array]:
    """The streams of all symbols, or of spans, and their lengths."""
    spans = cut_streams(0, len(symbols)) if spans is None else spans
    target = torch.zeros(entropy_bound(spans), dtype=torch.uint8)
    lengths = kernels.entropy_encode(symbols, spans, radix, digits, target)
    return target[: int(lengths.sum())].clone(), lengths


def decode(
    kernels: Kernels, payload: Tensor, lengths: Int64Array, spans: Int64Array, radix: int, digits: int
) -> Tensor | None:
    """The symbols, zeros outside the spans; None if the streams were refused."""
    symbols = torch.zeros(room_for(spans), dtype=torch.uint8)
    return symbols if kernels.entropy_decode(payload, lengths, spans, radix, digits, symbols) else None


def inside(symbols: Tensor, spans: Int64Array) -> Tensor:
    """A copy with zeros outside the spans."""
    kept = torch.zeros(room_for(spans), dtype=torch.uint8)
    for first, length in spans.tolist():
        kept[first : first + length] = symbols[first : first + length]
    return kept


def bits_of(values: Tensor) -> float:
    """Shannon's limit for these values if they are independent: bits for each, by the frequencies they have."""
    _, counts = values.unique(return_counts=True)
    shares = counts.double() / values.numel()
    return float(-(shares * shares.log2()).sum())
