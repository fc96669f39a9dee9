"""Reports in Chromium, on a phone and on a desk: `make test-web`.

`EDGED_WEB` names an environment with playwright and axe.
"""

from __future__ import annotations

import os
import site
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import edged, two_classes, write_config

for folder in Path(os.environ.get("EDGED_WEB", "")).glob("lib/python3*/site-packages"):
    site.addsitedir(str(folder))
playwright = pytest.importorskip("playwright.sync_api", reason="run `make test-web`")

pytestmark = pytest.mark.timeout(300)

SIZES = {"phone": (390, 844), "desk": (1280, 800)}
SMALLEST = 10.0  # pixels of the height of a line of text
TEXTS = """() => [...document.querySelectorAll("svg text")].filter((one) => one.checkVisibility())
  .map((one) => [one.textContent, one.getBoundingClientRect()])
  .map(([text, box]) => ({ text, height: box.height, left: box.left }))"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of an evaluation, with two charts."""
    folder = tmp_path_factory.mktemp("report")
    x, y = two_classes(3000)
    np.savez(folder / "stream.npz", X=x, y=np.where(np.arange(3000) < 1500, y, 1 - y))
    gate = {"min_gain": -1.0, "min_holdout": 1, "probation": 0}
    config = write_config(folder, {"features": 4, "classes": ["worn", "ok"]}, gate=gate)
    answer = edged("evaluate", config, "--data", folder / "stream.npz", "-o", folder / "out", "--json")
    assert answer.code == 0, answer.err
    return next((folder / "out").glob("*.html"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = os.environ.get("EDGED_CHROMIUM", "/usr/bin/chromium")
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        program = started.chromium.launch(executable_path=path, args=options)
        yield program
        program.close()


@pytest.mark.parametrize(("theme", "place"), [*product(("light", "dark"), SIZES)])
def test_a_report_can_be_read(report: Path, browser: Any, theme: str, place: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    width, height = SIZES[place]
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": height})
    page = context.new_page()
    page.goto(report.as_uri())
    if shots := os.environ.get("EDGED_SCREENSHOTS"):
        page.screenshot(path=f"{shots}/report-{place}-{theme}.png", full_page=True)
    texts = page.evaluate(TEXTS)
    assert len(texts) >= 8
    assert [one for one in texts if one["height"] < SMALLEST or one["left"] < 0] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [violation["id"] for violation in Axe().run(page).response["violations"]] == []
    context.close()
