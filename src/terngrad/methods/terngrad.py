"""TernGrad (Wen et al., NeurIPS 2017): gradients as -s, 0 or +s, without bias.

A gradient is clipped to c standard deviations of its layer, the scaler s is what is then the largest magnitude, over
all workers, and each element becomes sign(g) * s with probability |g| / s. Expectation of what is sent: the clipped
gradient, within 2^-24 of s. Clipping itself is biased, as in the paper; clip=0 or error feedback removes that.

Error feedback keeps what was not sent. Clipped at c standard deviations of a normal distribution, the codes are wrong
by a share of the gradient's energy that grows with c: 0.38 for 1.5, 0.65 for 2, 1.01 for 2.5. From 1 on more is held
back than was there, in every step, and it grows without end; so with error feedback c is smaller, and at most 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from terngrad.codecs import CODES
from terngrad.errors import ConfigurationError
from terngrad.kernels import Code, Statistics
from terngrad.methods.base import Method, ParameterInfo, spec_of

SMALLEST_SCALER = 2.0**-100  # below it, scaler * 2^-24 would be subnormal; such a gradient counts as zero
# The statistics add 240 numbers to a lane in single precision, which in a sum of squares and the square of a sum comes
# to less than this share of the mean square: a variance below it is rounding, and the layer as good as constant.
VARIANCE_ROUNDING = 2.0**-14
ON_ITS_OWN, WITH_FEEDBACK, MOST_WITH_FEEDBACK = 2.5, 1.5, 2.0  # where gradients are clipped, in standard deviations


@dataclass(frozen=True)
class TernGrad(Method):
    """Ternary gradients. Fields are commented with what they trade."""

    clip: float | None = None  # in standard deviations: lower means less variance and more bias; 0: no clipping.
    # None: 2.5, as in the paper; with error feedback 1.5
    sigma: str = "rms"  # about zero, so that gradients of one sign survive; "std" subtracts the mean, as the paper does
    block: int = 0  # elements to a scaler: finer means less variance and 32/block more bits each; 0: the whole layer
    shared: bool = True  # one scaler for all workers, so that sums are integers; False: each its own, all-gather only
    codec: str = "base3"  # 1.6 bits a value; "two-bit" is a little faster to pack and 25 % larger
    dense_below: int = 2048  # smaller parameters are few bytes and noisy as ternary: they stay dense
    dense_names: tuple[str, ...] = ()  # patterns ("*.norm.*") of parameters that stay dense
    dense_last_layer: bool = False  # the paper's way with the classifier, whose gradients are skewed; dear if it is big
    warmup_steps: int = 0  # that many first steps are dense
    dense_every_steps: int = 0  # every K-th step is dense; 0: none
    dense_every_epochs: int = 0  # every K-th epoch is dense, by Handle.set_epoch; 0: none
    error_feedback: bool = False  # keep what was not sent and add it next time: no bias, one more copy of the gradient

    def __post_init__(self) -> None:
        if self.clip is not None:
            object.__setattr__(self, "clip", float(self.clip))  # so that 3 and 3.0 have one spec
        self._require("clip", self.sigmas >= 0, "be >= 0; pass 0 to turn clipping off")
        stays = not self.error_feedback or 0 < self.sigmas <= MOST_WITH_FEEDBACK
        much = (
            f"be above 0 and at most {MOST_WITH_FEEDBACK} with error_feedback, or what is held back grows without end"
        )
        self._require("clip", stays, f"{much}; leave it out for {WITH_FEEDBACK}")
        self._require("sigma", self.sigma in ("rms", "std"), "be 'rms' or 'std'")
        for name in ("block", "dense_below", "warmup_steps", "dense_every_steps", "dense_every_epochs"):
            value = getattr(self, name)
            self._require(name, type(value) is int and value >= 0, "be an integer >= 0")
        self._require("block", self.block % 8 == 0, "be a multiple of 8, or 0 for whole layers")
        self._require("codec", self.codec in CODES, f"be one of {', '.join(CODES)}")
        well_named = type(self.dense_names) is tuple and all(n and not {*n} & {*",+"} for n in self.dense_names)
        self._require("dense_names", well_named, "be a tuple of patterns, not empty and without ',' and '+'")

    def _require(self, field: str, ok: bool, what: str) -> None:
        if not ok:
            raise ConfigurationError(f"TernGrad({field}={getattr(self, field)!r}): {field} must {what}")

    @classmethod
    def paper(cls, **changes: Any) -> TernGrad:
        """The paper's setting: mean-subtracted sigma, layer-wise shared scaler, last layer and small tensors dense."""
        return cls(**{"sigma": "std", "dense_below": 9217, "dense_last_layer": True, **changes})

    @property
    def spec(self) -> str:
        return spec_of(self, "terngrad")

    @property
    def sigmas(self) -> float:
        """Where gradients are clipped, in standard deviations; 0: nowhere."""
        if self.clip is None:
            return WITH_FEEDBACK if self.error_feedback else ON_ITS_OWN
        return self.clip

    @property
    def has_sums(self) -> bool:
        return self.shared

    def num_parts(self, numel: int) -> int:
        return 1 if self.error_feedback else super().num_parts(numel)  # what is held back is found from all codes

    @property
    def code(self) -> Code:
        return CODES[self.codec]

    def sends_dense(self, parameter: ParameterInfo) -> bool:
        return (
            parameter.numel < max(self.dense_below, 1)
            or (self.dense_last_layer and parameter.in_last_layer)
            or any(fnmatchcase(parameter.name, pattern) for pattern in self.dense_names)
        )

    def is_dense_step(self, step: int, epoch: int) -> bool:
        return (
            step < self.warmup_steps
            or (self.dense_every_steps > 0 and step % self.dense_every_steps == 0)
            or (self.dense_every_epochs > 0 and epoch % self.dense_every_epochs == 0)
        )

    def dense_type(self, gradient_type: torch.dtype) -> torch.dtype:
        return gradient_type

    def limits(self, statistics: Statistics, counts: Tensor) -> Tensor:
        """The largest magnitude of each unit after clipping: what the unit is clipped to, and this worker's scaler.

        NaN where an element is not finite. Where the standard deviation is zero or overflows there is no clipping.
        """
        largest = statistics.largest
        limit = largest
        if self.sigmas > 0:
            mean_square = variance = statistics.squares / counts
            if self.sigma == "std":
                variance = mean_square - (statistics.sum / counts) ** 2
                variance = torch.where(variance > VARIANCE_ROUNDING * mean_square, variance, 0.0)
            clipped = (self.sigmas * variance.sqrt()).float()
            limit = torch.where(clipped > 0, torch.minimum(clipped, largest), largest)
        return torch.where(limit < SMALLEST_SCALER, torch.zeros_like(limit), limit)


Method.registry["terngrad"] = TernGrad
Method.registry["terngrad-paper"] = TernGrad.paper
