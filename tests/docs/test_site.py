"""The documentation builds as a site, with every link and anchor in order."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import generated_page_is_current

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "docs" / "build_site.py"
MACROS = {".TH", ".SH", ".SS", ".TP", ".PP", ".B"}


def _build(target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, target], check=False, capture_output=True, text=True, timeout=110
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="zensical needs CPython 3.11")
@pytest.mark.slow
def test_the_site_builds_without_a_broken_link_and_asks_nobody_else(tmp_path: Path) -> None:
    built = _build(tmp_path)
    assert built.returncode == 0, built.stdout[-2000:]
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?(https?:[^\" >]+)", text)
        loaded += re.findall(r"<link[^>]* rel=\"?stylesheet\"?[^>]* href=\"?(https?:[^\" >]+)", text)
        assert loaded == [], page
    assert (tmp_path / "site" / "search.json").stat().st_size > 100_000


def test_the_command_reference_is_up_to_date() -> None:
    assert generated_page_is_current("make_command_reference.py")


def test_the_python_reference_is_up_to_date() -> None:
    assert generated_page_is_current("make_python_reference.py")


def test_the_reference_of_events_and_metrics_is_up_to_date() -> None:
    assert generated_page_is_current("make_signal_reference.py")


def test_the_table_of_the_dashboard_is_up_to_date() -> None:
    assert generated_page_is_current("make_dashboard_table.py")


def test_the_description_of_http_is_up_to_date() -> None:
    assert generated_page_is_current("make_openapi.py")


def test_the_manual_page_is_one_that_man_reads(tmp_path: Path) -> None:
    page = tmp_path / "edged.1"
    program = ROOT / "docs" / "make_command_reference.py"
    subprocess.run([sys.executable, program, "--man", page], check=True, timeout=60)
    text = page.read_text(encoding="utf-8")
    assert text.startswith(".TH EDGED 1")
    assert ".SS edged fleet round pause|resume|abandon|approve CONFIG" in text
    assert all(line.split()[0] in MACROS for line in text.splitlines() if line.startswith((".", "'")))


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r'"([\w/-]+\.md)"', (ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("text", sorted((ROOT / "docs" / "images").glob("*.dot")), ids=lambda path: path.stem)
def test_a_diagram_shows_what_its_text_says(text: Path) -> None:
    """Graphviz need not be installed: a picture that was drawn before a change lacks its labels."""
    source = text.read_text(encoding="utf-8")
    drawn = html.unescape(text.with_suffix(".svg").read_text(encoding="utf-8"))
    labels = [line for label in re.findall(r'label="([^"]+)"', source) for line in label.split("\\n")]
    assert len(labels) > 5
    assert [label for label in labels if f">{label}<" not in drawn] == []
    arrows = sum(line.count("->") for line in source.splitlines() if not line.startswith("//"))
    assert drawn.count('class="edge"') == arrows
