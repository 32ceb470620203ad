"""Sparse methods in one process: what is sent, what is held back, and that nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import Ranks, gradients_of
from torch import Tensor

from terngrad import ConfigurationError, WireError
from terngrad.codecs import (
    HEADER_BYTES,
    Picks,
    Segment,
    SparseFrame,
    as_read,
    read_picks,
    whole_message,
    write_picks,
)
from terngrad.codecs.envelope import Envelope
from terngrad.codecs.sparse_values import SIGN_SUMS
from terngrad.ddp.saving import FORMAT, held_by, problem_with
from terngrad.methods import (
    DGC,
    SDAGC,
    Dense,
    Method,
    Momentum,
    Sparse,
    SparseBucket,
    TernGrad,
    from_spec,
    open_bucket,
)

SIZES = (5000, 3, 4000, 130)
PLAIN = SDAGC(compensation="none", threshold=2.0)
VALUES = ("fp32", "fp16", "bf16", "sign")


def start(method: Method, world_size: int, momentum: Momentum | None = None) -> Ranks:
    ranks = Ranks.start(method, SIZES, world_size)
    if momentum is not None:
        for coder in ranks.coders:
            coder.momenta = dict.fromkeys(range(len(SIZES)), momentum)
    return ranks


def held(ranks: Ranks, rank: int) -> Tensor:
    """What a rank holds back, as one vector."""
    coder = ranks.coders[rank]
    parts = [coder.residuals.get(s.index, torch.zeros(s.numel)) for s in ranks.segments]
    return torch.cat([part.float() for part in parts])


# What is sent


def test_what_stands_out_of_its_layer_is_sent_and_the_rest_is_kept() -> None:
    ranks = start(replace(PLAIN, values="fp32"), 1)
    (gradient,) = gradients_of(ranks)
    (average,) = ranks.reduce([gradient])
    for segment in ranks.segments:
        part = slice(segment.source, segment.source + segment.numel)
        above = gradient[part].abs() > 2.0 * gradient[part].double().std(correction=0).float()
        if not above.any():
            above = gradient[part].abs() == gradient[part].abs().max()
        assert torch.equal(average[part], torch.where(above, gradient[part], 0.0))
        assert torch.equal(held(ranks, 0)[part], torch.where(above, 0.0, gradient[part]))


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("method", [PLAIN, DGC(compensation="none", density=0.02)])
def test_the_average_is_the_mean_of_what_left_the_ranks(method: Sparse, values: str) -> None:
    ranks = start(replace(method, values=values), 3)
    gradients = gradients_of(ranks)
    averages = ranks.reduce(gradients)
    sent = torch.stack([gradient - held(ranks, rank) for rank, gradient in enumerate(gradients)])
    torch.testing.assert_close(averages[0], sent.mean(dim=0), rtol=1e-5, atol=1e-6)
    assert all(torch.equal(average, averages[0]) for average in averages)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("values", VALUES)
def test_two_shot_gives_the_bits_of_all_gather(values: str, dtype: torch.dtype) -> None:
    method = replace(PLAIN, values=values, dense_below=100)
    one, other = start(method, 3), start(method, 3)
    for step in range(3):
        gradients = gradients_of(one, dtype, seed=step)
        expected = one.reduce(gradients, 1, step)
        assert all(torch.equal(found, expected[0]) for found in other.reduce(gradients, 3, step))
    assert torch.equal(held(one, 2), held(other, 2))


def test_a_layer_without_outliers_sends_its_largest() -> None:
    ranks = Ranks.start(replace(PLAIN, values="fp32", threshold=10.0), (1000,), 1)
    gradient = torch.linspace(0.1, 1.0, 1000)
    (average,) = ranks.reduce([gradient])
    assert average.nonzero().flatten().tolist() == [999]
    assert average[999] == 1.0


@pytest.mark.parametrize(
    ("method", "at_least"), [(PLAIN, 30), (DGC(compensation="none", density=0.1, values="sign"), 400)]
)
def test_where_few_values_are_by_far_the_largest_signs_stand_for_no_more_than_was_there(
    method: Sparse, at_least: int
) -> None:
    ranks = Ranks.start(replace(method, magnitude="threshold"), (5000,), 1)
    (gradient,) = gradients_of(ranks)
    gradient[:100] *= 100.0
    (average,) = ranks.reduce([gradient])
    sent = average != 0
    assert at_least < int(sent.sum()) < 700
    assert bool((average.sign() == gradient.sign())[sent].all())
    assert bool((average.abs() <= gradient.abs())[sent].all())  # so what is left is not sent back


def test_a_sign_stands_for_the_threshold_of_its_own_layer() -> None:
    ranks = Ranks.start(replace(PLAIN, magnitude="threshold"), (400, 3000, 2000), 1)
    (gradient,) = gradients_of(ranks)
    gradient[:400] = 0.0
    gradient[3400:] *= 10.0
    (average,) = ranks.reduce([gradient])
    assert not average[:400].any()
    for layer in (slice(400, 3400), slice(3400, 5400)):
        deviation = gradient[layer].double().std(correction=0).float()
        torch.testing.assert_close(average[layer].abs().max(), 2.0 * deviation)


def test_sums_beyond_single_precision_leave_averages_finite() -> None:
    """With signs for the threshold, where the mean of a layer is one of the limits."""
    ranks = Ranks.start(replace(PLAIN, magnitude="threshold"), (5000,), 2)
    gradients = [2e37 * gradient for gradient in gradients_of(ranks)]
    for step in range(5):
        average = ranks.reduce(gradients, step=step)[0]
        assert bool(average.isfinite().all())
        gradients = gradients_of(ranks, seed=step)
    assert float(held(ranks, 0).abs().max()) < 1e38


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_what_is_not_finite_reaches_all_also_with_signs_for_the_threshold(bad: float) -> None:
    ranks = start(replace(PLAIN, magnitude="threshold"), 2)
    gradients = gradients_of(ranks)
    gradients[1][17] = bad
    averages = ranks.reduce(gradients)
    assert all(not average[:5000].isfinite().all() for average in averages)
    assert all(bool(average[5000:].isfinite().all()) for average in averages)


@pytest.mark.parametrize("threshold", [0.0, 2.0, 100.0])
def test_a_sign_stands_for_the_threshold_unless_that_is_zero(threshold: float) -> None:
    ranks = Ranks.start(replace(PLAIN, threshold=threshold, magnitude="threshold"), (5000,), 1)
    (gradient,) = gradients_of(ranks)
    deviation, magnitudes = gradient.double().std(correction=0).float(), gradient.abs()
    wanted = {0.0: magnitudes.double().mean().float(), 2.0: 2.0 * deviation, 100.0: magnitudes.max()}
    (average,) = ranks.reduce([gradient])
    torch.testing.assert_close(average.abs().max(), wanted[threshold])


def test_where_all_gradients_have_one_sign_they_do_not_pile_up() -> None:
    """Their deviation is small beside their mean, and so is the threshold."""
    ranks = Ranks.start(replace(PLAIN, magnitude="threshold"), (1000,), 1)
    total = torch.zeros(1000)
    for step in range(20):
        (noise,) = gradients_of(ranks, seed=step)
        (average,) = ranks.reduce([1.0 + 0.1 * noise], 1, step)
        total += average
    assert 19.0 < float(total.mean()) < 20.5  # of 20; 7 where a sign stands for the threshold


@pytest.mark.parametrize("accumulation", [True, False])
def test_a_sign_stands_for_the_mean_of_what_is_chosen(accumulation: bool) -> None:
    ranks = Ranks.start(replace(PLAIN, accumulation=accumulation, magnitude="mean"), (5000,), 1)
    (gradient,) = gradients_of(ranks)
    (average,) = ranks.reduce([gradient])
    torch.testing.assert_close(average.abs().max(), gradient[average != 0].abs().mean())


def test_a_gradient_of_zeros_sends_nothing() -> None:
    ranks = start(PLAIN, 2)
    zeros = torch.zeros(sum(SIZES))
    assert all(not average.any() for average in ranks.reduce([zeros, zeros]))


def test_the_threshold_rises_over_the_warm_up() -> None:
    method = SDAGC(threshold=4.0, warmup_threshold=2.0, warmup_steps=10)
    assert [method.threshold_at(step) for step in (0, 5, 10, 1000)] == [2.0, 3.0, 4.0, 4.0]


def test_the_density_of_dgc_falls_as_published() -> None:
    method = DGC(warmup_steps=50)
    assert [round(method.density_at(step), 3) for step in (0, 10, 20, 30, 40, 50)] == [
        0.251, 0.063, 0.016, 0.004, 0.001, 0.001,
    ]  # fmt: skip


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_dgc_sends_about_the_share_that_it_should(density: float) -> None:
    """Between 0.8 and 1.3 of it, as published: by construction, with no chance of a false alarm."""
    ranks = Ranks.start(DGC(compensation="none", density=density), (200_000,), 1)
    (average,) = ranks.reduce(gradients_of(ranks))
    assert 0.8 * density <= float((average != 0).double().mean()) <= 1.3 * density


def test_dgc_leaves_parameters_of_one_dimension_alone() -> None:
    from terngrad.methods import ParameterInfo

    assert DGC().sends_dense(ParameterInfo("bias", 1000, False, num_dims=1))
    assert not DGC().sends_dense(ParameterInfo("weight", 1000, False, num_dims=2))


# What is held back


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize(
    "method",
    [
        *(SDAGC(values=values) for values in VALUES),
        SDAGC(magnitude="threshold"),
        SDAGC(compensation="none"),
        *(DGC(compensation="none", density=0.02, values=values) for values in VALUES),
        DGC(compensation="none", density=0.02, values="sign", magnitude="threshold"),
    ],
    ids=lambda method: method.spec,
)
def test_what_was_sent_and_what_is_held_back_is_all_there_was(method: Sparse, num_shards: int) -> None:
    """Over 1,000 steps, for every element, to the rounding of single precision.

    Each step rounds what is held back, of up to some 50, by 2^-24 of it at most; errors add up as those of a random
    walk, and are 5e-5 at most here. The gradients are always the same: there are no false alarms.
    """
    ranks = Ranks.start(method, (300, 40), 2)
    for coder in ranks.coders:
        coder.momenta = dict.fromkeys(range(2), Momentum(0.75))
    gain = 2.5 if method.compensation == "upfront" else 1.0  # 1 + 0.75 / (2 * 0.25)
    generator = torch.Generator().manual_seed(3)
    given, sent = torch.zeros(340, dtype=torch.float64), torch.zeros(340, dtype=torch.float64)
    for step in range(1000):
        gradients = [torch.randn(340, generator=generator) for _ in range(2)]
        given += gain * sum(gradient.double() for gradient in gradients)
        sent += 2 * ranks.reduce(gradients, num_shards, step)[0].double()
    kept = sum(torch.cat(list(coder.residuals.values())).double() for coder in ranks.coders)
    assert float((sent + kept - given).abs().max()) < 3e-4


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_drain_sends_everything_whatever_is_revised(num_shards: int) -> None:
    ranks = start(replace(PLAIN, values="fp32", revision=1.0), 2)
    given = [gradients_of(ranks, seed=step) for step in range(2)]
    sent = ranks.reduce(given[0], num_shards)[0]
    for coder in ranks.coders:
        coder.draining = True
    sent = sent + ranks.reduce(given[1], num_shards, step=1)[0]
    torch.testing.assert_close(sent, sum(a + b for a, b in given) / 2, rtol=1e-5, atol=1e-5)
    assert not held(ranks, 0).any()


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("method", [PLAIN, replace(PLAIN, dense_below=10**6), TernGrad(error_feedback=True)])
def test_what_is_held_back_of_a_parameter_that_was_not_used_waits(method: Method, drain: bool) -> None:
    """DDP writes no average of what no rank has used, and a rank does not know about the others."""
    ranks = start(PLAIN, 2)
    ranks.all_gather(gradients_of(ranks))
    before = held(ranks, 0)
    gradients = gradients_of(ranks, seed=1)
    for coder, gradient in zip(ranks.coders, gradients, strict=True):
        coder.set_method(method)
        coder.leaves_unused, coder.draining = True, drain
        gradient[:5000] = 0.0
    average = ranks.all_gather(gradients, step=1)[0]
    assert not average[:5000].any()
    assert bool(average[5000:].any())
    assert torch.equal(held(ranks, 0)[:5000], before[:5000])
    ranks.all_gather(gradients_of(ranks, seed=2), step=2)
    assert not torch.equal(held(ranks, 0)[:5000], before[:5000])


def test_momentum_acts_on_what_is_held_back() -> None:
    ranks = start(SDAGC(compensation="masking", threshold=1e9, values="fp32"), 2, Momentum(0.9))
    gradients = gradients_of(ranks)
    for step in range(2):
        ranks.reduce(gradients, step=step)
    kept = held(ranks, 0)
    expected = gradients[0] + (0.9 * gradients[0] + gradients[0])
    untouched = kept == expected
    assert untouched.double().mean() > 0.99  # but for the largest of each layer, which was sent


def test_nesterov_momentum_looks_ahead() -> None:
    ranks = start(SDAGC(compensation="masking", threshold=1e9, values="fp32"), 1, Momentum(0.9, nesterov=True))
    (gradient,) = gradients_of(ranks)
    ranks.reduce([gradient])
    expected = 0.9 * gradient + gradient
    assert (held(ranks, 0) - expected).abs().median() < 1e-6


def test_velocity_is_cleared_where_something_was_sent() -> None:
    ranks = start(replace(PLAIN, compensation="masking", values="fp32"), 1, Momentum(0.9))
    (gradient,) = gradients_of(ranks)
    (average,) = ranks.reduce([gradient])
    velocity = torch.cat([ranks.coders[0].velocities[s.index] for s in ranks.segments])
    assert torch.equal(velocity, torch.where(average != 0, 0.0, gradient))


def test_sam_keeps_momentum_in_one_buffer() -> None:
    """As published: u <- m u + g, send above the threshold, divide the rest by m; to rounding."""
    ranks = Ranks.start(SDAGC(compensation="sam", threshold=2.0, values="fp32"), (1000,), 1)
    ranks.coders[0].momenta = {0: Momentum(0.9)}
    generator = torch.Generator().manual_seed(1)
    u = torch.zeros(1000, dtype=torch.float64)
    for step in range(20):
        gradient = torch.randn(1000, generator=generator)
        (sent,) = ranks.reduce([gradient], step=step)
        u = 0.9 * u + gradient.double()
        torch.testing.assert_close(sent.double(), torch.where(sent != 0, u, 0.0), rtol=1e-4, atol=1e-5)
        u = torch.where(sent != 0, u, u / 0.9)
    assert not ranks.coders[0].velocities


@pytest.mark.parametrize("sigma_of", ["residual", "gradient"])
def test_upfront_is_training_without_momentum_at_a_higher_learning_rate(sigma_of: str) -> None:
    """Momentum 0.75 makes 1 + 0.75 / (2 * 0.25) = 2.5 of a gradient, at once."""
    method = SDAGC(threshold=2.0, values="fp32", sigma_of=sigma_of)
    with_momentum, without = (Ranks.start(method, (1000,), 2) for _ in range(2))
    for coder in with_momentum.coders:
        coder.momenta = {0: Momentum(0.75)}
    for step in range(10):
        gradients = gradients_of(without, seed=step)
        expected = without.reduce([2.5 * gradient for gradient in gradients], step=step)
        found = with_momentum.reduce(gradients, step=step)
        torch.testing.assert_close(found[0], expected[0])
    assert not with_momentum.coders[0].velocities


def test_parameters_that_are_sent_whole_get_their_momentum_too() -> None:
    ranks = start(SDAGC(dense_below=10**6), 2, Momentum(0.5))
    gradients = gradients_of(ranks)
    mean = (gradients[0] + gradients[1]) / 2
    torch.testing.assert_close(ranks.reduce(gradients)[0], mean)
    torch.testing.assert_close(ranks.reduce(gradients, step=1)[1], 1.5 * mean)


def test_local_clipping_shares_the_norm_among_workers() -> None:
    ranks = Ranks.start(SDAGC(compensation="none", threshold=1e9, clip_norm=2.0, values="fp32"), (1000,), 4)
    gradients = gradients_of(ranks)
    sent = ranks.reduce(gradients)[0] * 4
    whole = sum(torch.cat(list(coder.residuals.values())) for coder in ranks.coders) + sent
    expected = sum(gradient / gradient.norm() * 1.0 for gradient in gradients)
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-6)


def test_parameters_that_are_sent_whole_are_clipped_too() -> None:
    ranks = Ranks.start(SDAGC(compensation="none", dense_below=10**6, clip_norm=2.0), (1000, 100), 4)
    gradients = gradients_of(ranks)
    gradients[0][1000:] *= 1e-6  # short enough as it is
    parts = [[gradient[:1000], gradient[1000:]] for gradient in gradients]
    clipped = [torch.cat([part / max(float(part.norm()), 1.0) for part in pair]) for pair in parts]
    torch.testing.assert_close(ranks.reduce(gradients)[0], torch.stack(clipped).mean(dim=0), rtol=1e-4, atol=1e-6)


def test_the_norm_that_is_clipped_is_of_all_layers_in_the_step_before() -> None:
    """Of both kinds of layers, in whatever buckets they are."""
    method = SDAGC(compensation="none", threshold=1e-9, values="fp32", dense_below=200, clip_norm=2.0)
    ranks = Ranks.start(method, (1000, 100, 500), 4)
    first, second = gradients_of(ranks), gradients_of(ranks, seed=1)
    ranks.reduce(first)
    for coder, gradient in zip(ranks.coders, first, strict=True):
        assert coder.last_norm == pytest.approx(float(gradient.double().norm()))
    expected = torch.stack([mine / last.norm() for mine, last in zip(second, first, strict=True)]).mean(dim=0)
    torch.testing.assert_close(ranks.reduce(second, step=1)[0], expected, rtol=1e-4, atol=1e-6)


def test_a_gradient_that_explodes_makes_the_next_step_four_times_shorter_at_most() -> None:
    ranks = Ranks.start(SDAGC(compensation="none", threshold=1e-9, values="fp32", clip_norm=2.0), (1000,), 4)
    gradients = gradients_of(ranks)
    norms = []
    for step, scale in enumerate((1, 1e6, 1, 1)):
        sent = ranks.reduce([scale * gradient / gradient.norm() for gradient in gradients], step=step)[0]
        norms.append(float(sent.norm()))
    expected = float(torch.stack([gradient / gradient.norm() for gradient in gradients]).mean(dim=0).norm())
    assert norms == pytest.approx([expected, expected, expected / 4, expected], rel=1e-4)


def test_the_norm_belongs_to_a_rank() -> None:
    mine = {"format": FORMAT, "method": "sdagc", "world_size": 2, "rank": 1}
    coder = Ranks.start(SDAGC(), (1000,), 2).coders[0]
    other = {**mine, "rank": 0, "seed": 0, "step": 0, "epoch": 0, "momentum": None, **held_by(coder)}
    assert "rank is 0, this handle has 1" in str(problem_with({**other, "last_norm": 7.0}, mine, {}))
    assert problem_with(other, mine, {}) is None


def test_a_change_of_method_forgets_the_norm() -> None:
    ranks = Ranks.start(SDAGC(compensation="none", clip_norm=2.0), (1000,), 2)
    ranks.reduce(gradients_of(ranks))
    coder = ranks.coders[0]
    assert coder.last_norm
    coder.set_method(Dense("fp32"))
    assert not coder.last_norm


def test_a_layer_that_is_too_long_by_itself_is_clipped_at_once() -> None:
    ranks = Ranks.start(SDAGC(compensation="none", threshold=1e-9, values="fp32", clip_norm=2.0), (1000, 500), 4)
    gradients = gradients_of(ranks)
    ranks.reduce([gradient * 1e-6 for gradient in gradients])
    sent = ranks.reduce(gradients, step=1)[0]
    expected = [torch.cat([g[:1000] / g[:1000].norm(), g[1000:] / g[1000:].norm()]) for g in gradients]
    torch.testing.assert_close(sent, torch.stack(expected).mean(dim=0), rtol=1e-4, atol=1e-6)


def test_a_void_step_leaves_the_norm_as_it_was() -> None:
    ranks = Ranks.start(SDAGC(compensation="none", clip_norm=2.0), (1000,), 2)
    gradients = gradients_of(ranks)
    ranks.reduce(gradients)
    before = [coder.last_norm for coder in ranks.coders]
    gradients[1][17] = float("nan")
    ranks.reduce(gradients, step=1)
    assert [coder.last_norm for coder in ranks.coders] == before
    assert not ranks.coders[0].squares


def test_the_norm_does_not_depend_on_the_scale_of_the_loss() -> None:
    one, other = (Ranks.start(SDAGC(compensation="none", clip_norm=2.0), (1000,), 2) for _ in range(2))
    gradients = gradients_of(one)
    for coder in other.coders:
        coder.rescale(1024.0)
    for step in range(3):
        found = one.reduce(gradients, step=step)[0]
        assert torch.equal(other.reduce([1024 * g for g in gradients], step=step)[0], 1024 * found)


def test_a_gradient_that_is_not_finite_is_not_clipped_away() -> None:
    ranks = Ranks.start(SDAGC(compensation="none", dense_below=10**6, clip_norm=2.0), (1000,), 2)
    gradients = gradients_of(ranks)
    gradients[1][17] = float("inf")
    assert not ranks.reduce(gradients)[0].isfinite().all()


def test_draining_sends_all_that_is_held_back() -> None:
    ranks = start(PLAIN, 2)
    gradients = gradients_of(ranks)
    ranks.reduce(gradients)
    expected = torch.stack([gradient + held(ranks, rank) for rank, gradient in enumerate(gradients)]).mean(dim=0)
    for coder in ranks.coders:
        coder.draining = True
    averages = ranks.reduce(gradients, step=1)
    torch.testing.assert_close(averages[0], expected)
    assert not held(ranks, 0).any()
    assert not ranks.coders[0].draining


@pytest.mark.parametrize("other", [TernGrad(dense_below=100), Dense()])
def test_another_method_sends_what_a_sparse_one_held_back(other: Method) -> None:
    ranks = start(PLAIN, 2)
    gradients = gradients_of(ranks)
    ranks.reduce(gradients)
    whole = torch.stack([held(ranks, rank) for rank in range(2)]).mean(dim=0)
    assert whole.any()
    for coder in ranks.coders:
        coder.set_method(other)
    zeros = [torch.zeros_like(gradient) for gradient in gradients]
    found = ranks.all_gather(zeros, step=1)[0]
    if isinstance(other, Dense):
        torch.testing.assert_close(found, whole)
    assert found.any()
    assert not ranks.coders[0].residuals


@pytest.mark.parametrize("num_shards", [1, 2])
def test_revision_damps_what_arrives_in_bulk(num_shards: int) -> None:
    ranks = Ranks.start(SDAGC(compensation="none", threshold=0.0, values="fp32", revision=0.5), (64,), 2)
    few, many = torch.zeros(64), torch.ones(64)
    few[:4] = 1.0
    quiet = ranks.reduce([few, few], num_shards)
    loud = ranks.reduce([many, many], num_shards, step=1)
    assert torch.equal(quiet[0], few)
    assert torch.equal(loud[0], many * 0.5)  # sixteen times as many would be a quarter
    assert torch.equal(loud[1], loud[0])


@pytest.mark.parametrize("values", ["bf16", "sign"])
def test_sam_holds_back_what_values_are_short_of(values: str) -> None:
    """Of a value v that is sent as s, v - (1 - m) s is left: the rest of it, and m s as velocity."""
    ranks = Ranks.start(SDAGC(compensation="sam", threshold=1.0, values=values), (500,), 1)
    ranks.coders[0].momenta = {0: Momentum(0.75)}
    (gradient,) = gradients_of(ranks)
    (sent,) = ranks.reduce([gradient])
    expected = torch.where(sent != 0, gradient - 0.25 * sent, gradient)
    torch.testing.assert_close(ranks.coders[0].residuals[0], expected)


# Steps that are void


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("compensation", ["masking", "sam", "upfront"])
def test_a_gradient_that_is_not_finite_is_seen_by_all_and_puts_back_what_was_sent(
    values: str, num_shards: int, compensation: str
) -> None:
    ranks = start(SDAGC(compensation=compensation, threshold=2.0, values=values), 3, Momentum(0.9))
    gradients = gradients_of(ranks)
    ranks.reduce(gradients)
    before = [held(ranks, rank) for rank in range(3)]
    nothing = torch.zeros_like(before[0])  # with `sam` velocities are part of the residual
    speed = [
        torch.cat([coder.velocities.get(s.index, nothing[: s.numel]) for s in ranks.segments]) for coder in ranks.coders
    ]
    gradients[1][7] = torch.inf
    averages = ranks.reduce(gradients, num_shards, step=1)
    for average in averages:
        assert average[: SIZES[0]].isnan().any()
        assert average[SIZES[0] :].isfinite().all()
    for rank in range(3):
        finite = gradients[rank].isfinite()
        counted = gradients[rank] * (5.5 if compensation == "upfront" else 1.0)
        velocity = torch.where(finite, 0.9 * speed[rank] + counted, speed[rank])
        expected = torch.where(finite, before[rank] + velocity, before[rank])
        torch.testing.assert_close(held(ranks, rank), expected)


def test_a_new_scale_of_the_loss_rescales_what_is_held_back() -> None:
    ranks = start(SDAGC(threshold=3.0), 1, Momentum(0.9))
    ranks.reduce(gradients_of(ranks))
    coder, before = ranks.coders[0], held(ranks, 0)
    coder.rescale(0.5)
    assert torch.equal(held(ranks, 0), before * 0.5)
    coder.rescale(0.5)
    assert torch.equal(held(ranks, 0), before * 0.5)


# Settings


@pytest.mark.parametrize("spec", ["sdagc", "sdagc:values=bf16,compensation=masking,threshold=4.0", "dgc:density=0.01"])
def test_a_spec_names_an_equal_method(spec: str) -> None:
    assert from_spec(spec).spec == spec


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"values": "fp8"}, "values must be one of"),
        ({"magnitude": "median"}, "magnitude must be 'mean' or 'threshold'"),
        ({"magnitude": "threshold", "accumulation": False}, "accumulation must be True unless magnitude='mean'"),
        ({"magnitude": "threshold", "values": "bf16"}, "magnitude must be 'mean' unless values='sign'"),
        ({"compensation": "x"}, "compensation must be one of"),
        ({"clip_norm": -1.0}, "clip_norm must be a finite number >= 0"),
        ({"clip_norm": "1"}, "clip_norm must be a finite number >= 0"),
        ({"threshold": -1.0}, "threshold must be a finite number >= 0"),
        ({"threshold": None}, "threshold must be a finite number >= 0"),
        ({"threshold": float("inf")}, "threshold must be a finite number >= 0"),
        ({"warmup_steps": -1}, "warmup_steps must be an integer"),
        ({"sigma_of": "x"}, "sigma_of must be"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        SDAGC(**options)  # type: ignore[arg-type]


# Messages

FRAME = SparseFrame(
    [Segment(0, 0, 700), Segment(1, 700, 300)], [], values="bf16", density=0.01, dense_type=torch.float32,
    num_shards=1, world_size=2,
)  # fmt: skip


def replace_values(values: str) -> SparseFrame:
    return SparseFrame(
        FRAME.sparse, [], values=values, density=0.01, dense_type=torch.float32, num_shards=1, world_size=2
    )


def message_of(picks: Picks, kind: str) -> Tensor:
    body = write_picks(FRAME, FRAME.shards[0], kind, picks)
    envelope = Envelope(FRAME, 0, 0)
    return whole_message(FRAME, FRAME.shards[0], body, [], lambda n: envelope.codes(0, 0, n), torch.device("cpu"))


@pytest.mark.parametrize("count", [0, 1, 5, 999, 1000])
@pytest.mark.parametrize("kind", [*VALUES, SIGN_SUMS])
def test_a_message_says_what_was_written(kind: str, count: int) -> None:
    positions = np.sort(np.random.default_rng(0).permutation(1000)[:count])
    picks = Picks(positions, np.ones(count, np.float32) * 0.5)
    found = read_picks(FRAME, FRAME.shards[0], kind, message_of(picks, kind), "here")
    chosen = found.values != 0
    assert np.array_equal(found.positions[chosen], positions)
    assert np.array_equal(found.values[chosen], picks.values)


def test_a_message_is_never_larger_than_all_values() -> None:
    picks = Picks(np.arange(0, 998), np.ones(998, np.float32))
    assert len(write_picks(FRAME, FRAME.shards[0], "bf16", picks)) <= 8 + 2 * 1000


def test_values_that_half_precision_cannot_hold_stay_within_it() -> None:
    picks = Picks(np.array([1, 2]), np.array([1e6, -1e6], np.float32))
    limits = np.full(2, np.inf, np.float32)
    assert as_read(replace_values("fp16"), picks, limits).values.tolist() == [65504.0, -65504.0]


@pytest.mark.parametrize("kind", [*VALUES, SIGN_SUMS])
def test_a_message_that_was_cut_or_changed_is_refused_or_read_within_bounds(kind: str) -> None:
    positions = np.arange(0, 1000, 37)
    whole = message_of(Picks(positions, np.ones(len(positions), np.float32)), kind)
    for length in range(52, len(whole)):
        with pytest.raises(WireError):
            read_picks(FRAME, FRAME.shards[0], kind, whole[:length], "here")
    for at in range(52, len(whole)):
        changed = whole.clone()
        changed[at] ^= 0x55
        try:
            found = read_picks(FRAME, FRAME.shards[0], kind, changed, "here")
        except WireError:
            continue
        assert (np.diff(found.positions) > 0).all()
        assert not len(found.positions) or found.positions[-1] < 1000


def test_bits_of_a_layer_are_those_of_a_message_that_holds_it_alone() -> None:
    sizes = (4000,)
    ranks = Ranks.start(replace(PLAIN, values="sign"), sizes, 2)
    coder = ranks.coders[0]
    frame = coder.frame(tuple(ranks.segments), torch.float32, False, 1)
    code = open_bucket(coder, frame, gradients_of(ranks)[0], 0, 0)
    assert isinstance(code, SparseBucket)
    (message,) = code.pack()
    code.measure()
    assert coder.measured[0].num_bits == 8 * (message.numel() - HEADER_BYTES)


@pytest.mark.parametrize("values", ["fp32", "sign"])
def test_without_accumulation_what_is_not_sent_is_lost(values: str) -> None:
    method = replace(PLAIN, accumulation=False, values=values)
    ranks = start(method, 2)
    for step in range(3):
        gradients = gradients_of(ranks, seed=step)
        average = ranks.reduce(gradients, 1, step)[0]
        assert torch.equal(average, start(method, 2).reduce(gradients, 1, step)[0])
        assert not held(ranks, 0).any()


def test_without_accumulation_a_void_step_leaves_nothing_behind() -> None:
    ranks = start(replace(PLAIN, accumulation=False), 2)
    gradients = gradients_of(ranks)
    gradients[1][7] = torch.nan
    assert not ranks.reduce(gradients)[0].isfinite().all()
    assert not held(ranks, 0).any()


@pytest.mark.parametrize("compensation", ["masking", "sam", "upfront"])
def test_momentum_cannot_be_compensated_without_accumulation(compensation: str) -> None:
    with pytest.raises(ConfigurationError, match=r"SDAGC\(accumulation=False\): accumulation must be True unless"):
        SDAGC(accumulation=False, compensation=compensation)


@pytest.mark.parametrize("void", [False, True])
def test_what_was_held_back_is_sent_before_a_method_that_would_drop_it(void: bool) -> None:
    ranks = start(replace(PLAIN, values="fp32"), 2)
    ranks.reduce(gradients_of(ranks))
    kept = [held(ranks, rank) for rank in range(2)]
    for coder in ranks.coders:
        coder.set_method(replace(PLAIN, values="fp32", accumulation=False))
    gradients = gradients_of(ranks, seed=1)
    expected = torch.stack([gradient + own for gradient, own in zip(gradients, kept, strict=True)]).mean(dim=0)
    if void:
        broken = [gradient.clone() for gradient in gradients]
        broken[1][7] = torch.nan
        assert not ranks.reduce(broken, 1, 1)[0].isfinite().all()
        assert held(ranks, 0).any()
        return
    torch.testing.assert_close(ranks.reduce(gradients, 1, 1)[0], expected)
    assert not held(ranks, 0).any()
