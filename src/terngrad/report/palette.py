"""The colours, for light and dark, and the style sheets made of them.

Lines are told apart by seven colours that differ in lightness as well as hue, so that they stay apart for the colour
blind, then by dashes; each run also has a letter.
"""

from __future__ import annotations

import re
from importlib import resources

from terngrad.report.markup import Markup, join, tag

NUM_COLOURS = 7
NUM_DASHES = 3
MAX_RUNS = NUM_COLOURS * NUM_DASHES
LETTERS = "ABCDEFGHIJKLMNOPQRSTU"

LIGHT = {
    "paper": "#ffffff",
    "page": "#f6f7f9",
    "ink": "#171b22",
    "soft": "#5a6473",
    "faint": "#e3e6eb",
    "grid": "#e9ecf0",
    "mark": "#fff3d6",
    "best": "#0a6b4b",
    "warn": "#9a3b00",
    "accent": "#0b5cad",
    "on-run": "#ffffff",
    "run0": "#5b6472",
    "run1": "#0054e4",
    "run2": "#ee6900",
    "run3": "#258450",
    "run4": "#771c85",
    "run5": "#792b00",
    "run6": "#2498ee",
    "compute": "#8a94a3",
    "exposed": "#c2334d",
    "encode": "#123f74",
    "exchange": "#4a8fd4",
    "decode": "#a9cdf0",
}
DARK = {
    "paper": "#161a20",
    "page": "#0e1115",
    "ink": "#e8ebf0",
    "soft": "#9aa4b2",
    "faint": "#2b313a",
    "grid": "#252b33",
    "mark": "#3a3118",
    "best": "#5fd3a5",
    "warn": "#ffa36b",
    "accent": "#77b5f7",
    "on-run": "#0e1115",
    "run0": "#a9b2bf",
    "run1": "#4483ff",
    "run2": "#ff9450",
    "run3": "#0a9c6e",
    "run4": "#b36fc2",
    "run5": "#ffd626",
    "run6": "#b7fbce",
    "compute": "#6d7786",
    "exposed": "#ff6b81",
    "encode": "#c3defa",
    "exchange": "#5f9fe0",
    "decode": "#2f5f92",
}


def run_classes(index: int) -> str:
    """The classes of what belongs to a run: its colour, its dashes, and the run itself."""
    return f"c{index % NUM_COLOURS} d{index // NUM_COLOURS} r{index}"


def badge(index: int, x: float, y: float) -> Markup:
    """The letter of a run in its colour, as SVG: 14 by 12."""
    shape = tag("rect", x=x, y=y, width=14, height=12, rx=3, class_=f"badge {run_classes(index)}")
    return join([shape, tag("text", LETTERS[index], x=x + 7, y=y + 9.3, class_="letter middle")])


def resource(name: str) -> str:
    """A file that lies beside this module."""
    return (resources.files("terngrad.report") / name).read_text(encoding="utf-8")


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


def page_style() -> str:
    """The style sheet of the page: the reader's scheme, unless the page's button has set one."""
    themes = (
        f":root{{color-scheme:light;{_variables(LIGHT)}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{_variables(DARK)}}}\n"
        "@media screen and (prefers-color-scheme:dark){"
        f":root:not([data-theme]){{color-scheme:dark;{_variables(DARK)}}}}}\n"
        f"@media print{{:root[data-theme]{{color-scheme:light;{_variables(LIGHT)}}}}}\n"
    )
    shown = "".join(
        f"section:has(.show.r{index}:not(:checked)) .curves .r{index}{{display:none}}\n" for index in range(MAX_RUNS)
    )
    return themes + resource("chart.css") + resource("page.css") + shown


def picture_style() -> str:
    """The style sheet of a picture that stands alone: colours written out, as few programs know variables in SVG."""

    def written_out(colours: dict[str, str]) -> str:
        return re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match[1]], resource("chart.css"))

    return f"{written_out(LIGHT)}\n@media (prefers-color-scheme:dark){{\n{written_out(DARK)}}}\n"
