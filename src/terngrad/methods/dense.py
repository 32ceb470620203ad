"""No compression, or half of it: the honest baselines, and what the others fall back to.

The average is taken in single precision over the ranks in order and rounded once to the wire's type, so it is the same
on every rank and for every exchange. Overflow of fp16 is as in torch's fp16_compress hook: infinities, which
GradScaler sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from terngrad.codecs import DENSE_TYPES
from terngrad.errors import ConfigurationError
from terngrad.methods.base import Method, ParameterInfo


@dataclass(frozen=True)
class Dense(Method):
    """Every gradient as it is, in the given type on the wire."""

    dtype: str = "fp32"

    def __post_init__(self) -> None:
        if self.dtype not in DENSE_TYPES:
            raise ConfigurationError(f"Dense(dtype={self.dtype!r}): dtype must be one of {', '.join(DENSE_TYPES)}")

    @property
    def spec(self) -> str:
        return self.dtype

    def sends_dense(self, parameter: ParameterInfo) -> bool:
        return True

    def is_dense_step(self, step: int, epoch: int) -> bool:
        return True

    def dense_type(self, gradient_type: torch.dtype) -> torch.dtype:
        return DENSE_TYPES[self.dtype]


for _dtype in DENSE_TYPES:
    Method.registry[_dtype] = partial(Dense, _dtype)
