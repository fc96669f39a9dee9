"""One design for the device page, the fleet page and reports."""

from __future__ import annotations

import re
from itertools import product

import pytest

from edged.charts.html import DESIGN, design, document
from edged.device.web.page.page import STATIC
from edged.fleet.page.server import FOLDER, PageSettings, page_files

TEXT = ("ink", "dim", "live", "frozen", "last", "drift", "swap", "back", "well", "warn", "ill")
BEHIND = ("paper", "card", "hover")
ENOUGH = 4.5  # WCAG 2.1, level AA, of text


def themes() -> dict[str, dict[str, str]]:
    """The colours of both themes by name."""
    light, _, dark = design().partition("prefers-color-scheme: dark")
    found = [dict(re.findall(r"--([a-z]+): (#[0-9a-f]{3,6});", part)) for part in (light, dark)]
    assert found[0].keys() == found[1].keys()
    return {"light": found[0], "dark": found[1]}


def luminance(colour: str) -> float:
    """Relative luminance of `#rgb` or `#rrggbb`."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_every_colour(theme: str) -> None:
    colours = themes()[theme]
    ratios = {(a, b): contrast(colours[a], colours[b]) for a, b in product(TEXT, BEHIND)}
    ratios["on", "live"] = contrast(colours["on"], colours["live"])
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < ENOUGH} == {}
    assert all(contrast(colours["axis"], colours[behind]) >= 3 for behind in BEHIND)  # borders of controls


def test_the_three_pages_use_this_one_file_and_define_no_colours_of_their_own() -> None:
    assert page_files(PageSettings())[DESIGN].decode() == design()
    assert design() in document("A report", "")
    names = {path.name: path for folder in (STATIC, FOLDER) for path in folder.glob("*.css")}
    assert DESIGN not in names
    for path in names.values():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"#[0-9a-f]{3,6}\b(?=[ ;}])", text), path.name
