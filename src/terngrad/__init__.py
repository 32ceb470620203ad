"""terngrad: data-parallel PyTorch training over slow networks, with gradients sent as ternary codes.

model = DistributedDataParallel(net)
handle = terngrad.attach(model, "terngrad")
"""

from importlib.metadata import version as _version

from terngrad.ddp import Handle, ParameterServers, attach, hook
from terngrad.errors import ConfigurationError, ExchangeError, ReplicaDivergence, TerngradError, WireError
from terngrad.kernels import backend, backends, set_backend
from terngrad.methods import Dense, Method, TernGrad, from_spec
from terngrad.virtual import VirtualWorkers

__version__ = _version("terngrad")

__all__ = [
    "ConfigurationError",
    "Dense",
    "ExchangeError",
    "Handle",
    "Method",
    "ParameterServers",
    "ReplicaDivergence",
    "TernGrad",
    "TerngradError",
    "VirtualWorkers",
    "WireError",
    "attach",
    "backend",
    "backends",
    "from_spec",
    "hook",
    "set_backend",
]
