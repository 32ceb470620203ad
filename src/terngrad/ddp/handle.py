"""The handle: what `attach` returns, and what DDP's hook calls."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from terngrad.ddp import saving
from terngrad.ddp.auto import Auto, Decision, as_auto
from terngrad.ddp.checks import ANY_EXCHANGE, check_exchange, check_types, require_same
from terngrad.ddp.crew import LaneCrew
from terngrad.ddp.futures import after_backward, done, plain_average
from terngrad.ddp.lane import Lane
from terngrad.ddp.layouts import Layouts
from terngrad.ddp.momentum import MomentumLink
from terngrad.ddp.parameters import averaged_parameters
from terngrad.ddp.phases import Phases
from terngrad.ddp.pilot import Pilot
from terngrad.ddp.scratch import Scratch
from terngrad.ddp.selection import Exchanges, Selection, as_method
from terngrad.ddp.servers import ParameterServers
from terngrad.ddp.stage import Stage, naming
from terngrad.ddp.statistics import Counters, by_parameter, summary
from terngrad.ddp.task import BucketTask, BucketWork, CallTask, SparseTask, sparse_bytes
from terngrad.ddp.verify import verify
from terngrad.errors import ConfigurationError
from terngrad.exchange import Channel, Exchange, own_group
from terngrad.methods import AnyBucket, Coder, Dense, Method, describe, from_spec


class Bucket(Protocol):
    """What is used of torch's GradBucket, which has no type that a checker can see."""

    def index(self) -> int: ...
    def is_last(self) -> bool: ...
    def buffer(self) -> Tensor: ...
    def parameters(self) -> list[Tensor]: ...


def _step_of(handle: weakref.ref[Handle]) -> Callable[[], str]:
    """Says in which step it is, without keeping it alive."""

    def tell() -> str:
        found = handle()
        return f"step {found.step}" if found is not None else "detached"

    return tell


