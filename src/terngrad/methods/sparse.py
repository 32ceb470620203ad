"""Sparse gradients: what stands out is sent, the rest is kept and added to what comes next. SDAGC and DGC.

DGC is Lin et al., ICLR 2018. Of SDAGC (Chen, Yan, Ren, Wu; CCGRID 2020) only the abstract is public; what it leaves
open is a reconstruction, named as such in docs/sparse.md with the reason for each choice.

Per worker and parameter there is a residual v, and the momentum m the optimizer had; masking has a velocity u as well:

    upfront   v <- v + (1 + m / (2 (1 - m))) g;  where |v| is above the threshold it is sent, and v <- 0
    sam       v <- v + g;  where |v| is above the threshold it is sent, and m v of it stays
    masking   u <- m u + g,  v <- v + u          (Nesterov: u <- m (u + g),  v <- v + u + g)
              where |v| is above the threshold it is sent; there v loses what was sent, and u is cleared

All workers apply the mean of what was sent, and the optimizer itself keeps no momentum.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from terngrad.codecs import SIGN, SPARSE_VALUES
from terngrad.errors import ConfigurationError
from terngrad.kernels import Statistics, draw_keys
from terngrad.methods.base import Method, ParameterInfo, spec_of

MASKING, SAM, UPFRONT, NONE = "masking", "sam", "upfront", "none"
MEAN, THRESHOLD = "mean", "threshold"


@dataclass(frozen=True)
class Sparse(Method):
    """What all sparse methods have. Fields are commented with what they trade."""

    accumulation: bool = True  # of what is not sent; without it that is lost, which is of use only to see what it does
    values: str = "bf16"  # of what is sent; "sign": a bit each and one magnitude for a layer. Rounding is kept back
    magnitude: str = MEAN  # of signs: the mean of what is chosen, or the threshold, better for heavy tails
    compensation: str = MASKING  # of momentum: DGC's; "upfront", "sam": one buffer, not two; "none": the optimizer's
    clip_norm: float = 0.0  # of the sum of all workers: each clips its own to it over the square root of N; 0: not
    revision: float = (
        0.0  # damps a layer's step when more of it than usual arrives at once: by that ratio to this power
    )
    dense_below: int = 0  # smaller parameters are sent whole
    dense_names: tuple[str, ...] = ()  # patterns ("*.norm.*") of parameters that are sent whole

    def __post_init__(self) -> None:
        self._require("accumulation", type(self.accumulation) is bool, "be True or False")
        self._require("values", self.values in SPARSE_VALUES, f"be one of {', '.join(SPARSE_VALUES)}")
        self._require("magnitude", self.magnitude in (MEAN, THRESHOLD), f"be {MEAN!r} or {THRESHOLD!r}")
        mean = self.magnitude == MEAN
        self._require("magnitude", mean or self.values == SIGN, "be 'mean' unless values='sign'")
        waits = mean or self.accumulation
        self._require("accumulation", waits, "be True unless magnitude='mean': what is beyond the threshold waits")
        kinds = (MASKING, SAM, UPFRONT, NONE)
        self._require("compensation", self.compensation in kinds, f"be one of {', '.join(kinds)}")
        keeps = self.accumulation or self.compensation == NONE
        self._require("accumulation", keeps, "be True unless compensation='none': momentum acts on what was not sent")
        self._require_number("clip_norm", "pass 0 to turn clipping off")
        self._require_number("revision", "pass 0 to turn it off")
        self._require("dense_below", type(self.dense_below) is int and self.dense_below >= 0, "be an integer >= 0")
        well_named = type(self.dense_names) is tuple and all(n and not {*n} & {*",+"} for n in self.dense_names)
        self._require("dense_names", well_named, "be a tuple of patterns, not empty and without ',' and '+'")

    def _require(self, field: str, ok: bool, what: str) -> None:
        if not ok:
            raise ConfigurationError(f"{type(self).__name__}({field}={getattr(self, field)!r}): {field} must {what}")

    def _require_number(self, field: str, advice: str = "") -> None:
        value = getattr(self, field)
        ok = type(value) in (int, float) and 0 <= value < math.inf
        self._require(field, ok, "be a finite number >= 0" + (f"; {advice}" if advice else ""))
        object.__setattr__(self, field, float(value))  # so that 3 and 3.0 have one spec

    @property
    def compensates(self) -> bool:
        """Whether the optimizer's momentum is this method's business."""
        return self.compensation != NONE

    def num_parts(self, numel: int) -> int:
        return 1  # what is sent is little, and chosen from all of it

    def sends_dense(self, parameter: ParameterInfo) -> bool:
        return parameter.numel < max(self.dense_below, 1) or any(
            fnmatchcase(parameter.name, pattern) for pattern in self.dense_names
        )

    def is_dense_step(self, step: int, epoch: int) -> bool:
        return False

    def dense_type(self, gradient_type: torch.dtype) -> torch.dtype:
        return gradient_type

    @property
    @abstractmethod
    def expected_density(self) -> float:
        """The share of values that is sent when all has settled: for predictions only."""

    @property
    def needs_gradient_statistics(self) -> bool:
        """Whether thresholds depend on the gradient as it came."""
        return False

    @abstractmethod
    def thresholds(self, view: View) -> Tensor:
        """Above which magnitude of the residual each segment is sent, as float32."""

    def sign_limits(self, view: View, thresholds: Tensor) -> Tensor:
        """The most that a sign of each segment may stand for; infinite: the mean of what is chosen.

        With `magnitude="threshold"` that is the threshold, or the segment's mean where all values lie so far to one
        side that it is more, so that they do not pile up. It is infinite where there is nothing to go by.
        """
        means = (view.statistics.sum / view.numels).abs().float()
        limited = (thresholds > 0) & means.isfinite() & (self.magnitude == THRESHOLD)
        return torch.where(limited, torch.maximum(thresholds, means), torch.inf)


@dataclass(frozen=True)
class View:
    """What a method may look at when it chooses thresholds: a bucket's sparse segments, after accumulation."""

    step: int
    seed: int
    rank: int
    indices: npt.NDArray[np.uint64]  # of the parameters
    residuals: Sequence[Tensor]
    statistics: Statistics  # of the residuals
    gradient_statistics: Statistics | None  # where the method has asked for them
    numels: Tensor  # float64
    factors: Tensor  # float32: what gradients were multiplied by when they were added to the residuals
    above: Callable[[int, Tensor], Tensor]  # of a residual by its position here: the magnitudes beyond a threshold

    def deviations(self, statistics: Statistics) -> Tensor:
        """The standard deviation of each segment, float64."""
        variance = statistics.squares / self.numels - (statistics.sum / self.numels) ** 2
        return variance.clamp(min=0).sqrt()


