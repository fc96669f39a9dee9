"""docs/design.md: its floors, packages and walks are those of the code."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
TURNS = {"sample": 0, "interval": 1, "label": 0, "command": 0, "round": 0, "bundle": 1}
"""How often each walk goes back to a file that it has left. Lower a number whenever the code allows it."""

FUNCTION = re.compile(r"`(?P<file>[\w/]+\.py): (?P<names>[\w., ]+)`(?: \(called by `(?P<caller>[\w.]+)`\))?")
PASSED = re.compile(r"passed: `([\w/]+\.py): ([\w.]+)` passes `([\w.]+)` to `(\w+)` as `(\w+)`")
SHARED = re.compile(r"items? 1(?: to (\d+))? of the sample's walk")
BORDER = re.compile(r"(?:queue|event|process): `([\w/]+\.py): ([\w.]+)`")


@dataclass(frozen=True)
class Function:
    """A function of a walk; `caller` is where the page names another one than the function before."""

    file: str
    name: str
    caller: str | None = None

    @property
    def short(self) -> str:
        """Its name without its class."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Passed:
    """The function before calls what `by` has passed to `to` as `as_`: the method `what`."""

    by: Function
    what: str
    to: str
    as_: str


@dataclass(frozen=True)
class Border:
    """A queue, an event or a process: the attribute `name` of an object made in `file`."""

    file: str
    name: str


Item = Function | Passed | Border


def section(title: str) -> str:
    """The text below a heading that begins with `title`, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}[^\n]*\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def class_in(file: str, name: str) -> Any:
    """The class `name` of a file; None without a name."""
    return getattr(module_of(file), name) if name else None


def items(title: str, upto: int | None = None) -> Iterator[Item]:
    """The numbered list below a heading, one function after the other; its first `upto` items."""
    for text in re.findall(r"^\d+\. (.*)$", section(title), re.MULTILINE)[:upto]:
        if found := SHARED.match(text):
            yield from items("A sample", int(found[1] or 1))
        elif found := PASSED.match(text):
            file, by, what, to, as_ = found.groups()
            yield Passed(Function(file, by), what, to, as_)
        elif found := BORDER.match(text):
            yield Border(*found.groups())
        else:
            found = FUNCTION.match(text)
            assert found, text
            owner, caller = "", found["caller"]
            for name in found["names"].split(", "):
                owner = name.rpartition(".")[0] or owner
                full = (
                    name
                    if "." in name or not hasattr(class_in(found["file"], owner), name)
                    else f"{owner}.{name}"
                )
                yield Function(found["file"], full, caller)
                caller = None


def walk(name: str) -> list[Item]:
    """One of the walks."""
    titles = {
        "sample": "A sample",
        "interval": "An interval",
        "label": "A label",
        "command": "The command",
        "round": "A round",
        "bundle": "A bundle",
    }
    return list(items(titles[name]))


@cache
def tree(file: str) -> ast.Module:
    """A file below `edged/`, parsed."""
    return ast.parse((ROOT / "edged" / file).read_text(encoding="utf-8"))


def module_of(file: str) -> Any:
    """The module of a file below `edged/`."""
    return importlib.import_module(".".join(("edged", *Path(file).with_suffix("").parts)))


def found(file: str, name: str) -> Any:
    """The function, class or method `name` of a file."""
    value = module_of(file)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def node_of(function: Function) -> ast.FunctionDef:
    """The definition of a function."""
    nodes: list[ast.stmt] = tree(function.file).body
    for part in function.name.split("."):
        definition = next(
            n for n in nodes if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == part
        )
        nodes = definition.body
    assert isinstance(definition, ast.FunctionDef)
    return definition


def names_in(function: Function) -> set[str]:
    """All names and attributes in a function."""
    return {getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node_of(function))}


# ---- what a call is made on, by annotations ------------------------------------------------------


def named(file: str, node: ast.expr | None) -> tuple[str, str] | None:
    """File and name of the class that an annotation or a constructor call names; None for any other."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.BinOp):
        node = node.left
    if not isinstance(node, ast.Name):
        return None
    value = getattr(module_of(file), node.id, None) or imported(file, node.id)
    return (source(value.__module__), node.id) if isinstance(value, type) else None


