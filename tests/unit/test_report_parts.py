"""What a report is made of: thinned points, scales with round ticks, numbers in units, colours that stay apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad.report.palette import DARK, LIGHT, NUM_COLOURS
from terngrad.report.records import Point, latest
from terngrad.report.scales import linear_ticks, log_ticks, x_scale
from terngrad.report.series import running_mean, thin
from terngrad.report.text import BYTES, COUNTS, STEP_SECONDS, amount, column, digits, link_text


def points_of(values: Sequence[float]) -> list[Point]:
    return [Point(float(step), float(step), float(step), value) for step, value in enumerate(values)]


@settings(max_examples=50)
@given(st.lists(st.floats(allow_infinity=False, width=32), min_size=40, max_size=160), st.integers(8, 40))
def test_thinning_keeps_ends_extremes_and_order(values: list[float], limit: int) -> None:
    points = points_of(values)
    kept = thin(points, limit)
    assert len(kept) <= max(limit, 4 * (limit // 4) + 2)
    assert [point.step for point in kept] == sorted({point.step for point in kept})
    assert (kept[0].step, kept[-1].step) == (points[0].step, points[-1].step)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        drawn = [point.value for point in kept if point.finite()]
        assert (min(drawn), max(drawn)) == (min(finite), max(finite))
    assert any(not point.finite() for point in kept) == (len(finite) < len(values))


def test_a_running_mean_smooths_and_leaves_gaps() -> None:
    smooth = running_mean(points_of([9.0, 1.0, math.nan, 2.0, 3.0, 4.0]), width=3)
    assert [point.value for point in smooth if point.finite()] == pytest.approx([9, 4, 2, 3, 3.5])
    assert [point.finite() for point in smooth] == [True, True, False, True, True, True]
    level = running_mean(points_of([5.0] * 50), width=9)
    assert {point.value for point in level} == {5.0}


def test_of_repeated_steps_the_last_account_stays() -> None:
    events = [{"step": step, "n": n} for n, step in enumerate([1, 2, 3, 4, 2, 3, 5])]
    assert [event["n"] for event in latest(events)] == [0, 4, 5, 6]


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 9))
def test_ticks_are_round_within_the_range_and_few(low: float, span: float, num_ticks: int) -> None:
    high = low + span
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return
    ticks = linear_ticks(low, high, num_ticks)
    assert len(ticks) <= num_ticks + 1
    assert all(low - 1e-6 * span <= tick <= high + 1e-6 * span for tick in ticks)
    for before, after in itertools.pairwise(ticks):
        mantissa = f"{after - before:.0e}"[0]
        assert mantissa in "125"


@given(st.floats(1e-9, 1e15), st.floats(2.5, 1e9))
def test_ticks_by_logarithm_are_powers_of_ten_or_few_times_those(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor)
    assert len(ticks) <= 6
    assert all(f"{tick:.0e}"[0] in "125" for tick in ticks)


@pytest.mark.parametrize(
    ("axis", "high", "labels"),
    [
        ("steps", 1000, ["0", "200", "400", "600", "800", "1,000"]),
        ("steps", 40_000, ["0", "10k", "20k", "30k", "40k"]),
        ("seconds", 0.05, ["0", "10 ms", "20 ms", "30 ms", "40 ms", "50 ms"]),
        ("seconds", 90, ["0", "20 s", "40 s", "60 s", "80 s"]),
        ("seconds", 1500, ["0", "5 min", "10 min", "15 min", "20 min", "25 min"]),
        ("seconds", 9000, ["0", "0.5 h", "1.0 h", "1.5 h", "2.0 h", "2.5 h"]),
        ("bytes", 1e9, ["1 MB", "10 MB", "100 MB", "1 GB"]),
    ],
)
def test_axes_are_labelled_in_units_that_suit_them(axis: str, high: float, labels: list[str]) -> None:
    _, ticks = x_scale(axis, [1e6, high] if axis == "bytes" else [0.0, high], 0, 100)
    assert [label for _, label in ticks] == labels


def test_no_bytes_have_no_place_on_the_axis_of_bytes() -> None:
    scale, _ = x_scale("bytes", [0.0, 1e3, 1e6], 0, 100)
    assert not scale.takes(0.0)
    assert [scale(value) for value in (1e3, 1e6)] == pytest.approx([0, 100])


def test_columns_share_a_unit_and_their_decimals() -> None:
    assert column([1_135_144, 59_508, None], BYTES) == ("MB", ["1.135", "0.060", "–"])
    assert column([0.9054, 0.145], STEP_SECONDS) == ("ms", ["905", "145"])
    assert column([1_135_144, 0.48], BYTES) == ("MB", ["1.14", "0.00"])  # next to nothing asks for no digits
    assert column([0, 0], BYTES) == ("B", ["0.00", "0.00"])


def test_numbers_have_as_many_digits_as_asked_for() -> None:
    assert [digits(value) for value in (0, 0.00123, 1.234, 123.4, 1234.5)] == ["0", "0.00123", "1.23", "123", "1,234"]
    assert digits(1.5e-5) == "1.50e-5"
    assert digits(2.5e9) == "2.50e9"
    assert amount(1_500_000, COUNTS) == "1.50 M"
    assert [link_text(link) for link in ("100mbit", "1gbit", "none", None)] == [
        "100 Mb/s",
        "1 Gb/s",
        "one machine",
        "one machine",
    ]


# Machado, Oliveira and Fernandes (2009): what red, green and blue become for an eye without one kind of cones.
SIGHT = {
    "all cones": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


def linear_rgb(colour: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """CIE L*a*b*, in which a distance of 2.3 can just be seen."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ rgb.clip(0, 1) / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_colours_of_runs_stay_apart_for_the_colour_blind(theme: dict[str, str], sight: str) -> None:
    seen = [lab(SIGHT[sight] @ linear_rgb(theme[f"run{index}"])) for index in range(NUM_COLOURS)]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 19


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out_from_the_paper(theme: dict[str, str]) -> None:
    def contrast(colour: str, ground: str) -> float:
        low, high = sorted(float(linear_rgb(theme[name]) @ [0.2126, 0.7152, 0.0722]) for name in (colour, ground))
        return (high + 0.05) / (low + 0.05)

    assert all(contrast(f"run{index}", "paper") >= 3 for index in range(NUM_COLOURS))
    assert all(contrast(name, ground) >= 4.5 for name in ("ink", "soft", "accent") for ground in ("paper", "page"))
    assert all(contrast(name, "paper") >= 4.5 for name in ("best", "warn"))