@dataclass(frozen=True)
class SDAGC(Sparse):
    """Sends what lies beyond `threshold` standard deviations of its layer's residual."""

    values: str = "sign"  # more than twice as many of them as with bf16, for the same bytes
    compensation: str = UPFRONT  # nothing is sent twice; docs/sparse.md has what each form reaches, on what
    threshold: float = 2.5  # in standard deviations: higher means fewer bytes and later arrival
    warmup_threshold: float = 2.0  # of the first step
    warmup_steps: int = 0  # over so many steps the threshold rises to its final value
    sigma_of: str = "residual"  # or "gradient": follows the gradient as it is now, and costs one more pass

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("threshold", "warmup_threshold"):
            self._require_number(name)
        ok = type(self.warmup_steps) is int and self.warmup_steps >= 0
        self._require("warmup_steps", ok, "be an integer >= 0")
        self._require("sigma_of", self.sigma_of in ("residual", "gradient"), "be 'residual' or 'gradient'")
        follows = self.magnitude == MEAN or self.sigma_of == "residual"
        self._require("sigma_of", follows, "be 'residual' unless magnitude='mean': fading gradients would wait")

    @property
    def spec(self) -> str:
        return spec_of(self, "sdagc")

    @property
    def expected_density(self) -> float:
        return math.erfc(self.threshold / math.sqrt(2))

    @property
    def needs_gradient_statistics(self) -> bool:
        return self.sigma_of == "gradient"

    def threshold_at(self, step: int) -> float:
        """In standard deviations."""
        if step >= self.warmup_steps:
            return self.threshold
        return self.warmup_threshold + (self.threshold - self.warmup_threshold) * step / self.warmup_steps

    def thresholds(self, view: View) -> Tensor:
        if self.sigma_of == "gradient":
            assert view.gradient_statistics is not None  # it was asked for
            deviations = view.deviations(view.gradient_statistics) * view.factors
        else:
            deviations = view.deviations(view.statistics)
        wanted = (self.threshold_at(view.step) * deviations).float()
        largest = view.statistics.largest
        # Nothing above it: then the largest alone.
        return torch.where(wanted < largest, wanted, torch.nextafter(largest, torch.zeros_like(largest)))


@dataclass(frozen=True)
class DGC(Sparse):
    """Sends the share `density` of each layer that is largest in magnitude, by a threshold from a sample."""

    density: float = 0.001  # of what is sent in the end
    warmup_steps: int = 0  # over so many steps, in five stages, the density falls to its final value
    sample: float = 0.01  # of the residual, for the threshold

    STAGES = 5
    CORRECTIONS = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("density", "sample"):
            self._require_number(name)
            self._require(name, 0 < getattr(self, name) <= 1, "be above 0 and at most 1")
        ok = type(self.warmup_steps) is int and self.warmup_steps >= 0
        self._require("warmup_steps", ok, "be an integer >= 0")

    @property
    def spec(self) -> str:
        return spec_of(self, "dgc")

    @property
    def expected_density(self) -> float:
        return self.density

    def sends_dense(self, parameter: ParameterInfo) -> bool:
        return parameter.num_dims < 2 or super().sends_dense(parameter)

    def density_at(self, step: int) -> float:
        """0.001 by way of 0.25, 0.063, 0.016 and 0.004, as published."""
        stage = self.STAGES if step >= self.warmup_steps else 1 + step * self.STAGES // self.warmup_steps
        return float(self.density ** (stage / self.STAGES))

    def thresholds(self, view: View) -> Tensor:
        density = self.density_at(view.step)
        starts = draw_keys(view.seed, view.step, view.rank, view.indices)[:, 0].tolist()
        return torch.stack([self._threshold(view, i, density, start) for i, start in enumerate(starts)])

    def _threshold(self, view: View, position: int, density: float, start: int) -> Tensor:
        """Of the k-th largest of a strided sample; then corrected until about k of all are above it."""
        residual = view.residuals[position]
        numel = residual.numel()
        wanted = max(1, round(density * numel))
        size = min(numel, max(math.ceil(self.sample * numel), math.ceil(2 / density)))
        stride = max(1, numel // size)
        sample = residual[start % stride :: stride].abs()
        threshold = sample.topk(max(1, min(sample.numel(), round(density * sample.numel())))).values[-1]
        for _ in range(self.CORRECTIONS):
            above = view.above(position, threshold)
            if above.numel() > 1.3 * wanted:
                return torch.nextafter(above.topk(wanted).values[-1], torch.zeros_like(threshold))
            if above.numel() >= 0.8 * wanted:
                return threshold
            threshold = 0.8 * threshold
        return threshold


Method.registry["sdagc"] = SDAGC
Method.registry["dgc"] = DGC
