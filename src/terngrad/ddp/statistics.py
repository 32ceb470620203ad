"""What a handle reports: counted bytes and measured seconds, never arithmetic about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from terngrad.ddp.phases import Phases
from terngrad.ddp.scratch import Scratch
from terngrad.exchange import Channel
from terngrad.methods import Coder
from terngrad.methods.coder import Measured


@dataclass
class Counters:
    """Steps since attach, and what they would have sent without compression."""

    num_steps: int = 0
    dense_bytes: float = 0.0

    def add_bucket(self, numel: int, world_size: int) -> None:
        """A ring all-reduce in fp32 sends 2 (N-1)/N of the gradient from every rank."""
        self.dense_bytes += 2 * (world_size - 1) / world_size * 4 * numel


def losses(found: Iterable[Measured]) -> dict[str, float | None]:
    """The share of values that are not zero, and the length of the error to that of the gradient."""
    parts = list(found)
    elements = sum(part.num_elements for part in parts)
    norm = sum(part.squared_norm for part in parts)
    error = sum(part.squared_error for part in parts)
    return {
        "density": sum(part.num_nonzero for part in parts) / elements if elements else None,
        "relative_error": (error / norm) ** 0.5 if norm else None,
    }


def by_parameter(coder: Coder, measured: Mapping[int, Measured]) -> dict[str, dict[str, Any]]:
    """What was measured of every parameter, by its name."""
    return {
        coder.parameters[index].name: {
            "numel": coder.parameters[index].numel,
            "scaler": found.scaler / found.num_steps if found.num_steps else None,
            **losses([found]),
            "bits": found.num_bits / found.num_elements if found.num_elements else None,
            "least_bits": found.least_bits / found.num_elements if found.least_bits else None,
        }
        for index, found in sorted(measured.items())
    }


def summary(
    counters: Counters,
    channel: Channel,
    phases: Phases,
    coder: Coder,
    scratch: Sequence[Scratch],
    per_parameter: bool,
) -> dict[str, Any]:
    """The mapping that Handle.stats() returns; docs/api.md says what each entry is."""
    sent = channel.bytes_sent
    result: dict[str, Any] = {
        "steps": counters.num_steps,
        "bytes_sent": sent,
        "bytes_received": channel.bytes_received,
        "dense_bytes": round(counters.dense_bytes),
        "ratio": counters.dense_bytes / sent if sent else 1.0,
        **{f"{name}_s": seconds for name, seconds in phases.seconds.items()},
        **losses(list(coder.measured.values())),
        "scratch_bytes": sum(part.nbytes for part in scratch),
        "residual_bytes": sum(residual.nbytes for residual in list(coder.residuals.values())),
    }
    if per_parameter:
        result["parameters"] = by_parameter(coder, coder.measured)
    return result
