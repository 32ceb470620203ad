"""Refusing what cannot work, in words: settings, gradient types, saved states, and ranks that disagree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from terngrad.codecs import DENSE_TYPES
from terngrad.errors import ConfigurationError
from terngrad.exchange import EXCHANGES, AllGather, Exchange, Sizes, predicted_seconds
from terngrad.methods import Dense, Method

ANY_EXCHANGE = "auto"
_REMEDIES = {"state": "load on every rank one that it can use"}


def exchanges_for(exchange: str) -> list[Exchange]:
    """The exchanges that a name admits."""
    if exchange == ANY_EXCHANGE:
        return list(EXCHANGES.values())
    if exchange not in EXCHANGES:
        known = ", ".join((ANY_EXCHANGE, *EXCHANGES))
        raise ConfigurationError(f"exchange={exchange!r}: there is {known}; pass one of these, or ParameterServers")
    return [EXCHANGES[exchange]]


def cheapest(exchanges: Sequence[Exchange], method: Method, sizes: Callable[[Exchange], Sizes], count: int) -> Exchange:
    """The exchange for a bucket, the same on all ranks: of those that can carry the method, the one predicted to be
    quickest with so many workers. `sizes` tells those of its messages.
    """
    if not method.has_sums:
        return EXCHANGES[AllGather.name]
    return min(exchanges, key=lambda exchange: predicted_seconds(exchange, sizes(exchange), count))


def check_exchange(exchange: str, method: Method) -> None:
    """Raises unless the exchange can carry the method."""
    if not method.has_sums and exchange not in (ANY_EXCHANGE, AllGather.name):
        raise ConfigurationError(
            f"exchange={exchange!r} with TernGrad(shared=False): sums of codes with different scalers are no integers; "
            "pass shared=True, or exchange='all-gather'"
        )


def check_types(parameters: Mapping[str, nn.Parameter], method: Method) -> None:
    """Raises unless the method has a code for every parameter's gradient."""
    allowed = {*DENSE_TYPES.values()} | ({torch.float64} if isinstance(method, Dense) else set())
    for name, parameter in parameters.items():
        if parameter.requires_grad and parameter.dtype not in allowed:
            raise ConfigurationError(
                f"{name} is {parameter.dtype}: {method.spec} takes gradients of "
                f"{', '.join(sorted(str(dtype) for dtype in allowed))}; convert the parameter to one of these"
            )


def require_same(action: str, everyone: Sequence[Mapping[str, Any]]) -> None:
    """Raises unless all ranks have the same settings, naming each rank's."""
    for key in sorted(everyone[0], key=lambda key: key not in _REMEDIES):  # what has a remedy of its own says more
        values = [settings[key] for settings in everyone]
        if any(value != values[0] for value in values):
            shown = values if key != "parameters" else _first_differing(values)
            text = "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(shown))
            remedy = _REMEDIES.get(key, "pass the same on every rank")
            raise ConfigurationError(f"{action}: ranks differ in {key} ({text}); {remedy}")


def _first_differing(parameters: Sequence[Sequence[object]]) -> list[str]:
    """For each rank how many parameters it has, and the first of them that is not the same on all."""
    rows = enumerate(zip_longest(*parameters))
    number, found = next((i, row) for i, row in rows if any(value != row[0] for value in row))
    return [f"{len(own)} parameters, number {number} is {one}" for own, one in zip(parameters, found, strict=True)]
