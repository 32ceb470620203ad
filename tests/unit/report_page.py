"""A report page as a reader's program sees it, and runs to make one of, for the tests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from run_folders import Event, events_of_a_run, write_run

from terngrad.report import write_report
from terngrad.train import Run, read_run

VOID = {"circle", "input", "line", "meta", "path", "rect", "wbr"}


class Page(HTMLParser):
    """A page as a reader's program sees it: elements with their attributes, and the text of table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.best: set[str] = set()
        self.feed(text)
        assert self.open == [], "an element was not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._is_best = "best" in (attributes.get("class") or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open) and "svg" not in self.open:
            self.rows[-1][-1] += data
            if self._is_best:
                self.best.add(data)

    def count(self, name: str) -> int:
        return sum(found == name for found, _ in self.elements)

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.elements if name in (attributes.get("class") or "").split()]

    def row(self, start: str) -> list[str]:
        """The first row of a table whose first cell holds that."""
        return next(row for row in self.rows if row and start in row[0])


def assert_drawn(page: Page) -> None:
    """Every number of every drawing is one."""
    shapes = [attributes for name, attributes in page.elements if name in VOID - {"input", "meta", "wbr"}]
    assert shapes
    for attributes in shapes:
        for key in {"d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height"} & attributes.keys():
            numbers = re.sub(r"[MLhlm, ]+", " ", attributes[key] or "").split()
            assert numbers
            assert all(math.isfinite(float(number)) for number in numbers), attributes


def read_new(folder: Path, events: Sequence[Event], name: str = "", method: str = "terngrad", **settings: Any) -> Run:
    return read_run(write_run(folder / (name or method.replace(":", "-")), events, method, **settings))


def comparison(folder: Path) -> list[Run]:
    """fp32 against terngrad, which sends a tenth of the bytes and takes half as long for a step."""
    return [
        read_new(folder, events_of_a_run(bytes_per_step=10_000, step_s=0.04), method="fp32"),
        read_new(folder, events_of_a_run(bytes_per_step=1000, step_s=0.02), method="terngrad"),
    ]


def page_of(runs: Sequence[Run], folder: Path, title: str | None = None) -> Page:
    path = write_report(runs, folder / "report.html", title)
    return Page(path.read_text(encoding="utf-8"))


def chart_data_of(page: Page) -> dict[str, Any]:
    """What the page's script knows of the curves."""
    found: dict[str, Any] = json.loads(
        re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.text)[0]
    )
    return found
