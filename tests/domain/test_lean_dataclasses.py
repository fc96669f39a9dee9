"""Dataclasses with shared methods behave as those of the standard library."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from edged.domain import lean_dataclasses

Decorator = Callable[..., Any]
BOTH = pytest.mark.parametrize("decorator", [dataclasses.dataclass, lean_dataclasses.dataclass])


@lean_dataclasses.dataclass(frozen=True)
class Point:
    """At the top of a module, so that it can be pickled."""

    x: float
    y: float = 0.0


@lean_dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    """Has no `__dict__`."""

    x: float


class Reading:
    """One reading; a class that is no dataclass yet."""

    key: str
    value: float
    seen: int = field(default=0, compare=False)
    raw: bytes = field(default=b"", repr=False)


class Weighted:  # noqa: PLW1641  hashed by its fields
    """Equal where the names are."""

    name: str
    weight: float = 1.0

    def __eq__(self, other: object) -> bool:
        return self.name == getattr(other, "name", None)

    def __repr__(self) -> str:
        return self.name


class Named:
    """Hashed by its name."""

    name: str
    tags: list[str]

    def __hash__(self) -> int:
        return hash(self.name)


def copied(body: type) -> type:
    """The class anew: decorating it changes it."""
    return type(body.__name__, (), {**vars(body)})


@BOTH
def test_values_are_compared_hashed_and_shown(decorator: Decorator) -> None:
    kind = decorator(frozen=True)(copied(Reading))
    other = decorator(frozen=True)(type("Other", (kind,), {}))
    one = kind("a", 1.0, seen=1)
    assert one == kind("a", 1.0, seen=2)
    assert one != kind("a", 2.0)
    assert one != other("a", 1.0)
    assert one != ("a", 1.0)
    assert hash(one) == hash(kind("a", 1.0))
    assert repr(one) == "Reading(key='a', value=1.0, seen=1)"
    assert dataclasses.replace(one, key="b") == kind("b", 1.0)
    assert [found.name for found in dataclasses.fields(other)] == ["key", "value", "seen", "raw"]


@BOTH
def test_what_a_class_defines_itself_stays(decorator: Decorator) -> None:
    weighted, named = decorator(frozen=True)(copied(Weighted)), decorator(frozen=True)(copied(Named))
    assert weighted("a", 1.0) == weighted("a", 2.0)
    assert hash(weighted("a", 1.0)) != hash(weighted("a", 2.0))
    assert repr(weighted("a")) == "a"
    assert hash(named("a", ["b"])) == hash("a")


@BOTH
def test_options_are_kept(decorator: Decorator) -> None:
    changing, itself = decorator(copied(Reading)), decorator(eq=False)(copied(Reading))
    made = changing("a", 1.0)
    made.value = 2.0
    assert made == changing("a", 2.0)
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)
    assert itself("a", 1.0) != itself("a", 1.0)
    assert len({itself("a", 1.0), itself("a", 1.0)}) == 2


@BOTH
def test_one_that_contains_itself_is_shown(decorator: Decorator) -> None:
    node = decorator(copied(Reading))("a", 1.0)
    node.value = node
    assert repr(node) == "Reading(key='a', value=..., seen=0)"


@pytest.mark.parametrize("kind", [Point, Slotted])
def test_frozen_ones_do_not_change(kind: Any) -> None:
    made = kind(1.0)
    with pytest.raises(FrozenInstanceError, match=r"'x' of a (Point|Slotted)"):
        made.x = 2.0
    with pytest.raises(FrozenInstanceError, match="'x'"):
        del made.x
    assert pickle.loads(pickle.dumps(made)) == made == kind(1.0)  # noqa: S301


def test_classes_share_their_methods() -> None:
    methods = ("__eq__", "__hash__", "__repr__", "__setattr__", "__delattr__")
    assert [getattr(Point, name) for name in methods] == [getattr(Slotted, name) for name in methods]


def test_no_dataclass_of_a_daemon_compiles_more_than_its_init() -> None:
    source = """
import sys, edged.daemon
modules = [module for name, module in sys.modules.items() if name.startswith("edged.")]
values = [value for module in modules for value in vars(module).values()]
kinds = [one for one in values if isinstance(one, type) and "__dataclass_fields__" in vars(one)]
own = [kind for kind in kinds if kind.__module__.startswith("edged.")]
code = {name: getattr(method, "__code__", None) for kind in own for name, method in vars(kind).items()}
print(len(own) > 200, [name for name, one in code.items() if one and one.co_filename == "<string>"])
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "True ['__init__']\n"
