"""The method and the exchange in use: those that were asked for, or those that "auto" has decided on."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from terngrad.codecs import AnyFrame, Segment
from terngrad.ddp.auto import Auto, Decision, as_auto
from terngrad.ddp.checks import ANY_EXCHANGE, cheapest, check_exchange, check_types, exchanges_for
from terngrad.ddp.crew import LaneCrew
from terngrad.ddp.momentum import MomentumLink
from terngrad.ddp.pilot import Pilot
from terngrad.ddp.servers import Attached, ParameterServers
from terngrad.ddp.watch import Watch
from terngrad.errors import ConfigurationError
from terngrad.exchange import EXCHANGES, Exchange
from terngrad.methods import AnyBucket, Coder, Dense, Method, from_spec, open_bucket
from terngrad.perf.choice import PLAIN

log = logging.getLogger("terngrad.auto")
MOST_FLUSHES = 10  # steps that send what is held back before DDP averages; some may be of parameters never used again


def as_method(method: Method | Auto | str) -> Method:
    """A method, from itself or from its spec."""
    if as_auto(method) is not None:
        raise ConfigurationError(f"{method!r} is no method; attach(model, 'auto') begins with it, and pin() ends it")
    assert not isinstance(method, Auto)
    return from_spec(method) if isinstance(method, str) else method


class Exchanges:
    """Those that may be used, with the name of what was asked for."""

    def __init__(
        self, asked: str | ParameterServers, auto: Auto | None, owner: Attached, group: dist.ProcessGroup
    ) -> None:
        if isinstance(asked, ParameterServers):
            if auto is not None:
                raise ConfigurationError(
                    f"attach: {auto.spec} with ParameterServers: it chooses among exchanges without servers; pass a "
                    "method with servers, or leave them out"
                )
            self.name = f"{asked.num_servers} servers"
            self.allowed: list[Exchange] = [asked.claim(owner, group)]
        else:
            self.name, self.allowed = asked, exchanges_for(asked)

    def choose(self, name: str) -> None:
        """Only this one, if the choice was left open; all again, if it is none."""
        if self.name == ANY_EXCHANGE:
            chosen = EXCHANGES.get(name)
            self.allowed = exchanges_for(ANY_EXCHANGE) if chosen is None else [chosen]


class Selection:
    """What a handle uses now. Changes are made between two steps, on all ranks alike."""

    def __init__(
        self,
        coder: Coder,
        exchanges: Exchanges,
        momentum: MomentumLink,
        parameters: Mapping[str, nn.Parameter],
        crew: LaneCrew,
    ) -> None:
        self.plain = False  # whether DDP's own group averages
        self._flushes = 0  # steps that may yet go before that, so that what is held back is sent
        self._coder = coder
        self._exchanges = exchanges
        self._momentum = momentum
        self._parameters = parameters
        self._crew = crew

    @property
    def method(self) -> Method:
        return self._coder.method

    @property
    def averages_plainly(self) -> bool:
        """Not as long as something is held back, on whatever rank: that is sent first."""
        return self.plain and not (self._flushes or self._coder.draining)

    def begin_step(self) -> None:
        """Has all ranks agree on whether any still holds something back: what one does not use waits there."""
        if self.plain and self._flushes:
            held = any(self._crew.gather(bool(self._coder.residuals)))
            self._flushes = self._flushes - 1 if held else 0

    def problem_with(self, method: Method | str) -> ConfigurationError | None:
        """Why this model, its exchange or its optimizer does not admit a method."""
        try:
            method = as_method(method)
            check_exchange(self._exchanges.name, method)
            check_types(self._parameters, method)
            self._momentum.check(method)
        except ConfigurationError as error:
            return error
        return None

    def set_method(self, method: Method) -> None:
        """By whatever exchange was asked for."""
        self.plain = False
        self._exchanges.choose("")
        self._coder.set_method(method)
        self.place_momentum()

    def follow(self, decision: Decision) -> None:
        """Does what "auto" has decided."""
        self.plain = decision.method == PLAIN
        self._flushes = MOST_FLUSHES
        self._exchanges.choose(decision.exchange)
        self._coder.set_method(Dense() if self.plain else from_spec(decision.method))
        self.place_momentum()

    def place_momentum(self) -> None:
        """Has momentum where the method wants it."""
        if self._crew.world_size > 1:
            self._momentum.follow(self.method, self._crew.average)

    def make_pilot(self, auto: Auto, device: torch.device) -> Pilot:
        """With the candidates that this model and its optimizer admit, which ranks agree on."""
        usable = {}
        for spec, method in auto.methods.items():
            problem = self.problem_with(method)
            if any(self._crew.gather(problem is not None)):
                log.info("%s is no candidate: %s", spec, problem or "another rank cannot use it")
            else:
                usable[spec] = method
        names = [exchange.name for exchange in self._exchanges.allowed]
        trained = sum(p.numel() for p in self._parameters.values() if p.requires_grad)
        return Pilot(auto, usable, self._coder.parameters, trained, names, self._crew, Watch(device=device))

    def open(
        self, buffer: Tensor, segments: tuple[Segment, ...], bucket: int, step: int, epoch: int
    ) -> tuple[AnyBucket, Exchange]:
        """Picks the exchange for a bucket (the same on all ranks: it depends on sizes alone) and starts its code."""
        world_size = self._crew.world_size
        dense = self._coder.is_dense_step(step, epoch)

        num_parts = self._coder.num_parts(segments)

        def frame_for(exchange: Exchange) -> AnyFrame:
            return self._coder.frame(segments, buffer.dtype, dense, exchange.num_shards(world_size, num_parts))

        allowed = self._exchanges.allowed
        exchange = cheapest(allowed, self.method, lambda exchange: frame_for(exchange).expected, world_size)
        return open_bucket(self._coder, frame_for(exchange), buffer, bucket, step), exchange
