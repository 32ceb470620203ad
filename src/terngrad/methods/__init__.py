"""What is sent and what is kept back: TernGrad, SDAGC, DGC, and dense gradients as methods of the same kind."""

from terngrad.methods.adding import add_messages
from terngrad.methods.base import Method, ParameterInfo, describe, from_spec
from terngrad.methods.bucket import BucketCode, EntropyBucket
from terngrad.methods.coder import Coder, Momentum
from terngrad.methods.dense import Dense
from terngrad.methods.opening import AnyBucket, open_bucket
from terngrad.methods.sparse import DGC, MASKING, SAM, SDAGC, UPFRONT, Sparse
from terngrad.methods.sparse_bucket import SparseBucket
from terngrad.methods.terngrad import TernGrad

__all__ = [
    "DGC", "MASKING", "SAM", "SDAGC", "UPFRONT", "AnyBucket", "BucketCode", "Coder", "Dense", "EntropyBucket", "Method",
    "Momentum", "ParameterInfo", "Sparse", "SparseBucket", "TernGrad", "add_messages", "describe", "from_spec",
    "open_bucket",
]  # fmt: skip
