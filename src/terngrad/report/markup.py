"""Elements of HTML and SVG as text that is escaped by its type: what is not `Markup` is text, and cannot become markup.

Everything that comes from a run folder reaches the page through `tag` or `json_block`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

# The elements drawn here that have no content; any other one gets an end tag, which HTML insists on.
_EMPTY = {"circle", "input", "line", "meta", "path", "rect", "wbr"}
# Not allowed in XML, and of no use in HTML: control characters and halves of surrogate pairs.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """The text as markup that shows it, whatever is in it."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_UNPRINTABLE.sub("\ufffd", str(text))))


def join(parts: Iterable[object], between: str = "") -> Markup:
    """The parts one after the other, each escaped unless it is markup."""
    return Markup(escape(between).join(escape(part) for part in parts))


def tag(name: str, /, *content: object, **attributes: object) -> Markup:
    """An element. `class_` is the attribute class, `data_x` is data-x; None and False leave an attribute out."""
    text = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _EMPTY:
        return Markup(f"<{name}{text}/>")
    return Markup(f"<{name}{text}>{join(content)}</{name}>")


def _attribute(key: str, value: object) -> str:
    name = key.removesuffix("_").replace("_", "-")
    if isinstance(value, bool):
        return f" {name}" if value else ""
    return f' {name}="{escape(pixels(value) if isinstance(value, float) else value)}"'


def scrolling(table: Markup, label: str) -> Markup:
    """A table that scrolls by itself where the screen is too narrow; by keyboard too."""
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def pixels(value: float) -> str:
    """A coordinate: a tenth of a unit is finer than any screen shows it."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def json_block(identifier: str, data: Any) -> Markup:
    """Data for the page's script. No `<` is left in it, so nothing in it can end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{escape(identifier)}">{text}</script>')


@dataclass(frozen=True)
class Drawing:
    """A chart: how large it is in its own units, what is in it, and the attributes of its element."""

    width: int
    height: int
    content: Markup
    attributes: dict[str, str] = field(default_factory=dict)

    def element(self, **more: object) -> Markup:
        """The SVG element; `more` can place it within another one."""
        view = f"0 0 {self.width} {self.height}"
        return tag("svg", self.content, viewBox=view, role="img", **self.attributes, **more)
