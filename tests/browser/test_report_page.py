"""The report in a browser: it is drawn, quiet, fits a phone, and its switches switch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from examinations import examination
from report_page import comparison, read_new
from run_folders import events_of_a_run

from terngrad.report import write_examination, write_figure, write_report

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

pytestmark = pytest.mark.browser

PHONE = 390  # pixels
SPECS = (
    "fp32", "fp16", "bf16", "powersgd:rank=1", "powersgd:rank=4", "terngrad", "terngrad:block=512", "terngrad:clip=0",
    "terngrad:codec=two-bit", "terngrad:error_feedback=true,dense_names=*.norm.*+head.*", "terngrad-paper", "none",
)  # fmt: skip
HOSTILE = "<script>hacked=1</script><img src=x onerror=hacked=2>"

# The boxes of all shapes in an SVG element, in its own units.
GEOMETRY = """
return [...arguments[0].querySelectorAll("path, rect, circle, line, text")].map((shape) => {
  const box = shape.getBBox();
  return [shape.localName, box.x, box.y, box.width, box.height];
});
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of pages: of two runs, of twelve, of several recipes, of runs named to do harm, of an examination."""
    folder = tmp_path_factory.mktemp("reports")
    two = comparison(folder / "two")
    twelve = [read_new(folder / "twelve", events_of_a_run(), str(i), spec) for i, spec in enumerate(SPECS)]
    speed = read_new(folder, events_of_a_run(metric=""), "speed", recipe="speed")
    words = read_new(folder, events_of_a_run(num_steps=2000, metric="perplexity"), "words", recipe="words")
    hostile = [read_new(folder / str(i), events_of_a_run(), HOSTILE[:8], HOSTILE, seed=i) for i in range(2)]
    reports = {"two": two, "twelve": twelve, "recipes": [*two, speed, words], "hostile": hostile}
    paths = {name: write_report(runs, folder / f"{name}.html") for name, runs in reports.items()}
    paths["doctor"] = write_examination(examination(ranks=3).describe(), folder / "doctor.html")
    paths["figure"] = write_figure(two, folder / "figure.svg")
    return {name: path.as_uri() for name, path in paths.items()}


PAGES = ("two", "twelve", "recipes", "hostile", "doctor")


def wide(chromium: Chrome, width: int = 1280, scheme: str = "light") -> None:
    """A window so wide, for a reader who likes it light or dark."""
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width <= PHONE}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    preference = {"name": "prefers-color-scheme", "value": scheme}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preference]})


@pytest.fixture(autouse=True)
def _desktop(chromium: Chrome) -> Iterator[None]:
    wide(chromium)
    yield
    assert [entry for entry in chromium.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def find(chromium: Chrome, selector: str) -> list[WebElement]:
    return chromium.find_elements("css selector", selector)


def visible(chromium: Chrome, selector: str) -> list[WebElement]:
    return [found for found in find(chromium, selector) if found.is_displayed()]


def requested(chromium: Chrome) -> list[str]:
    """The addresses that were asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def colour_of_the_page(chromium: Chrome) -> str:
    return str(chromium.execute_script("return getComputedStyle(document.body).backgroundColor"))


def assert_has_geometry(chromium: Chrome, drawing: WebElement) -> None:
    assert drawing.size["width"] > 0
    assert drawing.size["height"] > 0
    shapes: Sequence[Sequence[Any]] = chromium.execute_script(GEOMETRY, drawing)
    assert all(isinstance(number, int | float) for shape in shapes for number in shape[1:])
    assert any(shape[0] in ("path", "rect") and shape[3] + shape[4] > 0 for shape in shapes)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_all_that_is_asked_for(chromium: Chrome, pages: dict[str, str], name: str) -> None:
    requested(chromium)
    chromium.get(pages[name])
    assert requested(chromium) == [pages[name]]
    assert chromium.execute_script("return typeof hacked") == "undefined"


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1280, PHONE])
def test_every_plot_is_drawn_and_seen(chromium: Chrome, pages: dict[str, str], name: str, width: int) -> None:
    wide(chromium, width)
    chromium.get(pages[name])
    figures = find(chromium, "figure")
    assert figures
    for figure in figures:
        charts = [chart for chart in figure.find_elements("css selector", "svg.chart") if chart.is_displayed()]
        assert len(charts) == 1  # one axis at a time
        assert_has_geometry(chromium, charts[0])
    sparklines = visible(chromium, ".sparkline")
    assert bool(sparklines) == (name != "doctor")
    for sparkline in sparklines:
        assert_has_geometry(chromium, sparkline)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_fits_a_phone(chromium: Chrome, pages: dict[str, str], name: str) -> None:
    wide(chromium, PHONE)
    chromium.get(pages[name])
    assert chromium.execute_script("return document.documentElement.scrollWidth") == PHONE
    # What is wider than the screen scrolls by itself.
    tables = find(chromium, ".scroll")
    assert tables
    assert all(table.size["width"] <= PHONE for table in tables if table.is_displayed())


