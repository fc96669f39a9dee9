"""Examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import edged

ROOT = Path(edged.__file__).parent


def with_examples() -> list[str]:
    """Modules that show an example."""
    return [
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for path in sorted(ROOT.rglob("*.py"))
        if ">>>" in path.read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize("name", with_examples())
def test_examples_give_what_they_show(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".__init__"))
    result = doctest.testmod(module, extraglobs={"np": importlib.import_module("numpy")})
    assert result.attempted > 0
    assert result.failed == 0
