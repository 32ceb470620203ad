"""What is sent and what is kept back: TernGrad, and dense gradients as methods of the same kind."""

from terngrad.methods.base import Method, ParameterInfo, from_spec
from terngrad.methods.coder import BucketCode, Coder
from terngrad.methods.dense import Dense
from terngrad.methods.sums import add_shard
from terngrad.methods.terngrad import TernGrad

__all__ = ["BucketCode", "Coder", "Dense", "Method", "ParameterInfo", "TernGrad", "add_shard", "from_spec"]