def imported(file: str, name: str) -> Any:
    """What a file imports of edged under a name, for type checkers alone too; None where it does not."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("edged."):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return getattr(importlib.import_module(node.module), alias.name)
    return None


def source(module: str) -> str:
    """The file of a module, below `edged/`."""
    path = ROOT / Path(*module.split("."))
    return str(
        (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).relative_to(ROOT / "edged")
    )


def annotation(function: ast.FunctionDef, name: str) -> ast.expr | None:
    """The annotation of a parameter."""
    arguments = (*function.args.args, *function.args.kwonlyargs)
    return next((argument.annotation for argument in arguments if argument.arg == name), None)


def assignments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Attributes that a function assigns to, and what."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
            yield from ((left.attr, right) for left, right in pairs if isinstance(left, ast.Attribute))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            yield node.target.attr, node.annotation


def attribute(file: str, owner: str, name: str) -> tuple[str, str] | None:
    """The class of an attribute, by the class's annotations, or by what `__init__` assigns to it."""
    cls = next(n for n in tree(file).body if isinstance(n, ast.ClassDef) and n.name == owner)
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return named(file, node.annotation)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for assigned, value in assignments(node):
                if assigned == name and isinstance(value, ast.Attribute):
                    return class_of(value, Function(file, f"{owner}.__init__"))
                if assigned == name:
                    given = annotation(node, value.id) if isinstance(value, ast.Name) else None
                    return named(file, given or value)
    parents = [parent for base in cls.bases if (parent := named(file, base))]
    return next((kind for parent in parents if (kind := attribute(*parent, name))), None)


def class_of(node: ast.expr, caller: Function) -> tuple[str, str] | None:
    """The class of an expression within `caller`, where annotations tell it."""
    if isinstance(node, ast.Name):
        if node.id == "self":
            return caller.file, caller.name.partition(".")[0]
        return named(caller.file, annotation(node_of(caller), node.id))
    if isinstance(node, ast.Attribute) and (owner := class_of(node.value, caller)):
        return attribute(*owner, node.attr)
    return None


def is_call_of(node: ast.AST, caller: Function, called: Function) -> bool:
    """Whether a node of `caller` calls `called`, or the method of this name of a typed partner."""
    if (
        not isinstance(node, ast.Call)
        or getattr(node.func, "attr", getattr(node.func, "id", "")) != called.short
    ):
        return False
    if isinstance(node.func, ast.Name):
        return named_function(caller, called)
    assert isinstance(node.func, ast.Attribute)
    on, kind = node.func.value, class_of(node.func.value, caller)
    if kind is None:  # a local variable; what is kept in an attribute must have a type
        return not (isinstance(on, ast.Attribute) and ast.unparse(on).startswith("self."))
    partner, owner = found(*kind), found(called.file, called.name.partition(".")[0])
    if not hasattr(partner, called.short):
        return False
    # A Protocol, the class itself, or a listener of the same kind: `Events` passes on to `OutboundRouter`.
    return bool(
        getattr(partner, "_is_protocol", False) or set(partner.__mro__) & set(owner.__mro__) - {object}
    )


def named_function(caller: Function, called: Function) -> bool:
    """Whether the plain name means the same function in both files."""
    return getattr(module_of(caller.file), called.short, None) is found(called.file, called.name)


# ---- floors and packages -------------------------------------------------------------------------


