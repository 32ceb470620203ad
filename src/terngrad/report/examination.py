"""What `terngrad doctor` found, as a page: the verdict, what is wrong, predictions, step, codecs, wires and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from terngrad.report.bars import StepTime, key_of_phases, step_chart
from terngrad.report.markup import Markup, join, scrolling, tag
from terngrad.report.page import fill_page
from terngrad.report.palette import LETTERS, resource
from terngrad.report.text import BYTES, MISSING, SECONDS, STEP_SECONDS, amount, column, digits, plural, times

Found = Mapping[str, Any]  # as the doctor's JSON has it


def write_examination(found: Found, path: str | Path) -> Path:
    """Writes the page, and gives its path."""
    target = Path(path)
    target.write_text(render(found), encoding="utf-8", newline="\n")
    return target


def render(found: Found) -> str:
    """The text of the page."""
    ranks = len(found["places"])
    parts = [
        tag("p", found["verdict"], class_="verdict"),
        _findings(found["findings"]),
        _predictions(found["predictions"], found["profile"]),
        _step(found["parts"]),
        _codecs(found["rates"]),
        _wires(found["wires"]),
        _ranks(found["places"], found["speeds"]),
    ]
    section = tag("section", *parts, class_="recipe")
    title = f"{ranks} {'rank' if ranks == 1 else 'ranks'}"
    return fill_page("terngrad doctor", title, Markup(), [section], resource("doctor_notes.html"), {})


def _findings(findings: Sequence[Found]) -> Markup:
    if not findings:
        return tag("p", "Nothing wrong was found.", class_="facts")
    rows = [tag("tr", tag("th", found["what"], scope="row"), tag("td", found["text"])) for found in findings]
    return join([tag("h3", "What is wrong"), _table(("finding", "what it is, and what to do"), rows, "findings")])


def _predictions(rows: Sequence[Found], profile: Found | None) -> Markup:
    """As bars and as a table, quickest first."""
    if not rows or profile is None:
        return Markup()
    shown = rows[: len(LETTERS)]
    times = [
        StepTime(
            index, row["method"], {"compute": max(0.0, row["step_s"] - row["exposed_s"]), "exposed": row["exposed_s"]}
        )
        for index, row in enumerate(shown)
    ]
    chart = tag(
        "figure",
        tag("figcaption", "Predicted time of a step"),
        key_of_phases(("compute", "exposed")),
        step_chart(times, "predicted time of a step").element(),
    )
    time_unit, steps = column([row["step_s"] for row in shown], STEP_SECONDS)
    exposed_unit, exposed = column([row["exposed_s"] for row in shown], STEP_SECONDS)
    byte_unit, sent = column([row["bytes_sent"] for row in shown], BYTES)
    lines = [
        tag(
            "tr",
            tag("th", row["method"], scope="row"),
            *(tag("td", text, class_="number") for text in (steps[i], exposed[i], sent[i])),
            tag("td", row["bound"]),
            tag("td", row["exchange"]),
        )
        for i, row in enumerate(shown)
    ]
    head = (
        "method", f"a step, {time_unit}", f"exposed, {exposed_unit}", f"sent, {byte_unit}", "bound by", "exchange",
    )  # fmt: skip
    table = _table(head, lines, "predicted steps")
    return join([tag("h3", "What methods would take"), tag("div", chart, tag("div", table), class_="figures")])


def _step(parts: Found | None) -> Markup:
    """What it consists of without communication."""
    if parts is None:
        return Markup()
    moments = {
        "forward": parts["forward_s"],
        "backward": parts["backward_s"],
        "first gradient ready, in backward": parts["first_ready_s"],
        "half of the gradient ready, in backward": parts["half_ready_s"],
        "update": parts["update_s"],
    }
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", amount(seconds, SECONDS), class_="number"))
        for name, seconds in moments.items()
    ]
    facts = f"{plural(parts['gradients'], 'gradient')}, {parts['numel']:,} numbers."
    return join([
        tag("h3", "The step without communication"), tag("p", facts, class_="facts"),
        _table(("part", "time"), rows, "the step"),
    ])  # fmt: skip


def _codecs(rates: Sequence[Found]) -> Markup:
    if not rates:
        return Markup()
    rows = []
    for one in rates:
        speeds = (one["encode_bytes_per_s"], one["decode_bytes_per_s"])
        cells = (
            *(MISSING if speed is None else f"{digits(speed / 1e9)} GB/s" for speed in speeds),
            times(one["ratio"]),
        )
        rows.append(
            tag("tr", tag("th", one["method"], scope="row"), *(tag("td", cell, class_="number") for cell in cells))
        )
    return join([tag("h3", "Codecs"), _table(("method", "encode", "decode", "smaller"), rows, "codecs")])


def _wires(wires: Sequence[Found]) -> Markup:
    if not wires:
        return Markup()
    rows = [
        tag(
            "tr",
            tag("th", f"{wire['sender']} to {wire['receiver']}", scope="row"),
            tag("td", f"{digits(8 * wire['bytes_per_s'] / 1e6)} Mb/s", class_="number"),
            tag("td", amount(wire["latency_s"], SECONDS), class_="number"),
        )
        for wire in wires
    ]
    return join([tag("h3", "Wires"), _table(("ranks", "rate", "latency"), rows, "wires")])


def _ranks(places: Sequence[Found], speeds: Sequence[Found]) -> Markup:
    rows = []
    for number, place in enumerate(places):
        speed = speeds[number] if number < len(speeds) else None
        told = (
            (f"{speed['copy_bytes_per_s'] / 1e9:.1f} GB/s", amount(speed["compute_s"], SECONDS)) if speed else ("", "")
        )
        cells = (place["host"], place["interface"], place["address"], len(place["cores"]), place["threads"], *told)
        rows.append(tag("tr", tag("th", place["rank"], scope="row"), *(tag("td", cell) for cell in cells)))
    head = ("rank", "host", "interface", "address", "cores", "threads", "copies", "arithmetic")
    return join([tag("h3", "Ranks"), _table(head, rows, "ranks")])


def _table(head: Sequence[str], rows: Sequence[Markup], label: str) -> Markup:
    figures = ("rate", "latency", "a step", "exposed", "sent", "time", "encode", "decode", "smaller")
    headings = [tag("th", name, scope="col", class_="number" if name.startswith(figures) else None) for name in head]
    return scrolling(tag("table", tag("thead", tag("tr", *headings)), tag("tbody", *rows)), label)