def shown_axes(chromium: Chrome) -> set[str]:
    return {chart.get_attribute("data-axis") or "" for chart in visible(chromium, ".chart[data-axis]")}


def test_the_switch_chooses_the_axis(chromium: Chrome, pages: dict[str, str]) -> None:
    chromium.get(pages["two"])
    assert shown_axes(chromium) == {"seconds"}
    for axis in ("bytes", "steps", "seconds"):
        find(chromium, f".switch .to-{axis}")[0].click()
        assert shown_axes(chromium) == {axis}
        for chart in visible(chromium, ".chart[data-axis]"):
            assert_has_geometry(chromium, chart)


def test_the_switch_works_by_keyboard(chromium: Chrome, pages: dict[str, str]) -> None:
    chromium.get(pages["two"])
    find(chromium, ".x-seconds")[0].send_keys("\ue014")  # arrow to the right
    assert shown_axes(chromium) == {"bytes"}


def test_the_axis_of_one_recipe_leaves_the_others_alone(chromium: Chrome, pages: dict[str, str]) -> None:
    chromium.get(pages["recipes"])
    find(chromium, "#recipe-0 .switch .to-bytes")[0].click()
    assert shown_axes(chromium) == {"bytes", "seconds"}


def test_plots_and_switch_need_no_script(chromium: Chrome, pages: dict[str, str]) -> None:
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        chromium.get(pages["two"])
        assert shown_axes(chromium) == {"seconds"}
        find(chromium, ".switch .to-steps")[0].click()
        assert shown_axes(chromium) == {"steps"}
        assert visible(chromium, "#theme") == []  # it would do nothing
    finally:
        chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_button_switches_between_light_and_dark(chromium: Chrome, pages: dict[str, str]) -> None:
    chromium.get(pages["two"])
    light = colour_of_the_page(chromium)
    find(chromium, "#theme")[0].click()
    dark = colour_of_the_page(chromium)
    assert dark != light
    chromium.refresh()
    assert colour_of_the_page(chromium) == dark  # it is remembered
    find(chromium, "#theme")[0].click()
    assert colour_of_the_page(chromium) == light
    chromium.execute_script("localStorage.clear()")


def test_the_page_follows_the_readers_scheme(chromium: Chrome, pages: dict[str, str]) -> None:
    chromium.get(pages["two"])
    light = colour_of_the_page(chromium)
    wide(chromium, scheme="dark")
    assert colour_of_the_page(chromium) != light


def test_the_pointer_shows_values(chromium: Chrome, pages: dict[str, str]) -> None:
    from selenium.webdriver import ActionChains

    chromium.get(pages["two"])
    chart = visible(chromium, ".chart.by-seconds")[0]
    chromium.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", chart)
    ActionChains(chromium).move_to_element_with_offset(chart, -chart.size["width"] // 10, 0).perform()
    tip = find(chromium, "#tip")[0]
    assert tip.is_displayed()
    assert "%" in tip.text
    assert "terngrad" in tip.text


def test_arrow_keys_move_along_a_plot(chromium: Chrome, pages: dict[str, str]) -> None:
    chromium.get(pages["hostile"])
    chart = visible(chromium, ".chart.by-seconds")[0]
    tip = find(chromium, "#tip")[0]
    texts = []
    for key in ("\ue011", "\ue014", "\ue014"):  # home, then twice to the right
        chart.send_keys(key)
        texts.append(tip.text)
    assert len(set(texts)) == 3
    chart.send_keys("\ue010")  # end
    assert HOSTILE in tip.text
    chart.send_keys("\ue00c")  # escape
    assert not tip.is_displayed()


def test_a_name_hides_its_curves(chromium: Chrome, pages: dict[str, str]) -> None:
    chromium.get(pages["two"])
    before = len(visible(chromium, ".chart .curve.r1"))
    assert before == 2  # accuracy and loss
    find(chromium, ".legend label")[1].click()
    assert visible(chromium, ".chart .curve.r1") == []
    assert len(visible(chromium, ".chart .curve.r0")) == 2


def test_the_picture_is_drawn_on_its_own_background(chromium: Chrome, pages: dict[str, str]) -> None:
    chromium.get(pages["figure"])
    root = find(chromium, "svg")[0]
    assert_has_geometry(chromium, root)
    fill = "return getComputedStyle(document.querySelector('.background')).fill"
    light = chromium.execute_script(fill)
    wide(chromium, scheme="dark")
    assert {light, chromium.execute_script(fill)} == {"rgb(255, 255, 255)", "rgb(22, 26, 32)"}