def floors() -> str:
    """The layers of the one contract in pyproject.toml, as they stand there."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (contract,) = re.findall(
        r'^type = "layers"\ncontainers = \["edged"\]\nexhaustive = true\n.*?^(layers = \[\n.*?^\]\n)',
        text,
        re.MULTILINE | re.DOTALL,
    )
    assert text.count('type = "layers"') == 1
    return str(contract)


def parts_of(folder: str) -> set[Path]:
    """The packages and modules in a folder."""
    children = (ROOT / folder).iterdir()
    found = {path for path in children if path.suffix == ".py" or (path / "__init__.py").exists()}
    return {path for path in found if not path.name.startswith("__")}


def test_floors_are_those_of_import_linter() -> None:
    assert re.findall(r"```toml\n(.*?)```", section("Floors"), re.DOTALL) == [floors()]


def test_every_part_of_the_device_has_a_floor() -> None:
    """The option `exhaustive` of import-linter looks at the packages of `edged` alone."""
    assert {path.stem for path in parts_of("edged/device")} == set(re.findall(r"device\.(\w+)", floors()))


def tree_entries() -> list[str]:
    """The packages and modules in the picture of the house, as paths below the checkout."""
    block = re.search(r"```\n(edged/\n.*?)```", PAGE, re.DOTALL)
    assert block
    above: list[str] = []
    entries = []
    for line in block[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r"\s{2,}", line.strip())[0].split(", ")
        entries += ["/".join([*above[:depth], name.rstrip("/")]) for name in names]
        above = [*above[:depth], names[0].rstrip("/")]
    return entries


def test_every_package_and_file_of_the_page_exists() -> None:
    assert [name for name in tree_entries() if not (ROOT / name).exists()] == []
    files = re.findall(r"`((?:edged/)?[\w/]+\.py)\b", PAGE)
    assert files
    missing = [name for name in files if not (ROOT / name).exists() and not (ROOT / "edged" / name).exists()]
    assert missing == []


@pytest.mark.parametrize("folder", ["edged", "edged/device"])
def test_the_picture_names_every_package(folder: str) -> None:
    names = {str(path.relative_to(ROOT)) for path in parts_of(folder)}
    assert names - set(tree_entries()) == set()


# ---- walks ---------------------------------------------------------------------------------------


def caller_of(function: Function, walked: list[Item]) -> Function | None:
    """The function that calls this one: the one before, or the one that the page names."""
    before = [item for item in walked if isinstance(item, Function)]
    if function.caller is not None:
        return next(item for item in reversed(before) if item.name == function.caller)
    return walked[-1] if walked and isinstance(walked[-1], Function) else None


@pytest.mark.parametrize("name", TURNS)
def test_each_function_of_a_walk_calls_the_next(name: str) -> None:
    walked: list[Item] = []
    for item in walk(name):
        if isinstance(item, Function):
            assert callable(found(item.file, item.name)), item
            caller = caller_of(item, walked)
            if caller is not None:
                calls = (is_call_of(node, caller, item) for node in ast.walk(node_of(caller)))
                assert any(calls), f"{caller.name} does not call {item.name}"
        walked.append(item)


@pytest.mark.parametrize("name", TURNS)
def test_each_function_that_is_passed_is_passed_where_the_page_says(name: str) -> None:
    every = walk(name)
    for before, item, after in zip(every, every[1:], every[2:], strict=False):
        if not isinstance(item, Passed):
            continue
        assert isinstance(before, Function)
        assert isinstance(after, Function)
        assert item.as_ in names_in(before), item
        assert item.what == after.name
        passed = after.short
        calls = [n for n in ast.walk(node_of(item.by)) if isinstance(n, ast.Call)]
        calls = [n for n in calls if getattr(n.func, "attr", getattr(n.func, "id", "")) == item.to]
        given = [part for n in calls for argument in n.args for part in ast.walk(argument)]
        assert passed in {getattr(part, "attr", "") for part in given}, item


@pytest.mark.parametrize("name", TURNS)
def test_both_sides_of_a_queue_use_it(name: str) -> None:
    every = walk(name)
    for at, item in enumerate(every):
        if not isinstance(item, Border):
            continue
        owner, _, attr = item.name.rpartition(".")
        assert attr in {n.attr for n in ast.walk(tree(item.file)) if isinstance(n, ast.Attribute)}, item
        assert isinstance(found(item.file, owner), type)
        sides = every[:at], every[at + 1 :]
        using = [any(isinstance(i, Function) and attr in names_in(i) for i in side) for side in sides]
        assert any(using) if "process" in attr else all(using), item


@pytest.mark.parametrize("command", re.findall(r"`python -m ([\w.]+)`", section("A label")))
def test_a_process_of_a_walk_can_be_started(command: str) -> None:
    assert callable(importlib.import_module(f"{command}.__main__").main)


def turns_back(walked: list[Item]) -> list[str]:
    """Where a walk comes back to a file that it has left.

    Taking from a queue, by a file of the queue's own folder, is no turn back. Nor is a return to a caller
    that the page names and that waits for its stages, one after the other: its reader has never left it.
    Entering the file of one of its stages again is a turn.
    """
    left: set[str] = set()
    now, turns = "", list[str]()
    queue: Border | None = None
    waiting: list[Item] = []  # the functions since the last queue or event, which alone can be waiting
    for at, item in enumerate(walked):
        if isinstance(item, Border):
            queue, left, now = item, (left | {now}) - {item.file}, ""
            waiting = waiting if "process" in item.name else []
        elif isinstance(item, Function):
            caller = caller_of(item, walked[:at]) if item.caller and not queue else None
            for file in (caller.file, item.file) if caller else (item.file,):
                if queue is not None and Path(queue.file).parent == Path(file).parent:
                    left -= {file}
                if file in left and file != now and not (caller in waiting and file == caller.file):
                    turns.append(f"{file} for {item.name}")
                left, now = left | {now} - {file}, file
            queue = None
            waiting.append(item)
    return turns


@pytest.mark.parametrize("name", TURNS)
def test_walks_go_forward(name: str) -> None:
    turns = turns_back(walk(name))
    assert len(turns) <= TURNS[name], turns
