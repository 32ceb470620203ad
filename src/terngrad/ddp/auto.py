"""`attach(model, "auto")`: what a user says about it, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from terngrad.errors import ConfigurationError
from terngrad.methods import Method, from_spec
from terngrad.methods.base import read_options, spec_of
from terngrad.perf.choice import LEVELS, PLAIN, Estimate, level_of
from terngrad.perf.saved import Saved

NAME = "auto"
LEAST_SEEN = 0.9  # of the parameters that are trained: a profile of fewer is of another model
CANDIDATES = ("fp16", "terngrad:codec=two-bit", "terngrad", "terngrad:codec=entropy", "sdagc")


@dataclass(frozen=True)
class Auto:
    """Chooses the method by itself, by the time of a step."""

    allow: str = "unbiased"  # the most loss: "lossless", "unbiased" (ternary codes, 16 bits) or "sparse"
    candidates: tuple[str, ...] = CANDIDATES  # specs; plain DDP always is one
    profile: str = (
        ""  # a file that `terngrad doctor --save` wrote: it is believed, and dense steps to measure are saved
    )
    review_every: int = 200  # steps: how often it is looked whether steps still take what they took

    def __post_init__(self) -> None:
        self._require("allow", self.allow in LEVELS, f"be one of {', '.join(LEVELS)}")
        texts = type(self.candidates) is tuple and all(isinstance(spec, str) for spec in self.candidates)
        self._require("candidates", texts, "be a tuple of specs, such as ('fp16', 'terngrad:codec=entropy')")
        self._require(
            "review_every", type(self.review_every) is int and self.review_every >= 10, "be an integer of at least 10"
        )
        object.__setattr__(self, "candidates", tuple(from_spec(spec).spec for spec in self.candidates))

    def _require(self, name: str, ok: bool, what: str) -> None:
        if not ok:
            raise ConfigurationError(f"Auto({name}={getattr(self, name)!r}): {name} must {what}")

    @property
    def spec(self) -> str:
        """The text that `from_spec` turns into an equal one, unless a candidate has several options."""
        return spec_of(self, NAME)

    @classmethod
    def from_spec(cls, spec: str) -> Auto:
        """What a text such as "auto" or "auto:allow=sparse" means; several candidates are joined by "+"."""
        return cls(**read_options(spec, cls))

    @property
    def methods(self) -> dict[str, Method]:
        """The candidates that lose no more than is allowed, by spec."""
        methods = {spec: from_spec(spec) for spec in self.candidates}
        most = LEVELS.index(self.allow)
        return {spec: method for spec, method in methods.items() if LEVELS.index(level_of(method)) <= most}

    def read_profile(self, numel: int, world_size: int) -> tuple[dict[str, Estimate], float]:
        """What the doctor predicted, and what computing takes, if it looked at a model of this size on as many ranks.

        It does not see what has no gradient.
        """
        saved = Saved.read(self.profile)
        seen, ranks = saved.profile.numel, saved.cluster.num_workers
        if not LEAST_SEEN * numel <= seen <= numel or ranks != world_size:
            raise ConfigurationError(
                f"Auto(profile={self.profile!r}): it is of {seen:,} parameters on {ranks} ranks, here are {numel:,} on "
                f"{world_size}; run `terngrad doctor --save` with this model and these ranks, or leave it out"
            )
        rows = {row["method"]: Estimate(row["step_s"], row["exchange"]) for row in saved.predictions}
        return {name: rows[name] for name in (PLAIN, *self.methods) if name in rows}, saved.profile.compute_s


def as_auto(method: Method | Auto | str) -> Auto | None:
    """What is meant by "auto" and its options; None for methods."""
    if isinstance(method, str) and method.partition(":")[0] == NAME:
        return Auto.from_spec(method)
    return method if isinstance(method, Auto) else None


@dataclass(frozen=True)
class Decision:
    """One choice, the same on all ranks."""

    step: int  # from which on it holds
    method: str  # a spec, or "ddp"
    exchange: str
    reason: str
    estimates: Mapping[str, Estimate] = field(default_factory=dict)  # of a step, on which it rests

    def describe(self) -> dict[str, Any]:
        """For JSON."""
        estimates = {
            name: {"step_s": one.seconds, "exchange": one.exchange, "measured": one.measured > 0}
            for name, one in self.estimates.items()
        }
        return {
            "step": self.step, "method": self.method, "exchange": self.exchange, "reason": self.reason,
            "estimates": estimates,
        }  # fmt: skip
