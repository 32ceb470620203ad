"""The page of `terngrad doctor --html`."""

from __future__ import annotations

from pathlib import Path

from examinations import examination
from report_page import Page

from terngrad.report import write_examination


def test_the_page_has_the_verdict_the_findings_the_predictions_and_all_ranks(tmp_path: Path) -> None:
    found = examination(ranks=3).describe()
    page = Page(write_examination(found, tmp_path / "page.html").read_text())
    assert found["verdict"].split(".")[0] in page.text
    first = [row[0] for row in page.rows]
    for row in found["predictions"]:
        assert row["method"] in first
    shown = [row for row in page.rows if row[1:2] and row[1].endswith("GB/s") and len(row) == 4]
    assert [row[0] for row in shown] == [rate["method"] for rate in found["rates"]]
    assert ["half of the gradient ready, in backward", "20.0 ms"] in page.rows
    assert "1 gradient, 100,000 numbers" in page.text
    assert {"slow-host", "0 to 1", "2 to 1", "0", "1", "2"} <= set(first)
    assert "&lt;b&gt;is&lt;/b&gt;" in page.text
    assert "http://" not in page.text.replace("http://www.w3.org", "")


def test_a_rank_alone_and_ranks_that_cannot_meet_have_a_page_too(tmp_path: Path) -> None:
    for changes in ({"ranks": 1}, {"speeds": [], "wires": [], "profile": None, "predictions": {}, "codecs": {}}):
        found = examination(**changes).describe()
        page = Page(write_examination(found, tmp_path / "page.html").read_text())
        assert found["verdict"] in page.text
