"""A method at work: the state that one rank keeps per parameter, over all buckets; per bucket only layout is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field

import torch
from torch import Tensor

from terngrad.codecs import AnyFrame, Frame, Segment, SparseFrame, coded
from terngrad.methods.base import Method, ParameterInfo
from terngrad.methods.sparse import Sparse
from terngrad.methods.terngrad import TernGrad

MOST_GROWTH = 4.0  # of the norm that the next gradient is clipped by: a gradient that explodes is cut by itself at once
REVISION_STEPS = 32  # over so many steps the usual density of a parameter is a mean
UPFRONT_SHARE = 0.5  # of what momentum adds to a gradient in later steps: see docs/sparse.md


@dataclass
class Measured:
    """What the codes of one parameter lost and took, added up over the measured steps."""

    num_steps: int = 0
    scaler: float = 0.0  # the mean over the parameter's blocks
    num_elements: int = 0
    num_nonzero: int = 0
    squared_error: float = 0.0
    squared_norm: float = 0.0
    num_bits: int = 0  # of its codes, as if it were alone in its message
    least_bits: float = 0.0  # Shannon's limit for them; 0 where codes are not entropy-coded

    def __add__(self, other: Measured) -> Measured:
        return Measured(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Measured) -> Measured:
        return Measured(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Momentum:
    """Of one parameter, as its optimizer had it."""

    factor: float = 0.0
    nesterov: bool = False

    @property
    def ahead(self) -> float:
        """A velocity here to the optimizer's: Nesterov's form keeps what it will look ahead by."""
        return self.factor if self.nesterov and self.factor else 1.0

    @property
    def upfront(self) -> float:
        """What a gradient counts if a share of what momentum would add to it later, m / (1 - m), is added at once."""
        return 1 + UPFRONT_SHARE * self.factor / (1 - self.factor)


@dataclass
class Coder:
    """One rank's state of a method, over all buckets."""

    method: Method
    parameters: Sequence[ParameterInfo]
    rank: int
    world_size: int
    seed: int
    residuals: dict[int, Tensor] = field(default_factory=dict)  # what is held back, by parameter index
    velocities: dict[int, Tensor] = field(default_factory=dict)  # of sparse methods with momentum, likewise
    momenta: dict[int, Momentum] = field(default_factory=dict)  # likewise
    densities: dict[int, float] = field(default_factory=dict)  # running means, likewise; the same on all ranks
    last_norm: float = 0.0  # of this rank's whole gradient before, without the scale of the loss; 0: not known
    squares: dict[int, float] = field(default_factory=dict)  # of this step's gradients, by parameter index, likewise
    scale: float = 1.0  # of the loss, in which residuals and velocities are kept
    undo: list[Callable[[], None]] = field(default_factory=list)  # what takes back a step that is void
    next_residuals: dict[int, Tensor | None] = field(default_factory=dict)  # as they will be, if the step is not void
    is_void: bool = False  # an average of this step is not finite, so its gradients will not be used
    measured: dict[int, Measured] = field(default_factory=dict)
    draining: bool = False
    leaves_unused: bool = False  # DDP writes no average of a parameter that no rank has used (find_unused_parameters)
    _taken: dict[int, Measured] = field(default_factory=dict)  # `measured` as it was when last taken
    _frames: dict[object, AnyFrame] = field(default_factory=dict)

    def set_method(self, method: Method) -> None:
        """Changes the method between two steps. Residuals stay, and are sent by the first step that keeps none."""
        self.method = method
        self.last_norm = 0.0  # there may be many steps before one that needs it
        self._frames.clear()
        if isinstance(method, Sparse) and not method.accumulation:
            self.draining = True  # what any rank holds back is sent first, as this method would drop it

    def frame(self, segments: tuple[Segment, ...], dtype: torch.dtype, all_dense: bool, num_shards: int) -> AnyFrame:
        """The layout of a bucket's messages; made once for each bucket and kind of step."""
        key = (segments, dtype, all_dense, num_shards)
        if key not in self._frames:
            make = self._sparse_frame if isinstance(self.method, Sparse) else self._fixed_frame
            self._frames[key] = make(segments, dtype, all_dense, num_shards)
        return self._frames[key]

    def num_parts(self, segments: Sequence[Segment]) -> int:
        """In how many parts a bucket may travel."""
        return self.method.num_parts(sum(segment.numel for segment in segments))

    def _fixed_frame(
        self, segments: tuple[Segment, ...], dtype: torch.dtype, all_dense: bool, num_shards: int
    ) -> AnyFrame:
        method = self.method
        ternary, dense = self._divide(segments, all_dense)
        frame = Frame(
            ternary,
            dense,
            codec=method.codec if isinstance(method, TernGrad) else "base3",
            block=method.block if isinstance(method, TernGrad) else 0,
            dense_type=method.dense_type(dtype),
            num_shards=num_shards,
            world_size=self.world_size,
        )
        return coded(frame)

    def _sparse_frame(
        self, segments: tuple[Segment, ...], dtype: torch.dtype, all_dense: bool, num_shards: int
    ) -> SparseFrame:
        """In a step that is all dense everything is chosen; what was held back is sent with it."""
        method = self.method
        assert isinstance(method, Sparse)
        sparse, dense = self._divide(segments, False)
        return SparseFrame(
            sparse,
            dense,
            values="fp32" if all_dense else method.values,
            density=1.0 if all_dense else method.expected_density,
            whole=all_dense,
            dense_type=method.dense_type(dtype),
            num_shards=num_shards,
            world_size=self.world_size,
        )

    def _divide(self, segments: tuple[Segment, ...], all_dense: bool) -> tuple[list[Segment], list[Segment]]:
        """Those that are coded, and those that are not."""
        dense = [all_dense or self.method.sends_dense(self.parameters[segment.index]) for segment in segments]
        return (
            [segment for segment, stays in zip(segments, dense, strict=True) if not stays],
            [segment for segment, stays in zip(segments, dense, strict=True) if stays],
        )

    def rescale(self, scale: float) -> None:
        """Expresses what is held back in another scale of the loss; the scales of AMP are powers of two, so exactly."""
        if scale != self.scale:
            for state in (*self.residuals.values(), *self.velocities.values()):
                state.mul_(scale / self.scale)
            self.scale = scale

    def revise(self, index: int, density: float, power: float) -> float:
        """The factor of a parameter's step when this share of it has arrived: below 1 if it is more than usual."""
        usual = self.densities.get(index, density)
        self.densities[index] = usual + (density - usual) / REVISION_STEPS
        return max(0.5, (usual / density) ** power) if density > usual else 1.0

    def residual(self, index: int, numel: int, device: torch.device) -> Tensor:
        """What is held back of a parameter, in single precision; zero at first."""
        return _state(self.residuals, index, numel, device)

    def velocity(self, index: int, numel: int, device: torch.device) -> Tensor:
        """Likewise its velocity."""
        return _state(self.velocities, index, numel, device)

    def waits(self, segment: Segment, buffer: Tensor) -> bool:
        """Whether what is held back of a parameter stays where it is: if no rank has used it, what arrives is lost."""
        if not self.leaves_unused:
            return False
        own = buffer[segment.source : segment.source + segment.numel]
        return not (bool(own[:64].any()) or bool(own.any()))  # nearly always told by the first few

    def is_dense_step(self, step: int, epoch: int) -> bool:
        """Whether all of a bucket is sent dense in this step."""
        return self.draining or self.method.is_dense_step(step, epoch)

    def add_measured(self, index: int, found: Measured) -> None:
        """Adds to what was measured of a parameter."""
        self.measured[index] = self.measured.get(index, Measured()) + found

    def take_measured(self) -> dict[int, Measured]:
        """What was measured since the last call."""
        now = dict(self.measured)
        found = {index: measured - self._taken.get(index, Measured()) for index, measured in now.items()}
        self._taken = now
        return {index: measured for index, measured in found.items() if measured.num_steps}

    @property
    def keeps_residuals(self) -> bool:
        """Whether anything is or will be held back, or, the same on all ranks, is to be sent in this step."""
        method = self.method
        return (
            self.draining
            or bool(self.residuals)
            or isinstance(method, Sparse)
            or (isinstance(method, TernGrad) and method.error_feedback)
        )

    def note_average(self, values: Tensor) -> None:
        """Finds a step void if an average is not finite; only those who keep residuals need to know."""
        if self.keeps_residuals:
            self.is_void |= not bool(torch.isfinite(values).all())

    def end_step(self) -> None:
        """After the last bucket: takes over the new residuals, or keeps the old ones if an average was not finite."""
        if self.is_void:
            for take_back in self.undo:
                take_back()
        else:
            for index, residual in self.next_residuals.items():
                if residual is None:
                    self.residuals.pop(index, None)
                else:
                    self.residuals[index] = residual
            if self.draining:
                self.residuals = {i: residual for i, residual in self.residuals.items() if bool(residual.any())}
        if self.squares and not self.is_void:
            norm = math.sqrt(math.fsum(self.squares.values()))  # exact, so in whatever order buckets came
            self.last_norm = min(norm, MOST_GROWTH * self.last_norm) if self.last_norm else norm
        self.squares.clear()
        self.next_residuals.clear()
        self.undo.clear()
        self.draining = self.draining and self.is_void  # a void step has sent nothing
        self.is_void = False


def _state(states: dict[int, Tensor], index: int, numel: int, device: torch.device) -> Tensor:
    if index not in states:
        states[index] = torch.zeros(numel, dtype=torch.float32, device=device)
    elif states[index].dtype != torch.float32:
        states[index] = states[index].float()
    return states[index]
