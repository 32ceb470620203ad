"""What was measured of each layer over time: a small plot for every layer and quantity, on scales that all share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from terngrad.report.lines import path_of
from terngrad.report.markup import Markup, join, scrolling, tag
from terngrad.report.palette import run_classes
from terngrad.report.records import LayerTrace, Point
from terngrad.report.scales import Scale, padded
from terngrad.report.series import thin
from terngrad.report.text import MISSING, digits

QUANTITIES = {
    "density": "density",
    "scaler": "scaler",
    "relative_error": "relative error",
    "bits": "bits a value",
    "least_bits": "Shannon's limit",
}
BY_LOGARITHM = {"scaler"}
MOST_LAYERS = 40
MOST_POINTS = 48
WIDTH, HEIGHT = 150, 26


@dataclass(frozen=True)
class Field:
    """The scales of one column of small plots."""

    quantity: str
    x: Scale
    y: Scale


def layer_table(layers: Sequence[LayerTrace], index: int) -> Markup:
    """A row for each layer, in the order of the model; of very many layers, the largest."""
    smallest = sorted((layer.numel for layer in layers), reverse=True)[:MOST_LAYERS][-1]
    shown = [layer for layer in layers if layer.numel >= smallest][:MOST_LAYERS]
    fields = [_field(quantity, shown) for quantity in QUANTITIES if any(quantity in la.quantities for la in shown)]
    head = [tag("th", "layer", scope="col"), tag("th", "elements", scope="col", class_="number")]
    head += [tag("th", *_heading(field), scope="col", colspan=2) for field in fields]
    rows = [_row(layer, fields, index) for layer in shown]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="layers")
    return join([scrolling(table, "layers"), _left_out(layers, shown)])


def _left_out(layers: Sequence[LayerTrace], shown: Sequence[LayerTrace]) -> Markup:
    if len(shown) == len(layers):
        return Markup()
    share = sum(layer.numel for layer in shown) / max(1, sum(layer.numel for layer in layers))
    text = f"The {len(shown)} largest of {len(layers)} layers, with {100 * share:.1f}% of the elements."
    return tag("p", text, class_="note")


def _field(quantity: str, layers: Sequence[LayerTrace]) -> Field:
    series = [pair for layer in layers for pair in layer.quantities.get(quantity, ())]
    log = quantity in BY_LOGARITHM
    values = [value for _, value in series if value > 0 or not log] or [1.0]
    low, high = padded(min(values) if log else min(0.0, *values), max(values))
    if log:
        low = max(low, min(values) / 2)
    first, last = padded(min(step for step, _ in series), max(step for step, _ in series))
    return Field(quantity, Scale(first, last, 2.0, WIDTH - 2.0), Scale(low, high, HEIGHT - 2.0, 2.0, log))


def _heading(field: Field) -> list[object]:
    ends = f"{digits(field.y.low, 2)} – {digits(field.y.high, 2)}{', by logarithm' if field.y.log else ''}"
    return [QUANTITIES[field.quantity], tag("small", ends)]


def _row(layer: LayerTrace, fields: Sequence[Field], index: int) -> Markup:
    cells = [tag("th", layer.name, scope="row"), tag("td", f"{layer.numel:,}", class_="number")]
    for field in fields:
        series = layer.quantities.get(field.quantity, ())
        last = digits(series[-1][1]) if series else MISSING
        cells.append(tag("td", _spark(series, field, index) if series else "", class_="spark"))
        cells.append(tag("td", last, class_="number last"))
    return tag("tr", *cells)


def _spark(series: Sequence[tuple[float, float]], field: Field, index: int) -> Markup:
    points = thin([Point(step, math.nan, math.nan, value) for step, value in series], MOST_POINTS)
    places = [(field.x(point.step), field.y(point.value)) for point in points if field.y.takes(point.value)]
    values = [value for _, value in series]
    title = (
        f"{QUANTITIES[field.quantity]}: {digits(values[0])} at step {series[0][0]:,.0f}, "
        f"{digits(values[-1])} at step {series[-1][0]:,.0f}; from {digits(min(values))} to {digits(max(values))}"
    )
    parts = [tag("title", title)]
    if places:
        foot = [(places[-1][0], HEIGHT - 1.0), (places[0][0], HEIGHT - 1.0)]
        parts.append(tag("path", d=path_of([*places, *foot]), class_=f"area {run_classes(index)}"))
        parts.append(tag("path", d=path_of(places), class_=f"curve {run_classes(index)}"))
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="sparkline", role="img", aria_label=title)
