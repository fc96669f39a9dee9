# ruff: noqa: INP001  a program, not a package
"""Writes the tables of docs/operators.md from the code; `--check` only says whether they are up to date.

Run from anywhere: `python docs/make_operator_table.py`. Operators, formulas and refusals come from the
rules' docstrings and the reasons they refuse with, models from the zoo in `tests/zoo.py`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import onnx
from generated import write_or_check
from onnx import TensorProto

from edged.bundles.autodiff import rules
from edged.bundles.autodiff.tape import BACKWARD, ZERO
from edged.bundles.graph.templates import OPSET
from edged.bundles.source.opset import EXPANDED

PAGE = Path(__file__).with_name("operators.md")
FAMILIES = (f"{rules.__name__}.",)
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
# The zoo is no part of the installed package.
sys.path.insert(0, str(PAGE.parents[1]))


# ---- what a rule says of itself ----------------------------------------------------------------


def formula(rule: Callable[..., Any]) -> str:
    """The first sentence of a docstring, on one line."""
    first = (inspect.getdoc(rule) or "").split("\n\n")[0]
    return re.split(r"(?<=\.)\s(?![\d(])", " ".join(first.split()))[0].rstrip(".")


def refusals(rule: Callable[..., Any]) -> list[str]:
    """The reasons with which a rule, or anything it calls in its family, refuses a node."""
    found = [reason for part in called(rule, set()) for reason in reasons(part)]
    return list(dict.fromkeys(found))


def called(part: Any, seen: set[Any]) -> Iterator[Any]:
    """The function itself and every function or class of the same floor that it names."""
    if part in seen:
        return
    seen.add(part)
    yield part
    for name in ast.walk(tree(part)):
        target = scope(part).get(name.id) if isinstance(name, ast.Name) else None
        if isinstance(target, (FunctionType, type)) and is_a_rules(target):
            yield from called(target, seen)


def is_a_rules(target: Any) -> bool:
    """Whether it is part of a family of rules. What any rule may meet on the tape is not told of each."""
    module = str(target.__module__)
    return module.startswith(FAMILIES)


def scope(part: Any) -> dict[str, Any]:
    """The names of the module that `part` is in."""
    return vars(sys.modules[part.__module__])


def tree(part: Any) -> ast.AST:
    """The source of `part`, parsed."""
    return ast.parse(textwrap.dedent(inspect.getsource(part)))


def reasons(part: Any) -> Iterator[str]:
    """The reasons of all calls of `untrainable(node, reason)` in `part`."""
    for call in ast.walk(tree(part)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "untrainable":
            yield from words(call.args[1], part)


def words(reason: ast.expr, part: Any) -> Iterator[str]:
    """A reason as it is read; what is filled in at run time is left open."""
    if isinstance(reason, ast.Constant):
        yield str(reason.value)
    elif isinstance(reason, ast.JoinedStr):
        yield "".join(str(item.value) if isinstance(item, ast.Constant) else "…" for item in reason.values)
    elif isinstance(reason, ast.IfExp):
        yield from words(reason.body, part)
        yield from words(reason.orelse, part)
    elif isinstance(reason, ast.Name) and isinstance(scope(part).get(reason.id), str):
        yield scope(part)[reason.id]


# ---- tables ------------------------------------------------------------------------------------


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def operators() -> str:
    """Operators, file, formula, what is refused; one row where operators share a rule."""
    ordered = sorted(BACKWARD.items(), key=lambda item: (item[1].__module__, str(item[1].__doc__)))
    rows = []
    for words, pairs in groupby(ordered, key=lambda item: formula(item[1])):
        same = list(pairs)
        rule = same[0][1]
        names = ", ".join(f"`{name}`" for name, _ in same)
        file = rule.__module__.removeprefix(f"{rules.__name__}.")
        rows.append([names, f"`{file}.py`", words, "; ".join(refusals(rule)) or "–"])
    return table(["operator", "file", "gradient", "refused"], rows)


def expanded() -> str:
    """Operators that are differentiated through ONNX's own definition."""
    return listed(EXPANDED)


def refused() -> str:
    """Operators of our opset that no gradient comes through."""
    schemas = onnx.defs.get_all_schemas_with_history()
    there = {each.name for each in schemas if each.domain == "" and onnx.defs.has(each.name, OPSET, "")}
    return listed(there.difference(BACKWARD, ZERO, EXPANDED))


def listed(names: Iterable[str]) -> str:
    """Names in one line, in alphabetical order."""
    return ", ".join(f"`{name}`" for name in sorted(names))


def models() -> str:
    """Every model of the zoo, its size, and which engines train it."""
    from tests.zoo import ZOO

    rows = [
        [
            f"`{entry.name}`",
            entry.what,
            f"{parameters(entry.make(False)):,}",
            f"`{entry.loss}`",
            *("yes" if engine in entry.engines else "no" for engine in ("native", "portable")),
        ]
        for entry in ZOO.values()
    ]
    return table(["model", "what it is", "parameters", "loss", "native", "portable"], rows)


def parameters(model: Any) -> int:
    """Number of floating-point values that the model holds."""
    return sum(
        int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
        if tensor.data_type in FLOATS and len(tensor.dims) > 0
    )


# ---- the page ----------------------------------------------------------------------------------

TABLES = {"models": models, "operators": operators, "expanded": expanded, "refused": refused}


def page(text: str) -> str:
    """The page with its tables made anew."""
    for name, made in TABLES.items():
        begin, end = f"<!-- {name}: by docs/make_operator_table.py -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{made()}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(PAGE.read_text(encoding="utf-8")), __file__))
