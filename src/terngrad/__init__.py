"""terngrad: data-parallel PyTorch training over slow networks, with gradients sent as ternary or sparse codes.

model = DistributedDataParallel(net)
handle = terngrad.attach(model, "terngrad")
"""

from importlib.metadata import version as _version

from terngrad.ddp import Auto, Decision, Handle, ParameterServers, attach, hook
from terngrad.errors import ConfigurationError, ExchangeError, ReplicaDivergence, TerngradError, WireError
from terngrad.kernels import backend, backends, set_backend
from terngrad.methods import DGC, SDAGC, Dense, Method, Sparse, TernGrad, from_spec
from terngrad.perf import plan_buckets
from terngrad.virtual import VirtualWorkers

__version__ = _version("terngrad")

__all__ = [
    "DGC",
    "SDAGC",
    "Auto",
    "ConfigurationError",
    "Decision",
    "Dense",
    "ExchangeError",
    "Handle",
    "Method",
    "ParameterServers",
    "ReplicaDivergence",
    "Sparse",
    "TernGrad",
    "TerngradError",
    "VirtualWorkers",
    "WireError",
    "attach",
    "backend",
    "backends",
    "from_spec",
    "hook",
    "plan_buckets",
    "set_backend",
]
