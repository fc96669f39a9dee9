"""The documentation names only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TESTS = {path.name for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_of_the_documentation_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w/])(?:tests|edged|benchmarks)/[\w/]+(?:\.py\b|(?<=/)(?=`))", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    bare = re.findall(r"(?<![\w/])test_\w+\.py\b", text)
    assert [name for name in bare if name not in TESTS] == []
