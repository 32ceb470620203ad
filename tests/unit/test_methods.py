"""What TernGrad and the dense methods send, average, keep back and refuse; several ranks in one process."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import DTYPES, same_bits
from ranks import Ranks, gradients_of
from torch import Tensor, nn

import terngrad as tg
from terngrad.codecs import CODES, DENSE_TYPES
from terngrad.errors import ConfigurationError
from terngrad.kernels import Code, Statistics, kernels_for, packed_bytes, reference
from terngrad.methods import Dense, Method, ParameterInfo, TernGrad, from_spec
from terngrad.methods.base import PART_ELEMENTS

SIZES = (500, 3, 161, 1000, 40)
TERNARY = TernGrad(dense_below=100)  # makes parameters 0, 2 and 3 of SIZES ternary
FEEDBACK = replace(TERNARY, error_feedback=True)


# Settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clip": -1.0}, r"TernGrad\(clip=-1.0\): clip must be >= 0; pass 0 to turn clipping off"),
        ({"clip": math.nan}, r"TernGrad\(clip=nan\): clip must be >= 0"),
        (
            {"clip": 2.5, "error_feedback": True},
            r"TernGrad\(clip=2.5\): clip must be above 0 and at most 2.0 with error",
        ),
        ({"clip": 0, "error_feedback": True}, r"TernGrad\(clip=0.0\): clip must be above 0 .* leave it out for 1.5"),
        ({"sigma": "mad"}, r"TernGrad\(sigma='mad'\): sigma must be 'rms' or 'std'"),
        ({"block": 12}, r"TernGrad\(block=12\): block must be a multiple of 8, or 0"),
        ({"block": -8}, r"TernGrad\(block=-8\): block must be an integer >= 0"),
        ({"block": 64.0}, r"TernGrad\(block=64.0\): block must be an integer >= 0"),
        ({"codec": "base4"}, r"TernGrad\(codec='base4'\): codec must be one of two-bit, base3"),
        ({"dense_below": -1}, r"TernGrad\(dense_below=-1\): dense_below must be an integer >= 0"),
        ({"warmup_steps": -1}, r"TernGrad\(warmup_steps=-1\): warmup_steps must be an integer >= 0"),
        ({"dense_every_steps": -2}, r"TernGrad\(dense_every_steps=-2\)"),
        ({"dense_every_epochs": -3}, r"TernGrad\(dense_every_epochs=-3\)"),
        ({"dense_names": "*.bias"}, r"TernGrad\(dense_names='\*.bias'\): dense_names must be a tuple of patterns"),
        ({"dense_names": ["*.bias"]}, r"TernGrad\(dense_names=\['\*.bias'\]\): dense_names must be a tuple"),
        ({"dense_names": ("a,b",)}, r"TernGrad\(dense_names=\('a,b',\)\): dense_names must be .* without ',' and '\+'"),
        ({"dense_names": ("",)}, r"TernGrad\(dense_names=\('',\)\): dense_names must be .* not empty"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_was_passed_and_what_is_needed(
    wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TernGrad(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):  # the same error, for those who do not know ours
        TernGrad(**wrong)  # type: ignore[arg-type]


def test_a_dense_method_of_unknown_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Dense\(dtype='fp8'\): dtype must be one of fp32, fp16, bf16"):
        Dense("fp8")


pattern = st.text("abc.*?[]=!_0", min_size=1, max_size=6)
terngrads = st.builds(
    lambda clipping, **fields: TernGrad(clip=clipping[0], error_feedback=clipping[1], **fields),
    clipping=st.tuples(st.none() | st.floats(0, allow_nan=False) | st.integers(0, 5), st.just(False))
    | st.tuples(st.none() | st.floats(0, 2, exclude_min=True), st.just(True)),
    sigma=st.sampled_from(["rms", "std"]),
    block=st.integers(0, 100).map(lambda n: 8 * n),
    shared=st.booleans(),
    codec=st.sampled_from(list(CODES)),
    dense_below=st.integers(0, 10**6),
    dense_names=st.lists(pattern, max_size=3).map(tuple),
    dense_last_layer=st.booleans(),
    warmup_steps=st.integers(0, 10**6),
    dense_every_steps=st.integers(0, 100),
    dense_every_epochs=st.integers(0, 100),
)


@given(terngrads | st.sampled_from(list(DENSE_TYPES)).map(Dense))
def test_a_method_comes_back_from_its_spec(method: Method) -> None:
    assert from_spec(method.spec) == method


@pytest.mark.parametrize(
    ("spec", "method"),
    [
        ("terngrad", TernGrad()),
        ("terngrad:", TernGrad()),
        ("terngrad:clip=0,codec=two-bit,shared=no", TernGrad(clip=0, codec="two-bit", shared=False)),
        ("terngrad:dense_names=*.bias+norm.*,dense_names=*.bias", TernGrad(dense_names=("*.bias",))),
        ("terngrad:error_feedback=1,dense_last_layer=TRUE", TernGrad(error_feedback=True, dense_last_layer=True)),
        ("terngrad-paper", TernGrad.paper()),
        ("terngrad-paper:sigma=rms", TernGrad.paper(sigma="rms")),
        ("bf16", Dense("bf16")),
    ],
)
def test_from_spec_reads(spec: str, method: Method) -> None:
    assert from_spec(spec) == method


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("qsgd", "method 'qsgd': there is bf16, dgc, fp16, fp32, sdagc, terngrad, terngrad-paper; pass one of these"),
        ("terngrad:clap=1", "no option 'clap=1'; terngrad takes clip=..., sigma=..."),
        ("terngrad:clip", "no option 'clip'; terngrad takes clip=..."),
        ("terngrad:clip=wide", "clip='wide' is not a float"),
        ("terngrad:block=1.5", "block='1.5' is not a int"),
        ("terngrad:shared=maybe", "shared='maybe' is not a bool"),
        ("terngrad:clip=-1", r"TernGrad\(clip=-1.0\): clip must be >= 0"),
        ("fp16:dtype=bf16", "no option 'dtype=bf16'; fp16 takes none"),
    ],
)
def test_from_spec_says_what_it_cannot_read(spec: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_spec(spec)


def test_the_paper_preset_is_the_papers_setting() -> None:
    paper = TernGrad.paper()
    assert (paper.sigmas, paper.sigma, paper.block, paper.shared) == (2.5, "std", 0, True)
    assert (paper.dense_below, paper.dense_last_layer, paper.error_feedback) == (9217, True, False)
    assert TernGrad.paper(clip=3.0, dense_last_layer=False) == replace(paper, clip=3.0, dense_last_layer=False)


# Limits


def limit_of(method: TernGrad, values: Tensor) -> float:
    spans = np.array([[0, len(values)]], dtype=np.int64)
    counts = torch.tensor([len(values)], dtype=torch.float64)
    return float(method.limits(reference.statistics(values, spans), counts))


def wide_normal(offset: float = 0.0) -> Tensor:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 0.01 + offset
    values[7] = 5.0
    return values


@pytest.mark.parametrize("clip", [0.5, 2.5, 4.0])
def test_the_limit_is_clip_standard_deviations(clip: float) -> None:
    values = wide_normal(offset=0.02)
    rms, std = values.double().square().mean().sqrt().item(), values.double().std(correction=0).item()
    assert limit_of(TernGrad(clip=clip), values) == pytest.approx(clip * rms, rel=1e-5)
    assert limit_of(TernGrad(clip=clip, sigma="std"), values) == pytest.approx(clip * std, rel=1e-4)
    assert clip * rms > 1.02 * clip * std


def test_the_limit_is_never_above_the_largest_magnitude() -> None:
    values = torch.tensor([1.0, -2.0, 2.0, 1.5])
    assert limit_of(TernGrad(), values) == 2.0
    assert limit_of(TernGrad(clip=math.inf), values) == 2.0


def test_clip_zero_turns_clipping_off() -> None:
    assert limit_of(TernGrad(clip=0), wide_normal()) == 5.0


@pytest.mark.parametrize("sigma", ["rms", "std"])
@pytest.mark.parametrize("numel", [1, 100, 5000, 100_000])
@pytest.mark.parametrize("value", [0.1, 0.3, -1.7e-3, 7.7, 1e-30, 3e38])
def test_a_constant_gradient_is_not_clipped(value: float, numel: int, sigma: str) -> None:
    values = torch.full((numel,), value)
    assert limit_of(TernGrad(sigma=sigma), values) == float(values[0].abs())


@pytest.mark.parametrize("sigma", ["rms", "std"])
def test_a_small_spread_about_a_large_mean_is_seen_down_to_a_hundredth(sigma: str) -> None:
    values = 1 + 0.02 * torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    expected = {"rms": float(values.abs().max()), "std": 2.5 * float(values.double().std())}
    assert limit_of(TernGrad(sigma=sigma), values) == pytest.approx(expected[sigma], rel=0.05)


@pytest.mark.parametrize("sigma", ["rms", "std"])
def test_a_standard_deviation_that_overflows_means_no_clipping(sigma: str) -> None:
    values = 1e30 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert limit_of(TernGrad(clip=0.1, sigma=sigma), values) == float(values.abs().max())


@pytest.mark.parametrize("sigma", ["rms", "std"])
def test_a_gradient_too_small_for_its_step_counts_as_zero(sigma: str) -> None:
    smallest = 2.0**-100
    assert limit_of(TernGrad(sigma=sigma), torch.full((10,), smallest)) == smallest
    assert limit_of(TernGrad(sigma=sigma), torch.full((10,), smallest * 0.99)) == 0.0
    assert limit_of(TernGrad(sigma=sigma), torch.zeros(10)) == 0.0


@pytest.mark.parametrize(("clip", "sigma"), list(product([0.0, 2.5], ["rms", "std"])))
def test_the_limit_of_a_gradient_that_is_not_finite_is_nan(clip: float, sigma: str) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        values = wide_normal()
        values[99] = bad
        assert math.isnan(limit_of(TernGrad(clip=clip, sigma=sigma), values))


def test_limits_of_many_units_are_the_limits_of_each() -> None:
    method, values = TernGrad(clip=1.0), wide_normal()
    spans = np.array([[0, 3000], [3000, 6000], [9000, 1000]], dtype=np.int64)
    all_at_once = method.limits(reference.statistics(values, spans), torch.from_numpy(spans[:, 1]).double())
    assert all_at_once.tolist() == [limit_of(method, values[first : first + count]) for first, count in spans]


def test_limits_are_single_precision() -> None:
    one = Statistics(torch.ones(1), torch.ones(1).double(), torch.ones(1).double())
    assert TernGrad().limits(one, torch.ones(1).double()).dtype is torch.float32


# Roles and schedules


def test_parameters_that_are_small_named_or_last_are_dense() -> None:
    method = TernGrad(dense_below=100, dense_names=("*.norm.*", "head.bias"), dense_last_layer=True)
    assert method.sends_dense(ParameterInfo("a.weight", 99, False))
    assert not method.sends_dense(ParameterInfo("a.weight", 100, False))
    assert method.sends_dense(ParameterInfo("a.norm.weight", 1000, False))
    assert method.sends_dense(ParameterInfo("head.bias", 1000, False))
    assert not method.sends_dense(ParameterInfo("head.Bias", 1000, False))
    assert method.sends_dense(ParameterInfo("a.weight", 1000, True))
    assert not replace(method, dense_last_layer=False).sends_dense(ParameterInfo("a.weight", 1000, True))


def test_an_empty_parameter_is_dense_whatever_the_setting() -> None:
    assert TernGrad(dense_below=0).sends_dense(ParameterInfo("empty", 0, False))
    assert not TernGrad(dense_below=0).sends_dense(ParameterInfo("scalar", 1, False))


def dense_steps(method: Method, epoch: int = 1) -> list[int]:
    return [step for step in range(10) if method.is_dense_step(step, epoch)]


def test_dense_steps_follow_their_schedules() -> None:
    assert dense_steps(TernGrad()) == []
    assert dense_steps(TernGrad(warmup_steps=3)) == [0, 1, 2]
    assert dense_steps(TernGrad(dense_every_steps=4)) == [0, 4, 8]
    assert dense_steps(TernGrad(dense_every_steps=4, warmup_steps=2)) == [0, 1, 4, 8]
    assert dense_steps(Dense()) == list(range(10))


def test_dense_epochs_follow_their_schedule() -> None:
    method = TernGrad(dense_every_epochs=3)
    assert [epoch for epoch in range(8) if dense_steps(method, epoch)] == [0, 3, 6]
    assert dense_steps(method, 3) == list(range(10))


def test_dense_values_travel_in_the_gradients_type_unless_the_method_says_otherwise() -> None:
    for dtype in DTYPES:
        assert TernGrad().dense_type(dtype) is dtype
        assert Dense("fp16").dense_type(dtype) is torch.float16


# Averages


@pytest.mark.parametrize("world_size", range(1, 6))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", [*(f"terngrad:dense_below=100,codec={c}" for c in CODES), *DENSE_TYPES])
@pytest.mark.parametrize("block", [0, 64])
def test_both_exchanges_give_every_rank_the_same_bits(
    spec: str, block: int, dtype: torch.dtype, world_size: int
) -> None:
    method = from_spec(f"{spec},block={block}" if spec.startswith("terngrad") else spec)
    first, second = (Ranks.start(method, SIZES, world_size) for _ in range(2))
    gradients = gradients_of(first, dtype)
    gathered, two_shot = first.all_gather(gradients, step=7), second.two_shot(gradients, step=7)
    for buffer in (*gathered, *two_shot):
        assert same_bits(buffer, gathered[0])
    assert not torch.equal(gathered[0], torch.zeros_like(gathered[0]))


@pytest.mark.parametrize("num_parts", [1, 2, 3, 11])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", ["", ",block=64", ",shared=false", ",block=64,shared=false,clip=0"])
@pytest.mark.parametrize("codec", CODES)
def test_a_bucket_in_parts_gives_the_same_bits_and_measurements_as_a_whole_one(
    codec: str, options: str, dtype: torch.dtype, num_parts: int
) -> None:
    method = from_spec(f"terngrad:dense_below=100,codec={codec}{options}")
    whole, cut = (Ranks.start(method, SIZES, 3) for _ in range(2))
    gradients = gradients_of(whole, dtype)
    for step in range(2):
        expected, found = whole.in_parts(gradients, 1, step), cut.in_parts(gradients, num_parts, step)
        assert all(same_bits(one, expected[0]) for one in (*expected, *found))
    assert same_bits(expected[0], Ranks.start(method, SIZES, 3).all_gather(gradients, 1)[0])
    for index, one in whole.coders[0].measured.items():
        other = cut.coders[0].measured[index]
        assert (other.num_steps, other.scaler, other.num_elements) == (2, one.scaler, one.num_elements)
        assert (other.num_nonzero, other.squared_norm) == (one.num_nonzero, one.squared_norm)
        assert other.squared_error == pytest.approx(one.squared_error)
    assert len(cut.coders[0].measured) == len(whole.coders[0].measured) > 0


def test_dense_values_in_parts_are_those_of_a_whole_bucket() -> None:
    whole, cut = (Ranks.start(Dense("fp16"), SIZES, 3) for _ in range(2))
    gradients = gradients_of(whole)
    assert same_bits(cut.in_parts(gradients, 4)[2], whole.all_gather(gradients)[0])


@pytest.mark.parametrize(
    ("spec", "parts"),
    [("terngrad", 4), ("terngrad:codec=entropy", 4), ("fp16", 4), ("terngrad:error_feedback=true", 1), ("sdagc", 1)],
)
def test_large_buckets_go_in_parts_where_nothing_is_held_back(spec: str, parts: int) -> None:
    method = from_spec(spec)
    assert method.num_parts(4 * PART_ELEMENTS + 5) == parts
    assert method.num_parts(2 * PART_ELEMENTS - 1) == method.num_parts(0) == 1


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_ternary_average_is_a_multiple_of_the_shared_scaler(world_size: int) -> None:
    """A multiple m of s/N with |m| <= N, where s is the largest limit of all ranks."""
    ranks = Ranks.start(TERNARY, SIZES, world_size)
    gradients = gradients_of(ranks)
    average = ranks.all_gather(gradients)[0]
    for segment in ranks.frame(torch.float32, 1).ternary:
        part = slice(segment.source, segment.source + segment.numel)
        unit = torch.tensor(max(limit_of(TERNARY, gradient[part]) for gradient in gradients)) / world_size
        multiples = (average[part] / unit).round()
        assert torch.equal(multiples * unit, average[part])
        assert 0 < multiples.abs().max() <= world_size


def test_equal_gradients_are_drawn_anew_on_every_rank_in_every_step_for_every_parameter_and_seed() -> None:
    """500 values of |g| / s = 1/2 agree by chance in about 250 places; fixed seeds, and 350 would be 9 deviations."""
    sizes = (500, 500)
    gradient = torch.full((1000,), 0.5)
    gradient[0] = gradient[500] = 1.0
    found: list[Tensor] = []
    for seed, step in ((1, 0), (1, 1), (2, 0)):
        ranks = Ranks.start(replace(TERNARY, clip=0.0, shared=False), sizes, 2, seed)
        codes, messages = ranks.encode([gradient, gradient], 1, step)
        for own in messages:
            kernels_for(own.device).mean_shared(
                codes[0].buffer, codes[0].frame.runs, list(own), torch.ones(2), Code.BASE3
            )
            found.extend(codes[0].buffer.clone().split(500))
    for i, one in enumerate(found):
        assert all(150 < int((one == other).sum()) < 350 for other in found[:i])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codec", ["two-bit", "base3"])
def test_with_own_scalers_every_rank_counts_with_its_own(codec: str, dtype: torch.dtype) -> None:
    ranks = Ranks.start(replace(TERNARY, shared=False, codec=codec), SIZES, 2)
    gradients = gradients_of(ranks)
    gradients = [gradients[0].to(dtype), (gradients[1] * 10).to(dtype)]
    average, other = ranks.all_gather(gradients)
    assert same_bits(average, other)
    for segment in ranks.frame(dtype, 1).ternary:
        part = slice(segment.source, segment.source + segment.numel)
        small, large = (torch.tensor(limit_of(TERNARY, gradient[part])) for gradient in gradients)
        possible = torch.stack([(a * small + b * large) * 0.5 for a in (-1, 0, 1) for b in (-1, 0, 1)]).to(dtype)
        assert torch.isin(average[part], possible).all()
        assert len(set(average[part].tolist())) == 9


@pytest.mark.statistical
@pytest.mark.parametrize("shared", [True, False])
def test_the_average_over_many_steps_is_the_mean_gradient(shared: bool) -> None:
    """1000 steps, three ranks, no clipping. Each element's deviation is bounded by Hoeffding's inequality: the average
    is a mean of 3000 independent values in [-s, s], so P(|deviation| > 6 s / sqrt(3000)) <= 2 exp(-18) = 3e-8; over
    1661 elements and two tests, a false-alarm rate of 1e-4.
    """
    ranks = Ranks.start(replace(TERNARY, clip=0.0, shared=shared), SIZES, 3)
    gradients = gradients_of(ranks)
    total = torch.zeros(sum(SIZES), dtype=torch.float64)
    for step in range(1000):
        total += ranks.all_gather(gradients, step)[0]
    deviation = (total / 1000 - torch.stack(gradients).double().mean(dim=0)).abs()
    for segment in ranks.frame(torch.float32, 1).ternary:
        part = slice(segment.source, segment.source + segment.numel)
        largest = max(float(gradient[part].abs().max()) for gradient in gradients)
        assert deviation[part].max() <= 6 * largest / 3000**0.5
        assert deviation[part].max() > 0


@pytest.mark.parametrize("world_size", range(1, 6))
@pytest.mark.parametrize("wire", DENSE_TYPES)
def test_dense_averages_are_the_mean_rounded_once(wire: str, world_size: int) -> None:
    """Of multiples of 1/64, so that the sum of the ranks is exact and the mean is rounded by the last step alone."""
    ranks = Ranks.start(Dense(wire), SIZES, world_size)
    generator = torch.Generator().manual_seed(0)
    integers = torch.randint(-128, 129, (world_size, sum(SIZES)), generator=generator)
    exact = (integers.sum(dim=0).double() / 64 / world_size).float().to(DENSE_TYPES[wire]).float()
    for exchange in (ranks.all_gather, ranks.two_shot):
        for found in exchange(list(integers / 64)):
            assert torch.equal(found, exact)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dense_values_of_any_gradient_type_lose_no_more_than_the_wire_does(dtype: torch.dtype) -> None:
    for wire, wire_type in DENSE_TYPES.items():
        ranks = Ranks.start(Dense(wire), SIZES, 1)
        (gradient,) = gradients_of(ranks, dtype)
        (found,) = ranks.all_gather([gradient])
        assert torch.equal(found, gradient.to(wire_type).to(dtype))


def test_an_overflow_of_fp16_on_the_wire_is_infinite_on_every_rank() -> None:
    ranks = Ranks.start(Dense("fp16"), SIZES, 2)
    gradients = gradients_of(ranks)
    gradients[1][5] = 1e6
    for found in ranks.all_gather(gradients):
        assert found[5] == math.inf
        assert found.isfinite().sum() == len(found) - 1


def test_parameters_that_stay_dense_are_averaged_exactly() -> None:
    ranks = Ranks.start(TERNARY, SIZES, 2)
    gradients = gradients_of(ranks)
    expected = (gradients[0] + gradients[1]) / 2
    average = ranks.two_shot(gradients)[0]
    frame = ranks.frame(torch.float32, 2)
    assert [segment.index for segment in frame.dense] == [1, 4]
    for segment in frame.dense:
        part = slice(segment.source, segment.source + segment.numel)
        assert torch.equal(average[part], expected[part])


def test_a_dense_step_of_terngrad_is_the_dense_average() -> None:
    ternary = Ranks.start(replace(TERNARY, warmup_steps=1), SIZES, 3)
    dense = Ranks.start(Dense(), SIZES, 3)
    gradients = gradients_of(ternary)
    assert same_bits(ternary.all_gather(gradients, step=0)[0], dense.all_gather(gradients, step=0)[0])
    assert not torch.equal(ternary.all_gather(gradients, step=1)[0], dense.all_gather(gradients, step=1)[0])


def test_a_zero_gradient_has_a_zero_average() -> None:
    ranks = Ranks.start(TERNARY, SIZES, 3)
    for found in ranks.two_shot([torch.zeros(sum(SIZES)) for _ in range(3)]):
        assert torch.equal(found, torch.zeros(sum(SIZES)))


def test_a_new_method_takes_effect_in_the_next_step() -> None:
    ranks = Ranks.start(TERNARY, SIZES, 2)
    gradients = gradients_of(ranks)
    ranks.all_gather(gradients)
    for coder in ranks.coders:
        coder.set_method(Dense())
    expected = Ranks.start(Dense(), SIZES, 2).all_gather(gradients)[0]
    assert torch.equal(ranks.all_gather(gradients)[0], expected)


def test_measurements_are_what_the_codes_lost() -> None:
    ranks = Ranks.start(replace(TERNARY, block=64), SIZES, 1)
    (gradient,) = gradients_of(ranks)
    codes, messages = ranks.encode([gradient], 1, 0)
    for _ in range(2):
        codes[0].measure()
    codes[0].decode(messages[:, 0])
    sent = codes[0].buffer.double()
    assert sorted(ranks.coders[0].measured) == [0, 2, 3]
    for segment in codes[0].frame.ternary:
        part = slice(segment.source, segment.source + segment.numel)
        found = ranks.coders[0].measured[segment.index]
        assert found.num_elements == 2 * segment.numel
        assert found.num_nonzero == 2 * int((sent[part] != 0).sum())
        assert found.squared_error == pytest.approx(2 * float((sent[part] - gradient[part]).square().sum()), rel=1e-5)
        assert found.squared_norm == pytest.approx(2 * float(gradient[part].double().square().sum()), rel=1e-5)
        assert found.num_bits == 2 * 8 * packed_bytes(segment.numel, codes[0].frame.code.rows)


def test_bits_of_entropy_codes_are_measured_against_shannons_limit() -> None:
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 7))
    found = {}
    for codec in ("entropy", "base3"):
        workers = tg.VirtualWorkers(model, TernGrad(codec=codec, dense_below=0), 3, measure_every=1)
        torch.manual_seed(6)
        workers.rows.copy_(torch.randn_like(workers.rows) ** 3)
        workers.average()
        found[codec] = workers.take_measurements()
    large, small = found["entropy"]["0.weight"], found["entropy"]["1.weight"]
    d = large["density"]
    # Signs are as good as even, so the limit is that of the positions and a bit for every sign.
    limit = d - d * math.log2(d) - (1 - d) * math.log2(1 - d)
    assert large["least_bits"] == pytest.approx(limit, rel=1e-3)
    assert large["least_bits"] < large["bits"] < 1.03 * large["least_bits"]
    assert small["bits"] > small["least_bits"]
    assert found["base3"]["0.weight"]["bits"] == pytest.approx(1.6, rel=1e-2)
    assert found["base3"]["0.weight"]["least_bits"] is None


# Gradients that are not finite


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("exchange", ["all_gather", "two_shot"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_value_that_is_not_finite_on_one_rank_makes_its_segment_nan_on_all(
    bad: float, exchange: str, dtype: torch.dtype
) -> None:
    ranks = Ranks.start(TERNARY, SIZES, 3)
    gradients = gradients_of(ranks, dtype)
    segment = ranks.segments[2]
    gradients[1][segment.source + 100] = bad
    broken = torch.zeros(sum(SIZES), dtype=torch.bool)
    broken[segment.source : segment.source + segment.numel] = True
    for found in getattr(ranks, exchange)(gradients):
        assert torch.equal(found.isnan(), broken)
        assert found[~broken].isfinite().all()


def test_with_own_scalers_too_a_value_that_is_not_finite_reaches_every_rank() -> None:
    ranks = Ranks.start(replace(TERNARY, shared=False), SIZES, 3)
    gradients = gradients_of(ranks)
    gradients[2][3] = math.inf
    for found in ranks.all_gather(gradients):
        assert found[:500].isnan().all()
        assert found[500:].isfinite().all()


def test_a_value_that_is_not_finite_in_a_dense_segment_stays_in_its_place() -> None:
    ranks = Ranks.start(TERNARY, SIZES, 2)
    gradients = gradients_of(ranks)
    gradients[0][501] = math.nan
    for found in ranks.two_shot(gradients):
        assert found.isnan().nonzero().tolist() == [[501]]


# Error feedback


def mean_residual(ranks: Ranks) -> Tensor:
    """Over the ranks, as a bucket in double precision; zero where none is kept."""
    total = torch.zeros(sum(SIZES), dtype=torch.float64)
    for coder in ranks.coders:
        for index, kept in coder.residuals.items():
            segment = ranks.segments[index]
            total[segment.source : segment.source + segment.numel] += kept.double() / ranks.world_size
    return total


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("changes", [{}, {"shared": False}, {"block": 64}, {"clip": 1.0}], ids=str)
def test_sent_and_kept_add_up_to_the_gradient_and_what_was_kept_before(
    changes: dict[str, object], dtype: torch.dtype, world_size: int
) -> None:
    """To the rounding of four operations on numbers no larger than `size`."""
    ranks = Ranks.start(replace(FEEDBACK, **changes), SIZES, world_size)  # type: ignore[arg-type]
    for step in range(4):
        gradients = gradients_of(ranks, dtype, seed=step)
        before = mean_residual(ranks)
        average = ranks.all_gather(gradients, step)[0].double()
        given = torch.stack(gradients).double().mean(dim=0) + before
        size = max(float(average.abs().max()), float(given.abs().max())) * world_size
        assert (average + mean_residual(ranks) - given).abs().max() <= 4 * torch.finfo(dtype).eps * size
        assert sorted(ranks.coders[0].residuals) == [0, 2, 3]
        assert mean_residual(ranks).abs().max() > 0.1


@pytest.mark.parametrize("clip", [None, 2.0])
def test_what_is_held_back_does_not_grow_with_steps(clip: float | None) -> None:
    """Of normal gradients, after as long as it takes 2.5 standard deviations to hold back ten times the gradient."""
    ranks = Ranks.start(replace(FEEDBACK, clip=clip), SIZES, 2)
    for step in range(50):
        gradients = [torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(2 * step + i)) for i in range(2)]
        ranks.all_gather(gradients, step)
    for coder in ranks.coders:
        assert all(float(kept.square().mean().sqrt()) < 2 for kept in coder.residuals.values())


@pytest.mark.parametrize("exchange", ["all_gather", "two_shot"])
def test_both_exchanges_keep_the_same_residuals(exchange: str) -> None:
    expected, ranks = Ranks.start(FEEDBACK, SIZES, 3), Ranks.start(FEEDBACK, SIZES, 3)
    for step in range(3):
        gradients = gradients_of(ranks, seed=step)
        wanted, found = expected.all_gather(gradients, step), getattr(ranks, exchange)(gradients, step)
        assert same_bits(found[0], wanted[0])
    for one, other in zip(expected.coders, ranks.coders, strict=True):
        assert all(same_bits(kept, other.residuals[index]) for index, kept in one.residuals.items())


def test_without_error_feedback_nothing_is_kept() -> None:
    ranks = Ranks.start(TERNARY, SIZES, 2)
    ranks.all_gather(gradients_of(ranks))
    assert all(not coder.residuals for coder in ranks.coders)


def copy_residuals(ranks: Ranks) -> list[dict[int, Tensor]]:
    return [{index: kept.clone() for index, kept in coder.residuals.items()} for coder in ranks.coders]


@pytest.mark.parametrize("exchange", ["all_gather", "two_shot"])
def test_a_void_step_leaves_all_residuals_as_they_were_on_all_ranks(exchange: str) -> None:
    ranks = Ranks.start(FEEDBACK, SIZES, 3)
    ranks.all_gather(gradients_of(ranks))
    before = copy_residuals(ranks)
    gradients = gradients_of(ranks, seed=1)
    gradients[2][17] = math.nan
    getattr(ranks, exchange)(gradients, 1)
    for old, coder in zip(before, ranks.coders, strict=True):
        assert all(same_bits(coder.residuals[index], kept) for index, kept in old.items())
    assert all(found.isfinite().all() for found in getattr(ranks, exchange)(gradients_of(ranks, seed=2), 2))


@pytest.mark.parametrize("exchange", ["all_gather", "two_shot"])
def test_draining_sends_all_that_was_kept_and_keeps_nothing(exchange: str) -> None:
    ranks = Ranks.start(FEEDBACK, SIZES, 3)
    ranks.all_gather(gradients_of(ranks))
    kept = mean_residual(ranks)
    for coder in ranks.coders:
        coder.draining = True
    zeros = [torch.zeros(sum(SIZES)) for _ in range(3)]
    for found in getattr(ranks, exchange)(zeros, 1):
        assert torch.allclose(found.double(), kept, rtol=1e-6, atol=1e-6)
    assert all(not coder.residuals for coder in ranks.coders)
    assert torch.equal(getattr(ranks, exchange)(zeros, 2)[0], zeros[0])


def test_a_drain_that_is_void_keeps_the_residuals_and_drains_the_next_step() -> None:
    ranks = Ranks.start(FEEDBACK, SIZES, 2)
    ranks.all_gather(gradients_of(ranks))
    before = copy_residuals(ranks)
    for coder in ranks.coders:
        coder.draining = True
    gradients = gradients_of(ranks, seed=1)
    gradients[0][17] = math.inf
    ranks.all_gather(gradients, 1)
    for old, coder in zip(before, ranks.coders, strict=True):
        assert all(same_bits(coder.residuals[index], kept) for index, kept in old.items())
        assert coder.draining
    ranks.all_gather(gradients_of(ranks, seed=2), 2)
    assert all(not coder.residuals and not coder.draining for coder in ranks.coders)


@pytest.mark.parametrize("method", [TERNARY, Dense()], ids=["ternary", "dense"])
def test_residuals_are_sent_once_by_the_first_step_of_a_method_that_keeps_none(method: Method) -> None:
    ranks = Ranks.start(FEEDBACK, SIZES, 1)
    ranks.all_gather(gradients_of(ranks))
    for coder in ranks.coders:
        coder.set_method(method)
    zeros = torch.zeros(sum(SIZES))
    assert not torch.equal(ranks.all_gather([zeros], 1)[0], zeros)
    assert not ranks.coders[0].residuals
    assert torch.equal(ranks.all_gather([zeros], 2)[0], zeros)