class Handle:
    """Controls the compression of one DDP model. What changes something must be called on all ranks, between steps."""

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup,
        method: Method | Auto | str,
        *,
        exchange: str | ParameterServers = ANY_EXCHANGE,
        optimizer: torch.optim.Optimizer | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
        seed: int = 0,
        verify_every: int = 0,
        measure_every: int = 100,
        leaves_unused: bool = False,
    ) -> None:
        self._auto = auto = as_auto(method)
        method = Dense() if auto is not None else as_method(method)
        self._attached = False  # until all is well
        self._pilot: Pilot | None = None
        exchanges = Exchanges(exchange, auto, self, group)
        self._exchange = exchanges.name
        check_exchange(exchanges.name, method)
        if verify_every < 0 or measure_every < 0:
            raise ConfigurationError(
                f"verify_every={verify_every}, measure_every={measure_every}: both must be >= 0; 0 turns them off"
            )
        self._group = group
        self._parameters = averaged_parameters(module)
        check_types(self._parameters, method)
        self._verify_every = verify_every
        self._measure_every = measure_every
        with naming(lambda: f"rank {dist.get_rank(group)}, attach"):
            self._channel = Channel(own_group(group))
        self._lane = Lane()
        weakref.finalize(self, self._lane.release)
        device = next(iter(self._parameters.values()), torch.empty(0)).device
        self._crew = LaneCrew(self._lane, self._channel, device, _step_of(weakref.ref(self)))
        self._phases = Phases()
        self._scratch = (Scratch(), Scratch())
        rank, world_size = self._channel.rank, self._channel.world_size
        self._coder = Coder(method, describe(self._parameters), rank, world_size, operator.index(seed))
        self._coder.leaves_unused = leaves_unused
        self._momentum = MomentumLink(optimizer, self._parameters, [self._coder], by_memory=True)
        self._selection = Selection(self._coder, exchanges, self._momentum, self._parameters, self._crew)
        self._grad_scaler = grad_scaler
        self._counters = Counters()
        self._layouts = Layouts(self._parameters, self._scratch)
        self._step = 0
        self._epoch = 0
        self._position = 0  # buckets of this step so far
        self._unnumbered = False
        try:
            self._begin(method, device)
        except BaseException:
            self._lane.close()
            raise
        self._selection.place_momentum()
        self._attached = True

    def _begin(self, method: Method, device: torch.device) -> None:
        """Makes sure that all ranks can begin with the same, and has "auto" make its first decision."""
        problem = self._selection.problem_with(method)
        auto = self._auto
        spec = auto.spec if auto is not None else ""
        self._agree("attach", problem=str(problem), grad_scaler=self._grad_scaler is not None, auto=spec)
        if problem:
            raise problem
        if auto is not None and self._channel.world_size > 1:
            self._pilot = self._selection.make_pilot(auto, device)
            self._selection.follow(self._pilot.start(0))

    # For the user

    @property
    def method(self) -> Method:
        """The method in use."""
        return self._coder.method

    @property
    def step(self) -> int:
        """How many synchronised backward passes there have been."""
        return self._step

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What "auto" has decided so far, and why; the last one holds. Empty for a method of your own choice."""
        return tuple(self._pilot.decisions) if self._pilot is not None else ()

    @property
    def choosing(self) -> bool:
        """Whether "auto" still measures what it has chosen."""
        return self._pilot is not None and self._pilot.choosing

    @property
    def attached(self) -> bool:
        """False after detach()."""
        return self._attached

    def stats(self, per_parameter: bool = False) -> dict[str, Any]:
        """What was really sent, what it replaced, and where the time went; all since attach, on this rank."""
        return summary(self._counters, self._channel, self._phases, self._coder, self._scratch, per_parameter)

    def take_measurements(self) -> dict[str, dict[str, Any]]:
        """Of every parameter, what was measured since the last call: numel, scaler, density, relative_error, bits."""
        return by_parameter(self._coder, self._coder.take_measured())

    def set_epoch(self, epoch: int) -> None:
        """Tells the epoch to methods that send every K-th one dense."""
        self._require_attached("set_epoch")
        self._agree("set_epoch", epoch=epoch)
        self._epoch = epoch

    def set_method(self, method: Method | str) -> None:
        """Changes the method from the next step on. Residuals are kept, and sent by the first step that keeps none.

        "auto" makes no more choices after that.
        """
        self._require_attached("set_method")
        problem = self._selection.problem_with(method)
        spec = as_method(method).spec if problem is None else str(method)
        self._agree("set_method", method=spec, problem=str(problem))
        if problem:
            raise problem
        method = as_method(method)
        if self._pilot is not None:
            self._pilot.pin(Decision(self._step, method.spec, self._exchange, "pinned"))
        self._selection.set_method(method)

    def pin(self) -> None:
        """Has "auto" stay with what it uses now."""
        self._require_attached("pin")
        self._agree("pin")
        if self._pilot is not None:
            self._pilot.pin(replace(self._pilot.decisions[-1], step=self._step, reason="pinned"))

    def drain(self) -> None:
        """Makes the next step dense: it sends the residuals as well.

        Of parameters that this rank does not use in that step, with `find_unused_parameters`, they stay.
        """
        self._require_attached("drain")
        self._agree("drain", draining=True)
        self._coder.draining = True

    def detach(self) -> None:
        """Back to plain averaging by DDP's own process group. What is still held back is lost: drain() first.

        Momentum that a method has taken over goes back to the optimizer.
        """
        if self._attached:
            if self._lane.error is None:
                self._momentum.give_back(self._crew.average)
            else:
                self._momentum.abandon()
            self._attached = False
            # The group stays: torch would give its name to the next one, which then finds the old one's addresses.
            self._lane.close()

    def state_dict(self) -> dict[str, Any]:
        """All that an exact resume of this rank needs, beyond what torch saves."""
        return {
            **self._identity(),
            "seed": self._coder.seed,
            "step": self._step,
            "epoch": self._epoch,
            **saving.held_by(self._coder),
            "momentum": self._momentum.state_dict(),
            "auto": self._pilot.state_dict() if self._pilot is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any], on_resize: str = "refuse") -> None:
        """Continues where `state_dict` was taken. Refuses, on all ranks, what one of them cannot continue exactly.

        What is held back belongs to a rank. With another number of ranks it can only be dropped, which
        `on_resize="reset"` allows. "auto" goes on with the method that was saved, and measures it anew.
        """
        if on_resize not in ("refuse", "reset"):
            raise ConfigurationError(f"load_state_dict(on_resize={on_resize!r}): there is 'refuse' and 'reset'")
        self._require_attached("load_state_dict")
        if on_resize == "reset" and state.get("world_size") != self._channel.world_size:
            state = {**state, "residuals": {}, "velocities": {}, "last_norm": 0.0}
        mine, chosen = self._identity(), None
        if self._auto is not None and self._selection.problem_with(state.get("method", "")) is None:
            mine["method"], chosen = state["method"], (state["method"], repr(state.get("auto")))
        problem = saving.problem_with(state, mine, self._parameters) or self._momentum.problem_with(state)
        step, seed = state.get("step"), state.get("seed")
        self._agree("load_state_dict", state=problem or "usable", step=step, seed=seed, chosen=chosen)
        if problem:
            raise ConfigurationError(f"load_state_dict: {problem}")
        self._step = state["step"]
        self._epoch = state["epoch"]
        if self._pilot is not None:
            self._selection.follow(self._pilot.load_state_dict(state.get("auto"), state["method"], self._step))
        elif self._auto is not None:
            self._coder.set_method(from_spec(state["method"]))
        saving.restore(self._coder, state, self._parameters, keep_momentum=self._keeps_momentum(state))
        self._momentum.load_state_dict(state["momentum"])

    def _keeps_momentum(self, state: Mapping[str, Any]) -> bool:
        """Whether what the optimizer had stays: the state, of a world of one, has none of its own."""
        return state["momentum"] is None and self._momentum.moved

    def _identity(self) -> dict[str, Any]:
        """What a state must have in common with the handle that loads it."""
        return {
            "format": saving.FORMAT,
            "method": self.method.spec,
            "world_size": self._channel.world_size,
            "rank": self._channel.rank,
        }

    # For DDP

    def reduce(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """A future of the averaged bucket."""
        buffer = bucket.buffer()
        if not self._attached:
            return plain_average(self._group, buffer)
        in_backward = torch._C._current_graph_task_id() != -1  # not so on a rank that has joined early
        if self._lane.error is not None:
            return self._give_up(bucket, in_backward)
        # DDP does not number its buckets in the first step of a static graph, so they are counted here.
        step, position = self._step, self._position
        self._position += 1
        if in_backward:
            after_backward(self._end_backward)
        if position == 0 and self._channel.world_size > 1:
            try:
                self._begin_step(step, in_backward, buffer.device)
            except BaseException as error:  # other ranks wait for this one's part, so nothing can go on
                self._lane.error = error
                return self._give_up(bucket, in_backward)
        if bucket.is_last():
            self._count_step()
        elif bucket.index() < position:
            self._unnumbered = True
        if self._channel.world_size == 1:
            self._coder.draining = False
            return done(buffer)
        if self._pilot is not None:
            self._pilot.ready(self._layouts.indices(bucket.parameters()), buffer)
        if self._selection.averages_plainly:
            return self._average_plainly(buffer)
        future = self._submit(bucket, buffer, step, position)
        return future if in_backward else future.then(self._value_or_failure)

    def _count_step(self) -> None:
        self._step += 1
        self._counters.num_steps += 1
        self._position = 0
        self._unnumbered = False

    def _end_backward(self) -> None:
        """Raises what failed. Ends a step of which DDP has called no bucket the last; all its buckets are done."""
        self._raise_failure()
        if self._pilot is not None:
            self._pilot.end()
        if self._unnumbered:
            self._count_step()
            self._coder.end_step()

    def _give_up(self, bucket: Bucket, in_backward: bool) -> torch.futures.Future[Tensor]:
        """Lets DDP come to the end of its bookkeeping, or the next forward pass would complain of that; then raises."""
        if not in_backward:
            self._raise_failure()
        after_backward(self._raise_failure)
        return done(bucket.buffer())

    def _average_plainly(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        """As DDP would without this package; nothing is held back that would have to be sent."""
        world_size = self._channel.world_size
        if buffer.is_sparse:
            sent = sparse_bytes(buffer, world_size)
            self._counters.dense_bytes += sent
        else:
            sent = 2 * (world_size - 1) * buffer.nbytes // world_size
            self._counters.add_bucket(buffer.numel(), world_size)
        self._channel.count(sent, sent)
        return plain_average(self._group, buffer)

    def _begin_step(self, step: int, in_backward: bool, device: torch.device) -> None:
        if self._pilot is not None:
            decision = self._pilot.begin(step)
            if decision is not None:
                self._selection.follow(decision)
        self._selection.begin_step()
        self._momentum.take_loaded()
        if self._grad_scaler is not None:
            self._coder.rescale(self._grad_scaler.get_scale())
        if self._verify_every and step % self._verify_every == 0:
            stage = Stage(self._channel.rank, step, 0, self._phases, device)
            names, parameters = list(self._parameters), list(self._parameters.values())

            def check() -> None:
                with self._phases("verify"):
                    verify(self._channel, names, parameters, step, not in_backward, device)

            self._lane.submit(CallTask(check, stage))
            if self._selection.averages_plainly:  # then no bucket follows on the lane, and the step could end before it
                self._lane.call(lambda: None)

    def _submit(self, bucket: Bucket, buffer: Tensor, step: int, number: int) -> torch.futures.Future[Tensor]:
        devices: list[int | str | torch.device] = [] if buffer.device.type == "cpu" else [buffer.device]
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        epoch = self._epoch
        stage = Stage(self._channel.rank, step, number, self._phases, buffer.device)
        last = bucket.is_last()

        def complete(error: BaseException | None) -> None:
            # Even a failed bucket completes its future, so that DDP ends its own bookkeeping; the failure is raised
            # right after that, by after_backward.
            try:
                with stage.on_device():
                    if error is None and buffer.is_sparse:
                        self._coder.note_average(buffer.coalesce().values())
                    if error is None and last:
                        self._coder.end_step()
                    future.set_result(buffer)
            except BaseException as failure:
                future.set_exception(failure)  # type: ignore[arg-type]
                raise

        if buffer.is_sparse:
            if self._momentum.moved:
                raise ConfigurationError(
                    f"{self.method.spec}: the model has sparse gradients, which pass through, and their momentum "
                    "cannot; use Embedding(sparse=False), or give the method compensation='none'"
                )
            self._lane.submit(SparseTask(buffer, self._channel, self._counters, stage, complete))
            return future
        segments = self._layouts.segments(bucket.parameters(), number)
        self._counters.add_bucket(buffer.numel(), self._channel.world_size)
        measured = self._measure_every > 0 and step % self._measure_every == 0

        def open_code() -> tuple[AnyBucket, Exchange]:
            return self._selection.open(buffer, segments, number, step, epoch)

        scratch = self._scratch[number % 2]
        follow = not bucket.is_last()
        work = BucketWork(open_code, self._channel, scratch, stage, measured, follow, complete)
        self._lane.submit(BucketTask(work))
        return future

    # Failures and agreement

    def _raise_failure(self) -> None:
        if self._lane.error is not None:
            raise self._lane.error

    def _require_attached(self, action: str) -> None:
        if not self._attached:
            raise ConfigurationError(f"{action}: this handle is detached, and changes nothing; attach the model anew")

    def _value_or_failure(self, future: torch.futures.Future[Tensor]) -> Tensor:
        self._raise_failure()
        return future.value()

    def _agree(self, action: str, **changes: Any) -> None:
        """Raises on all ranks unless all have the same settings, with `changes` that are about to be made."""
        mine = {
            "method": self.method.spec,
            "exchange": self._exchange,
            "seed": self._coder.seed,
            "step": self._step,
            "epoch": self._epoch,
            "draining": self._coder.draining,
            "verify_every": self._verify_every,
            "momentum": self._momentum.settings(),
            "parameters": [(name, tuple(p.shape)) for name, p in self._parameters.items()],
            **changes,
        }
        self._raise_failure()
        everyone = self._crew.gather(mine, action)
        require_same(action, everyone)
