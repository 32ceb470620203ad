"""The entropy coder's part of bench_kernels.py: speed, and bits for each value next to Shannon's limit.

Independent values of a given density: as base3 bytes, and as the sums of N workers. The limit is the entropy of the
values as they fell, and so is what no coder of order zero can go below; bits include tables, states and four bytes for
the length of each stream. Everything coded is decoded and compared before anything is timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import measure
import numpy as np
import torch
from torch import Tensor

from terngrad.kernels import Kernels, cut_streams, entropy_bound, symbol_digits

DENSITIES = (0.01, 0.1, 0.35)
SUMS = (2, 4, 8)
SUM_DENSITY = 0.1
COPY = "copy"
TARGET_GB_PER_S = 4.0  # of the fp32 gradient that the symbols stand for
TARGET_OVER_LIMIT = 1.03


@dataclass(frozen=True)
class Source:
    """Symbols of independent values."""

    symbols: Tensor
    numel: int
    radix: int
    digits: int
    limit_bits: float  # for each value


def _entropy(values: np.ndarray[Any, np.dtype[np.int8]]) -> float:
    shares = np.unique(values, return_counts=True)[1] / values.size
    return float(-(shares * np.log2(shares)).sum())


def make_source(num_payloads: int, density: float, numel: int, seed: int) -> Source:
    """The sum of as many ternary codes; one is the code itself."""
    random = np.random.default_rng(seed)
    radix, digits = 2 * num_payloads + 1, symbol_digits(num_payloads)
    numel = -(-numel // digits) * digits
    values = np.full(numel, num_payloads, dtype=np.int8)
    for _ in range(num_payloads):
        draws = random.random(numel, dtype=np.float32)
        values += (draws < density / 2).astype(np.int8)
        values -= (draws >= 1 - density / 2).astype(np.int8)
    symbols = np.zeros(numel // digits, dtype=np.uint8)
    for column in values.reshape(-1, digits).T:
        symbols = symbols * np.uint8(radix) + column.astype(np.uint8)
    return Source(torch.from_numpy(symbols), numel, radix, digits, _entropy(values))


def sources(numel: int, seed: int) -> dict[str, Source]:
    """Everything that is timed, by name."""
    found = {f"base3, {density:.0%}": make_source(1, density, numel, seed) for density in DENSITIES}
    return found | {f"sums of {n}, {SUM_DENSITY:.0%}": make_source(n, SUM_DENSITY, numel, seed) for n in SUMS}


class Coding:
    """One source with its buffers, encoded, and known to come back as it was."""

    def __init__(self, kernels: Kernels, source: Source) -> None:
        self.kernels, self.source = kernels, source
        self.spans = cut_streams(0, len(source.symbols))
        self.target = torch.zeros(entropy_bound(self.spans), dtype=torch.uint8)
        self.found = torch.zeros_like(source.symbols)
        self.lengths = self.encode()
        assert self.decode(), "a stream is refused; nothing is timed"
        assert torch.equal(self.found, source.symbols), "symbols do not come back; nothing is timed"

    def encode(self) -> Any:
        return self.kernels.entropy_encode(
            self.source.symbols, self.spans, self.source.radix, self.source.digits, self.target
        )

    def decode(self) -> bool:
        return self.kernels.entropy_decode(
            self.target, self.lengths, self.spans, self.source.radix, self.source.digits, self.found
        )

    @property
    def bits(self) -> float:
        """For each value, everything included."""
        return float(8 * (self.lengths.sum() + 4 * len(self.lengths)) / self.source.numel)


def time_coder(kernels: Kernels, numel: int, repeats: int, seed: int) -> dict[str, Any]:
    """Of each source: milliseconds, GB of fp32 gradient a second, ratio to a copy of that gradient; bits and limit."""
    codings = {name: Coding(kernels, source) for name, source in sources(numel, seed).items()}
    gradient, copy = torch.ones(numel), torch.zeros(numel)
    candidates: dict[str, Any] = {COPY: lambda: copy.copy_(gradient)}
    for name, coding in codings.items():
        candidates |= {f"encode {name}": coding.encode, f"decode {name}": coding.decode}
    times = measure.interleave(candidates, repeats)
    return {name: _result(name, coding, times) for name, coding in codings.items()}


def _result(name: str, coding: Coding, times: dict[str, list[float]]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "bits_per_value": coding.bits,
        "limit_bits_per_value": coding.source.limit_bits,
        "over_limit": coding.bits / coding.source.limit_bits,
        "symbol_bytes": len(coding.source.symbols),
        "coded_bytes": int(coding.lengths.sum()),
    }
    for what in ("encode", "decode"):
        seconds = times[f"{what} {name}"]
        result[what] = {
            "ms": {key: 1e3 * value for key, value in measure.spread(seconds).items()},
            "ratio": measure.ratios(seconds, times[COPY]),
            "gradient_gb_per_s": 4e-9 * coding.source.numel / measure.spread(seconds)["median"],
        }
    return result


def print_results(title: str, results: dict[str, Any]) -> None:
    rows = [
        (
            name,
            *(
                cell
                for what in ("encode", "decode")
                for cell in (
                    f"{found[what]['ms']['median']:.2f}",
                    f"{found[what]['ratio']['median']:.2f}",
                    f"{found[what]['gradient_gb_per_s']:.1f}",
                )
            ),
            f"{found['bits_per_value']:.4f}",
            f"{found['limit_bits_per_value']:.4f}",
            f"{100 * (found['over_limit'] - 1):+.2f} %",
            _verdict(found),
        )
        for name, found in results.items()
    ]
    speeds = ("encode ms", "x copy", "GB/s", "decode ms", "x copy", "GB/s")
    columns = ("symbols", *speeds, "bits", "limit", "over", "targets")
    measure.print_table(title, columns, rows)


def _verdict(found: dict[str, Any]) -> str:
    slowest = min(found[what]["gradient_gb_per_s"] for what in ("encode", "decode"))
    speed = measure.verdict(slowest, TARGET_GB_PER_S, at_least=True)
    return f"{speed}, {measure.verdict(found['over_limit'], TARGET_OVER_LIMIT)}"
