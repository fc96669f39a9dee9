"""Every key of the configuration, and of a coordinator's, is set by a test.

That a test sets a key is judged by its text: it has the dotted name, or the key as a word of its own while
the section is named there or in what it imports from the tests. Whether it also shows what the key does, no
program can tell. Tests of rules alone and of refusals do not count: they do not go through the wiring.
"""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from edged.config import Config
from edged.fleet.config import CoordinatorConfig

HERE = Path(__file__).parents[1]
ELSEWHERE = {"domain", "config"}


def keys(section: type[BaseModel], names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All keys below a section, each as the names that lead to it."""
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *typing.get_args(field.annotation)]
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if inner:
            yield from keys(inner[0], (*names, name))
        else:
            yield (*names, name)


@cache
def words(path: Path) -> frozenset[str]:
    """Names of arguments, texts, and words before a colon in texts, which may be YAML."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
            found.update(re.findall(r"\w+(?=:)", node.value))
        elif isinstance(node, ast.Name):
            found.add(node.id)
    return frozenset(found)


@cache
def imported(path: Path) -> frozenset[Path]:
    """The file, and those of the tests that it imports, and what they do."""
    found = {path}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            file = HERE.joinpath(*str(node.module).split(".")[1:]).with_suffix(".py")
            if file.exists():
                found |= imported(file)
    return frozenset(found)


def files(folder: str) -> list[Path]:
    """All that counts below a folder of the tests."""
    found = ((path, path.relative_to(HERE).parts) for path in (HERE / folder).rglob("*.py"))
    return [path for path, parts in found if parts[0] not in ELSEWHERE and "rules" not in parts]


OF_COORDINATOR = [key for key in keys(CoordinatorConfig) if key[0] not in Config.model_fields]


@pytest.mark.parametrize("key", list(keys(Config)), ids=".".join)
def test_some_test_sets_the_key(key: tuple[str, ...]) -> None:
    check(key, "")


@pytest.mark.parametrize("key", OF_COORDINATOR, ids=".".join)
def test_some_test_sets_the_coordinators_key(key: tuple[str, ...]) -> None:
    check(key, "fleet")


def check(key: tuple[str, ...], folder: str) -> None:
    """Fail where no test below the folder sets the key."""
    *sections, name = key
    section = {sections[-1], f"{sections[-1].title()}Config"} if sections else {"CoordinatorConfig", "Fleet"}
    for path in files(folder):
        if ".".join(key) in words(path):
            return
        if name in words(path) and any(section & words(file) for file in imported(path)):
            return
    pytest.fail(f"no test sets {'.'.join(key)}: let one set two values of it and show a difference")
