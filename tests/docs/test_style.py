"""User-facing words: docs/style.md lists what to avoid, and pages have a size."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "deploy").rglob("*.md"))]
GENERATED = {ROOT / "docs" / name for name in ("config.md", "commands.md", "python-api.md", "signals.md")}
GENERATED_PART = re.compile(r"<!-- [^\n]*: by docs/.*?<!-- end of", re.DOTALL)
STYLE = ROOT / "docs" / "style.md"

LONGEST = 1_500
REFERENCE = {
    "codecs.md", "commands.md", "config.md", "design.md", "fleet-reference.md", "http.md", "mqtt.md",
    "operators.md", "python-api.md", "signals.md", "troubleshooting.md",
}  # fmt: skip
"""Pages to look things up in, which may be longer."""

AVOID = {
    "anew": r"\banew\b",
    "whoever, wherever": r"\b(whoever|wherever)\b",
    "nobody": r"\bnobody\b",
    "for good": r"\bfor good\b",
    "is told": r"\b(is|are) told\b",
    "N at least, N at most": r"\b(\d+([.,]\d+)*|a second|a minute|a day|a sample) at (least|most)\b",
    "goes on": r"\bgo(es)? on (?!with the|when )",
    "over restarts": r"\bover restarts\b",
    "what comes": r"\bwhat comes\b",
    "hangs up": r"\bhangs? up\b",
    "held against": r"\bheld against\b",
    "no fault": r"\bis no fault\b",
    "steer": r"\bsteers?\b",
    "sendings": r"\bsendings\b",
}
ERRORS = re.compile(r"Error$|^_error$|^CheckResult$")


def prose(page: Path) -> str:
    """A page without code; of docs/style.md without its examples of bad words."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    if page == STYLE:
        text = text.partition("## Before and after")[0]
    return re.sub(r"`[^`]*`", "`", text)


def messages() -> Iterator[tuple[Path, str]]:
    """Texts of errors and findings in the code."""
    for path in sorted((ROOT / "edged").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ERRORS.search(ast.unparse(node.func).rpartition(".")[2]):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield path, part.value


def found(text: str) -> list[str]:
    """Each word to avoid that a text has, with what surrounds it."""
    return [
        f"{word}: …{text[max(0, hit.start() - 40) : hit.end() + 20]}…".replace("\n", " ")
        for word, pattern in AVOID.items()
        for hit in re.finditer(pattern, text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_avoid_words(page: Path) -> None:
    assert found(prose(page)) == []


def test_errors_avoid_words() -> None:
    assert [f"{path.relative_to(ROOT)}: {hit}" for path, text in messages() for hit in found(text)] == []


def test_the_style_page_lists_the_words() -> None:
    table = STYLE.read_text(encoding="utf-8").split("<!-- words -->")[1]
    listed = re.findall(r"^\| ([^|]+?) \| [^|]+ \|$", table, re.MULTILINE)
    assert set(listed) - {"avoid", "---"} == set(AVOID)


def test_a_word_to_avoid_is_found() -> None:
    assert found("It begins anew, 10 at least.") == [
        "anew: …It begins anew, 10 at least.…",
        "N at least, N at most: …It begins anew, 10 at least.…",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_but_references_is_long(page: Path) -> None:
    if page.name not in REFERENCE:
        text = GENERATED_PART.sub("", page.read_text(encoding="utf-8"))
        assert len(text.split()) <= LONGEST
