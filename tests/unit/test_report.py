"""The report: what it says of runs is so, it draws whatever a run folder holds, and nothing in one becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from report_page import assert_drawn, chart_data_of, comparison, page_of, read_new
from run_folders import events_of_a_run, step_event

from terngrad.errors import ConfigurationError
from terngrad.report import write_figure, write_report
from terngrad.report.markup import escape, tag
from terngrad.report.page import AXIS_NAMES
from terngrad.report.palette import DARK, LIGHT, MAX_RUNS
from terngrad.report.records import Trace
from terngrad.report.summary import group_runs

ROOT = Path(__file__).parents[2]
SPECS = (
    "fp32", "fp16", "bf16", "powersgd:rank=1", "powersgd:rank=4", "terngrad", "terngrad:block=512", "terngrad:clip=0",
    "terngrad:codec=two-bit", "terngrad:error_feedback=true", "terngrad-paper", "none",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


# What it says


def test_ratio_and_speed_up_are_against_the_first_run(folder: Path) -> None:
    (group,) = group_runs(comparison(folder))
    first, second = group.entries
    assert (group.ratio(first), group.speed_up(first)) == (1.0, 1.0)
    assert group.ratio(second) == pytest.approx(10)
    assert group.speed_up(second) == pytest.approx(2)


def test_the_summary_has_a_row_for_each_run_and_marks_the_best(folder: Path) -> None:
    page = page_of(comparison(folder), folder)
    assert page.row("fp32")[1:] == ["96.79%", "96.79%", "10.00", "10.00", "1.00×", "40.0", "1.00×", "6.00"]
    assert page.row("terngrad")[1:] == ["96.79%", "96.79%", "1.00", "1.00", "10.0×", "20.0", "2.00×", "3.00"]
    assert page.best == {"1.00", "10.0×", "20.0", "2.00×", "3.00"}


def test_the_headline_says_recipe_workers_and_link(folder: Path) -> None:
    page = page_of(comparison(folder), folder)
    assert "<h1>digits · 2 workers · 100 Mb/s</h1>" in page.text
    assert "13,300 parameters · 200 steps · batch of 64" in page.text
    assert "<h1>Mine</h1>" in page_of(comparison(folder / "again"), folder, title="Mine").text


def test_lower_perplexity_is_better(folder: Path) -> None:
    worse = [
        event | ({"value": event["value"] + 7} if "value" in event else {})
        for event in events_of_a_run(metric="perplexity")
    ]
    worse[-1] |= {"best": 111.5, "final": 111.5}
    runs = [
        read_new(folder, worse, method="fp32"),
        read_new(folder, events_of_a_run(metric="perplexity"), method="terngrad"),
    ]
    page = page_of(runs, folder)
    assert {"104.5"} <= page.best
    assert "111.5" not in page.best
    assert page.row("fp32")[-1] == "not reached"


def test_a_run_that_sends_nothing_is_never_the_best(folder: Path) -> None:
    alone = read_new(folder, events_of_a_run(bytes_per_step=1, step_s=0.001, metric=""), method="none")
    page = page_of([*comparison(folder), alone], folder)
    assert page.row("none")[1:] == ["–", "–", "0.00", "0.00", "–", "1.00", "40.0×", "–"]
    assert {"0.00", "40.0×"}.isdisjoint(page.best)


def test_runs_are_grouped_by_recipe(folder: Path) -> None:
    runs = [*comparison(folder), read_new(folder, events_of_a_run(metric="perplexity"), "lm", recipe="words")]
    assert [(group.recipe, len(group.entries)) for group in group_runs(runs)] == [("digits", 2), ("words", 1)]
    page = page_of(runs, folder)
    assert len(page.of_class("recipe")) == 2
    assert page.text.count("<h2>") == 3  # with that of the notes


def test_runs_of_one_method_are_named_by_what_differs(folder: Path) -> None:
    events = events_of_a_run()
    runs = [
        read_new(folder, events, "a", "fp32", link="1gbit"),
        read_new(folder, events, "b", "terngrad", seed=1),
        read_new(folder, events, "c", "terngrad", seed=2),
    ]
    (group,) = group_runs(runs)
    names = [entry.label for entry in group.entries]
    assert names == ["fp32, link=1gbit", "terngrad, link=100mbit, seed=1", "terngrad, link=100mbit, seed=2"]


def test_runs_that_differ_in_nothing_are_named_by_their_folders(folder: Path) -> None:
    runs = [read_new(folder / part, events_of_a_run(), name) for part, name in (("x", "a"), ("x", "b"), ("y", "b"))]
    (group,) = group_runs(runs)
    assert len({entry.label for entry in group.entries}) == 3


def test_settings_that_differ_are_marked(folder: Path) -> None:
    runs = [read_new(folder, events_of_a_run(), str(lr), "terngrad", lr=lr) for lr in (0.1, 0.2)]
    page = page_of(runs, folder)
    assert len(page.of_class("differs")) == 1
    for row in (["lr", "0.1", "0.2"], ["batch", "64", "64"]):
        assert row in page.rows
    assert ["torch", "2.13"] in page.rows  # the same everywhere, so said once


def test_phases_are_means_weighted_by_steps_without_the_first_interval(folder: Path) -> None:
    events = [step_event(10, encode_s=9.0), step_event(20, encode_s=1.0), step_event(50, encode_s=2.0)]
    means = Trace(read_new(folder, events)).phase_means()
    assert means["encode"] == pytest.approx((10 * 1.0 + 30 * 2.0) / 40)
    assert means["compute"] + means["exposed"] == pytest.approx(means["step"])


# What it draws


def test_every_plot_is_there_for_every_axis(folder: Path) -> None:
    page = page_of(comparison(folder), folder)
    assert_drawn(page)
    for axis in AXIS_NAMES:
        assert len(page.of_class(f"by-{axis}")) == 2  # accuracy and loss
    assert len(page.of_class("bars")) == 1
    assert len(page.of_class("sparkline")) == 2 * 2 * 5  # runs, layers, quantities
    data = chart_data_of(page)
    assert [run["label"] for run in data["0-loss"]["runs"]] == ["fp32", "terngrad"]
    assert len(data["0-loss"]["runs"][0]["value"]) == 20


def test_the_same_runs_give_the_same_page(folder: Path) -> None:
    runs = comparison(folder)
    assert page_of(runs, folder).text == page_of(runs, folder).text


@pytest.mark.parametrize("num_runs", range(1, 13))
def test_one_to_twelve_runs_are_told_apart(folder: Path, num_runs: int) -> None:
    runs = [
        read_new(folder, events_of_a_run(step_s=0.01 * (1 + i)), method=spec) for i, spec in enumerate(SPECS[:num_runs])
    ]
    page = page_of(runs, folder)
    assert_drawn(page)
    marks = [attributes["class"] for attributes in page.of_class("curve") if "r" in (attributes["class"] or "")]
    assert len(set(marks)) == num_runs


def test_more_runs_than_can_be_told_apart_are_refused(folder: Path) -> None:
    run = read_new(folder, events_of_a_run())
    with pytest.raises(ConfigurationError, match=f"{MAX_RUNS + 1} runs of digits: at most {MAX_RUNS}"):
        write_report([run] * (MAX_RUNS + 1), folder / "report.html")
    with pytest.raises(ConfigurationError, match="no runs"):
        write_report([], folder / "report.html")


# Nothing in a run folder becomes markup, and the page needs nothing else

HOSTILE = "</script></style><script>alert(1)</script><img src=x onerror=alert(2)>\"' onload='&amp;\x00\ud800"


def test_markup_in_a_run_folder_is_only_text(folder: Path) -> None:
    events = events_of_a_run(link={"rate": HOSTILE})
    events[0] |= {"metric": HOSTILE}
    events.append({"event": "layers", "step": 300, "layers": {HOSTILE: {"numel": 5, "density": 0.5}}})
    hostile = {"method": HOSTILE, "recipe": HOSTILE, "link": HOSTILE, "workers": HOSTILE, HOSTILE: HOSTILE}
    plain = page_of([read_new(folder, events_of_a_run(), "plain", "fp32")], folder)
    runs = [read_new(folder, events, name, **hostile, seed=name) for name in ("<b>", "<script>alert(3)<")]
    page = page_of(runs, folder, title=HOSTILE)
    assert page.count("script") == plain.count("script") == 2
    assert page.count("style") == 1
    assert page.count("img") == page.count("b") == 0
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    assert ET.fromstring(write_figure(runs, folder / "a.svg").read_text()).tag.endswith("svg")


def test_only_the_pages_own_script_and_style_are_allowed(folder: Path) -> None:
    text = page_of(comparison(folder), folder).text
    policy = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)[0]
    for kind, pattern in (("style", r"<style>(.*?)</style>"), ("script", r"<script>(.*?)</script>")):
        (content,) = re.findall(pattern, text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "style=" not in text  # which the policy would not let work


def test_the_page_refers_to_nothing_outside_itself(folder: Path) -> None:
    page = page_of([*comparison(folder), read_new(folder, events_of_a_run(), "b", recipe="other")], folder)
    references = [attributes[key] for _, attributes in page.elements for key in {"href", "src"} & attributes.keys()]
    assert references == ["#recipe-0", "#recipe-1"]
    assert "@import" not in page.text
    assert "url(" not in page.text
    # The one address is the name of SVG's namespace, which nothing fetches.
    assert set(re.findall(r"https?://[^\"]+", page.text)) == {"http://www.w3.org/2000/svg"}


def test_a_page_does_not_tell_where_the_runs_lie(folder: Path) -> None:
    assert str(folder) not in page_of(comparison(folder), folder).text


def test_text_is_escaped_unless_it_is_markup() -> None:
    assert tag("p", "<b>", tag("b", "&")) == "<p>&lt;b&gt;<b>&amp;</b></p>"
    assert tag("line", x1=1.25, class_='"', data_x=None, hidden=True) == '<line x1="1.2" class="&quot;" hidden/>'
    assert escape("a\x00b") == "a\ufffdb"


# The picture


def test_the_picture_stands_alone(folder: Path) -> None:
    text = write_figure(comparison(folder), folder / "figure.svg").read_text()
    root = ET.fromstring(text)
    svg = "{http://www.w3.org/2000/svg}"
    background = root.find(f"{svg}rect")
    assert background is not None
    assert background.get("class") == "background"
    assert "var(" not in text
    assert LIGHT["paper"] in text
    assert DARK["paper"] in text
    assert len(root.findall(f".//{svg}path")) >= 2
    assert write_figure(comparison(folder / "again"), folder / "b.svg").read_text() == text


def test_the_picture_of_a_recipe_without_metric_has_the_bars(folder: Path) -> None:
    runs = [read_new(folder, events_of_a_run(metric=""), method=spec) for spec in ("fp32", "terngrad")]
    root = ET.fromstring(write_figure(runs, folder / "figure.svg").read_text())
    assert [child.get("class") for child in root.iter() if "bars" in child.get("class", "")] == ["chart bars"]


def test_the_picture_is_svg_only(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"figure\.png.*ends in \.svg"):
        write_figure([], folder / "figure.png")


def test_the_document_says_what_is_on_the_page(folder: Path) -> None:
    text = (ROOT / "docs" / "report.md").read_text()
    page = page_of(comparison(folder), folder)
    titles = [*page.rows[0], *page.rows[1][:-1]]  # the last one is the recipe's target
    assert [title for title in titles if title.split(",")[0] not in text] == []
    for name in ("write_report(runs, path, title=None)", "write_figure(runs, path)"):
        assert name in text
