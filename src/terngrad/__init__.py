"""terngrad: data-parallel PyTorch training over slow networks, with gradients sent as ternary codes.

model = DistributedDataParallel(net)
handle = terngrad.attach(model, "terngrad")
"""

from importlib.metadata import version as _version

from terngrad.ddp import Handle, attach, hook
from terngrad.errors import ConfigurationError, ExchangeError, ReplicaDivergence, TerngradError, WireError
from terngrad.kernels import backend, backends, set_backend
from terngrad.methods import Dense, Method, TernGrad, from_spec

__version__ = _version("terngrad")

__all__ = [
    "ConfigurationError",
    "Dense",
    "ExchangeError",
    "Handle",
    "Method",
    "ReplicaDivergence",
    "TernGrad",
    "TerngradError",
    "WireError",
    "attach",
    "backend",
    "backends",
    "from_spec",
    "hook",
    "set_backend",
]
