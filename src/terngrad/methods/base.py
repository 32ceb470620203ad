"""What every method is: a frozen dataclass that says what is sent, with a text form for command lines."""

from __future__ import annotations

import dataclasses
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from terngrad.errors import ConfigurationError

PART_ELEMENTS = 1 << 23  # of a part of a large bucket: smaller ones cost more rounds, larger ones overlap less


@dataclass(frozen=True)
class ParameterInfo:
    """A parameter as methods see it."""

    name: str
    numel: int
    in_last_layer: bool
    num_dims: int = 2


def describe(parameters: Mapping[str, nn.Parameter]) -> list[ParameterInfo]:
    """All parameters in the order of registration; the last layer is the module that owns the last of them."""
    last = list(parameters)[-1].rpartition(".")[0] if parameters else ""
    return [ParameterInfo(name, p.numel(), name.rpartition(".")[0] == last, p.dim()) for name, p in parameters.items()]


class Method(ABC):
    """Decides which parameters are ternary, which are dense and how dense values travel."""

    registry: ClassVar[dict[str, Callable[..., Method]]] = {}

    @property
    @abstractmethod
    def spec(self) -> str:
        """The text that `from_spec` turns into an equal method."""

    @property
    def has_sums(self) -> bool:
        """Whether codes can be added up on their way; if not, everyone has to get everyone's."""
        return True

    def num_parts(self, numel: int) -> int:
        """In how many parts a bucket of so many elements may travel, one after the other."""
        return max(1, numel // PART_ELEMENTS)

    @abstractmethod
    def sends_dense(self, parameter: ParameterInfo) -> bool:
        """Whether this parameter is never compressed."""

    @abstractmethod
    def is_dense_step(self, step: int, epoch: int) -> bool:
        """Whether nothing is compressed in this step."""

    @abstractmethod
    def dense_type(self, gradient_type: torch.dtype) -> torch.dtype:
        """The element type in which dense values of such a gradient travel."""


def from_spec(spec: str) -> Method:
    """The method that a text such as "terngrad:clip=2.5,codec=base3" or "fp16" names."""
    name = spec.partition(":")[0]
    if name not in Method.registry:
        raise ConfigurationError(f"method {name!r}: there is {', '.join(sorted(Method.registry))}; pass one of these")
    make = Method.registry[name]
    return make(**read_options(spec, make))


def read_options(spec: str, make: Callable[..., Any]) -> dict[str, Any]:
    """What follows the name in a spec, as arguments for the class that it names."""
    name, _, options = spec.partition(":")
    fields = _option_types(make)
    values: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        key, equals, text = option.partition("=")
        if key not in fields or not equals:
            known = ", ".join(f"{field}=..." for field in fields) or "none"
            raise ConfigurationError(f"method {spec!r}: no option {option!r}; {name} takes {known}")
        values[key] = _parse(spec, key, text, fields[key])
    return values


def _option_types(make: Callable[..., Any]) -> dict[str, Any]:
    owner = make if isinstance(make, type) else getattr(make, "__self__", None)
    if not dataclasses.is_dataclass(owner):
        return {}
    hints = typing.get_type_hints(owner)
    return {field.name: hints[field.name] for field in dataclasses.fields(owner)}


def _parse(spec: str, key: str, text: str, kind: Any) -> Any:
    """An option's value from its text; several names are joined by "+"."""
    try:
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if kind == float | None:
            return float(text)
        if kind in (int, float, str):
            return kind(text)
        return tuple(text.split("+")) if text else ()
    except (ValueError, KeyError):
        wanted = getattr(kind, "__name__", str(kind))
        raise ConfigurationError(f"method {spec!r}: {key}={text!r} is not a {wanted}") from None


def spec_of(method: Any, name: str) -> str:
    """`name` followed by the fields that differ from their defaults."""
    changed = []
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if value != field.default:
            text = "+".join(value) if isinstance(value, tuple) else str(value).lower() if value is True else str(value)
            changed.append(f"{field.name}={text}")
    return f"{name}:{','.join(changed)}" if changed else name
