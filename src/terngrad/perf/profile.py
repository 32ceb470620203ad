"""What a training step of one worker takes without communication: the gradients of a backward pass, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from terngrad.errors import ConfigurationError
from terngrad.methods import ParameterInfo

VALUE_BYTES = 4  # of a gradient


@dataclass(frozen=True)
class Gradient:
    """Of one parameter."""

    parameter: ParameterInfo
    ready_s: float  # since backward began


@dataclass(frozen=True)
class Profile:
    """Gradients in the order in which they become ready."""

    forward_s: float
    gradients: tuple[Gradient, ...]
    update_s: float  # of the optimizer, and whatever else follows

    def __post_init__(self) -> None:
        moments = [0.0, *(gradient.ready_s for gradient in self.gradients)]
        if not self.gradients or moments != sorted(moments) or self.forward_s < 0 or self.update_s < 0:
            raise ConfigurationError(
                f"Profile of {len(self.gradients)} gradients: there must be one or more, in the order in which "
                "they are ready, and no time may be negative"
            )

    @property
    def backward_s(self) -> float:
        return self.gradients[-1].ready_s

    @property
    def compute_s(self) -> float:
        """Of the whole step."""
        return self.forward_s + self.backward_s + self.update_s

    @property
    def numel(self) -> int:
        return sum(gradient.parameter.numel for gradient in self.gradients)

    def with_copies(self, bytes_per_s: float) -> Profile:
        """As DDP has it, unless gradients are views of its buckets: every gradient is copied there and back."""
        copied, gradients = 0.0, []
        for gradient in self.gradients:
            copied += VALUE_BYTES * gradient.parameter.numel / bytes_per_s
            gradients.append(replace(gradient, ready_s=gradient.ready_s + copied))
        return Profile(self.forward_s, tuple(gradients), self.update_s).with_copies_back(bytes_per_s)

    def with_copies_back(self, bytes_per_s: float) -> Profile:
        """The same where only the copies back are missing: moments were taken inside DDP."""
        return replace(self, update_s=self.update_s + VALUE_BYTES * self.numel / bytes_per_s)

    def with_backward(self, share: float) -> Profile:
        """The same with a backward pass of so much of its time."""
        gradients = tuple(replace(gradient, ready_s=share * gradient.ready_s) for gradient in self.gradients)
        return replace(self, gradients=gradients)

    def times(self, factor: float) -> Profile:
        """The same with everything so many times as long."""
        longer = self.with_backward(factor)
        return replace(longer, forward_s=factor * self.forward_s, update_s=factor * self.update_s)

    def describe(self) -> dict[str, Any]:
        """For a file; `read` makes an equal profile of it."""
        return asdict(self)

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Profile:
        gradients = tuple(Gradient(ParameterInfo(**one["parameter"]), one["ready_s"]) for one in found["gradients"])
        return cls(found["forward_s"], gradients, found["update_s"])
