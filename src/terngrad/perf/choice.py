"""Which method to take: what each would make of a step, predicted or measured, and how much loss is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from terngrad.methods import Dense, Method, Sparse
from terngrad.perf.network import Cluster
from terngrad.perf.probes import Codec
from terngrad.perf.profile import Profile
from terngrad.perf.step import Coded, Prediction, exchanges_for

PLAIN = "ddp"  # DDP's own all-reduce,
ALL_REDUCE = "all-reduce"  # which is how it exchanges
PLAIN_FP16 = "ddp-fp16"  # the same with torch's hook that casts to 16 bits
LOSSLESS, UNBIASED, SPARSE = LEVELS = ("lossless", "unbiased", "sparse")  # from none to most
HOPE = 0.5  # of the time that a step is predicted to take beyond computing: if so little might do, it is tried
CLOSE = 1.2  # times the best: that is measured twice
TWICE = 2
WORTH_IT = 0.95  # of the step of what loses less: a smaller gain is not worth it


def level_of(method: Method) -> str:
    """How much a method loses. Rounding to 16 bits counts as unbiased: it loses far less than ternary codes do."""
    if isinstance(method, Sparse):
        return SPARSE
    return LOSSLESS if isinstance(method, Dense) and method.dtype == "fp32" else UNBIASED


@dataclass(frozen=True)
class Estimate:
    """Of one step."""

    seconds: float
    exchange: str
    measured: int = 0  # how often; a prediction if never
    longest_s: float = 0.0  # of these measurements

    def and_again(self, other: Estimate) -> Estimate:
        """Of two measurements the shorter: what disturbs a step makes it longer."""
        return Estimate(
            min(self.seconds, other.seconds),
            other.exchange,
            self.measured + other.measured,
            max(self.longest_s, other.longest_s),
        )

    def __str__(self) -> str:
        return f"{1e3 * self.seconds:,.1f} ms ({'measured' if self.measured else 'predicted'})"


def choose(estimates: Mapping[str, Estimate], levels: Mapping[str, str]) -> str:
    """The quickest; but what loses more is taken only if it is quicker by more than a twentieth."""
    best: str | None = None
    for level in LEVELS:
        names = [name for name in estimates if levels[name] == level]
        quickest = min(names, key=lambda name: estimates[name].seconds, default=None)
        if quickest is None:
            continue
        if best is None or estimates[quickest].seconds < WORTH_IT * estimates[best].seconds:
            best = quickest
    assert best is not None  # there is always one
    return best


def choose_next(
    estimates: Mapping[str, Estimate], levels: Mapping[str, str], compute_s: float, current: str
) -> tuple[str, bool]:
    """What to use, where some estimates are measured, and whether that is final or only to be measured.

    Predictions may be too long, so what would be best if they were is tried first. Then a few steps are a small sample,
    so the best and those that are close to it are measured twice, the current one first. `compute_s` is a step's least.
    """
    hopes = {
        name: one if one.measured else replace(one, seconds=compute_s + HOPE * max(0.0, one.seconds - compute_s))
        for name, one in estimates.items()
    }
    best = choose(hopes, levels)
    if not estimates[best].measured:
        return best, False
    close = [name for name, one in estimates.items() if one.measured and one.seconds < CLOSE * estimates[best].seconds]
    once = [name for name in close if estimates[name].measured < TWICE]
    if not once:
        return best, True
    return (current if current in once else min(once, key=lambda name: estimates[name].seconds)), False


def calibrated(step_s: float, model_s: float, took_s: float, compute_s: float) -> float:
    """What a predicted step is likely to take, if the model gave `model_s` for one that took `took_s`.

    What the model does not know of makes all steps longer. If it gave too much, it is wrong about sending alone.
    """
    if took_s >= model_s:
        return step_s * took_s / model_s
    return compute_s + (step_s - compute_s) * max(0.0, took_s - compute_s) / (model_s - compute_s)


def predict_methods(
    profile: Profile,
    plan: tuple[int, ...],
    cluster: Cluster,
    codecs: Mapping[str, tuple[Method, Codec]],
    contention: float,
    exchanges: Sequence[str] | None = None,
    overheads: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Prediction]:
    """The step of each method, by name, over the exchange that is best for it; of these, if any are given."""
    found = {}
    for name, (method, codec) in codecs.items():
        ways = [way for way in exchanges_for(method) if exchanges is None or way in exchanges]
        sendings = [Coded(method, way, *codec.figures, overheads.get(name, 0.0)) for way in ways]
        predictions = [Prediction(profile, plan, sending, cluster, contention) for sending in sendings]
        if predictions:
            found[name] = min(predictions, key=lambda prediction: prediction.step_s)
    return found
