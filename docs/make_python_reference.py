# ruff: noqa: INP001  a program, not a package
"""Writes docs/python-api.md from the docstrings of `edged.api`; `--check` only says whether it is up to date.

Run from anywhere: `python docs/make_python_reference.py`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated import write_or_check

from edged import api
from edged.domain.judging.verdict import Verdict
from edged.domain.training.training_run import ModelData, RunCause, RunOptions
from edged.storage.journal.journal import RunRecord
from edged.storage.models.records import ModelFigures, ModelRecord
from edged.storage.samples.sample_table import SampleTable
from edged.workbench.evaluation.figures import EvaluationComparison, EvaluationReport, RankedConfiguration

PAGE = Path(__file__).with_name("python-api.md")
FUNCTIONS = (api.evaluate, api.compare, api.feed, api.new_model, api.build, api.open_state)
RESULTS = (api.State, api.Figures, SampleTable, api.FeedResult, api.BuiltBundle)
RECORDS = (
    EvaluationReport, EvaluationComparison, RankedConfiguration,
    ModelRecord, ModelData, ModelFigures, Verdict, RunRecord, RunCause, RunOptions,
)  # fmt: skip
_SECTION = re.compile(r"^(\w+)\n-+\n", re.MULTILINE)
INTRODUCTION = """\
# Python API

{doc}

The notebook [api.ipynb](notebooks/api.ipynb) uses all of it.

This page is generated from the code by `docs/make_python_reference.py`.
"""


def described(thing: Any) -> Iterator[str]:
    """The docstring of a function or class as Markdown: its sections are lists."""
    text = inspect.getdoc(thing) or ""
    plain, *sections = _SECTION.split(text)
    yield plain.strip() + "\n"
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        yield f"**{title}**\n"
        for entry in re.split(r"\n(?=\S)", body.strip("\n")):
            names, _, meaning = entry.partition("\n")
            told = ", ".join(f"`{name}`" for name in names.split(", "))
            yield f"- {told}: {' '.join(inspect.cleandoc(meaning).split())}"
        yield ""


def signature(function: Any, *, method: bool = False) -> str:
    """How a function is called, a parameter a line where one line is too long."""
    told = inspect.signature(function)
    parameters = list(told.parameters.values())[method:]
    shown = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(told.replace(parameters=parameters))).replace("'", '"')
    line = f"def {function.__name__}{shown}: ..."
    if len(line) <= 88:
        return line
    inner, arrow, returned = line.rpartition(") -> ")
    head, _, rest = inner.partition("(")
    parts = re.split(r", (?=[*\w]+(?::|,|$))", rest)
    return "\n".join([f"{head}(", *(f"    {part}," for part in parts), f"{arrow}{returned}"])


def function_part(function: Any) -> str:
    """A function: its heading, how it is called, what it does."""
    call = f"```python\n{signature(function)}\n```\n"
    return "\n".join([f"### {function.__name__}\n", call, *described(function)])


def class_part(kind: Any) -> str:
    """A class: what it is, and its public methods and properties."""
    parts = [f"### {kind.__name__}\n", *described(kind)]
    for name, member in vars(kind).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        call = name if isinstance(member, property) else signature(member, method=True)
        parts += [f"```python\n{call}\n```\n", *described(member)]
    return "\n".join(parts)


def record_part(kind: Any) -> str:
    """A record: what it is, and its fields with their types."""
    fields = [f"- `{name}`: {annotation}" for name, annotation in inspect.get_annotations(kind).items()]
    return "\n".join([f"### {kind.__name__}\n", *described(kind), *fields, ""])


def page() -> str:
    """The whole page."""
    parts = ["## Functions\n", *map(function_part, FUNCTIONS), "## Results\n", *map(class_part, RESULTS)]
    told = "\n".join([*parts, *map(record_part, RECORDS)])
    return (
        INTRODUCTION.format(doc=inspect.getdoc(api)) + "\n" + re.sub(r"\n{3,}", "\n\n", told).rstrip() + "\n"
    )


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), __file__))
