"""A model of the user's own, from a function that makes it: imported, called, and tried for one step."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from terngrad.errors import ConfigurationError

_WANTED = "it must return a model, a loss of outputs and targets, and a batch, a pair of inputs and targets"
_LOSS = "the loss must be a tensor of one number that depends on the model's parameters"


def load_own_model(name: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The model that MODULE:FUNCTION makes, and its loss; ConfigurationError for whatever is wrong with them."""
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigurationError(f"--model {name!r}: pass MODULE:FUNCTION, such as my_code:make")
    module, loss, (inputs, targets) = _checked(name, _make(name, module_name, function_name))

    def loss_of() -> Tensor:
        found: Tensor = loss(module(inputs), targets)
        return found

    _try_step(name, module, loss_of)
    return module, loss_of


def _make(name: str, module_name: str, function_name: str) -> Any:
    """What the function returns."""
    sys.path.insert(0, str(Path.cwd()))
    with _blamed(f"--model {name!r}: importing {module_name} failed", "MODULE must be one that can be imported here"):
        module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        kind = "no attribute" if function is None else f"a {type(function).__name__}, not a function,"
        raise ConfigurationError(f"--model {name!r}: {module_name} has {kind} {function_name!r}; {_WANTED}")
    with _blamed(f"--model {name!r}: {function_name}() failed", _WANTED):
        return function()


def _checked(name: str, made: Any) -> tuple[nn.Module, Callable[..., Any], tuple[Any, Any]]:
    if not isinstance(made, (tuple, list)) or len(made) != 3:
        raise ConfigurationError(f"--model {name!r}: {_WANTED}, but gave {type(made).__name__}")
    module, loss, batch = made
    if not isinstance(module, nn.Module) or not callable(loss):
        kinds = f"{type(module).__name__} and {type(loss).__name__}"
        raise ConfigurationError(f"--model {name!r}: {_WANTED}, but model and loss are {kinds}")
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ConfigurationError(f"--model {name!r}: {_WANTED}, but the batch is {type(batch).__name__}")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigurationError(f"--model {name!r}: {_WANTED}, but no parameter of the model wants a gradient")
    return module, loss, (batch[0], batch[1])


def _try_step(name: str, module: nn.Module, loss_of: Callable[[], Any]) -> None:
    """Forward and backward once, before other ranks wait for this one."""
    with _blamed(f"--model {name!r}: forward or the loss failed", "model, loss and batch must fit each other"):
        loss = loss_of()
    if not isinstance(loss, Tensor):
        raise ConfigurationError(f"--model {name!r}: {_LOSS}, but it is {type(loss).__name__}; return one, as mean()")
    if loss.numel() != 1:
        raise ConfigurationError(
            f"--model {name!r}: {_LOSS}, but its shape is {tuple(loss.shape)}; take its mean() or sum()"
        )
    if not loss.requires_grad:
        raise ConfigurationError(
            f"--model {name!r}: {_LOSS}, but it has no gradient; look for detach(), item() or no_grad() on its way"
        )
    with _blamed(f"--model {name!r}: backward failed", _LOSS):
        torch.autograd.backward(loss)
    if all(parameter.grad is None for parameter in module.parameters()):
        raise ConfigurationError(f"--model {name!r}: {_LOSS}, but after backward none of them has a gradient")
    module.zero_grad(set_to_none=True)


@contextmanager
def _blamed(what: str, needed: str) -> Iterator[None]:
    """Whatever the user's code raises, on one line, with the place where it did; the error itself is the cause."""
    try:
        yield
    except Exception as error:
        told = " ".join(str(error).split())
        raise ConfigurationError(f"{what}: {type(error).__name__}: {told}{_place_of(error)}; {needed}") from error


def _place_of(error: Exception) -> str:
    """The last line of the user's own that was run, if any was; a SyntaxError says it by itself."""
    folder, installed = str(Path.cwd()), "site-packages"  # which may be below that folder
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(folder) and installed not in frame.filename
    ]
    if not frames or isinstance(error, SyntaxError):
        return ""
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
