"""The code blocks of the documentation: command lines that `edged` understands, configurations that load."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from edged.cli.main import _UsageProblem, app
from edged.config import loader
from edged.errors import ConfigError
from edged.fleet.config import load as load_fleet

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "deploy").rglob("*.md"))]
COMMANDS: Any = typer.main.get_command(app)
BASE = {"device": {"id": "press-7"}, "mqtt": {"host": "localhost"}}
STREAM = {"topic": "sensors/press-7/#", "features": ["temp"], "classes": ["ok", "worn"], "label": "state"}


def _blocks(*languages: str) -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            if found[1] in languages:
                line = text.count("\n", 0, found.start()) + 2
                yield pytest.param(found[2], id=f"{page.relative_to(ROOT)}:{line}")


def command_lines(block: str) -> Iterator[list[str]]:
    """The words behind `edged` of each command in a block of shell lines.

    >>> list(command_lines("$ sudo edged doctor a.yaml   # all; .venv/bin/edged"))
    [['doctor', 'a.yaml']]
    >>> list(command_lines("ls; .venv/bin/edged run a.yaml > log &"))
    [['run', 'a.yaml']]
    """
    waiting = ""
    for line in block.replace("\\\n", " ").splitlines():
        waiting += line + "\n"
        try:
            words = _words(waiting)
        except ValueError:  # a quotation goes on in the next line
            continue
        waiting = ""
        command: list[str] = []
        for word in [*words, ";"]:
            if word[:1] not in {*";|&<>()"}:
                command.append(word)
                continue
            if word[:1] == ">" and command and command[-1].isdigit():
                del command[-1]  # the number of what is redirected
            while command and (command[0] in {"$", "sudo"} or "=" in command[0]):
                del command[0]
            if command and Path(command[0]).name == "edged":
                yield command[1:]
            command = []


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>()")
    lexer.whitespace_split = True
    return list(lexer)


def understood(words: list[str]) -> None:
    """Let the program's own parser read `words`, without running anything; it raises where it cannot."""
    command, parent = COMMANDS, None
    name, rest = "edged", words
    while True:
        parent = command.make_context(name, list(rest), parent=parent)
        if not hasattr(command, "resolve_command"):
            return
        rest = [*getattr(parent, "_protected_args", []), *parent.args]
        if not rest:
            return
        name, command, rest = command.resolve_command(parent, rest)


@pytest.mark.parametrize("line", ["run a.yaml --wrong", "runs a.yaml", "ctl", "fleet wrong a.yaml"])
def test_a_command_line_that_is_wrong_is_found(line: str) -> None:
    with pytest.raises(_UsageProblem):
        understood(line.split())


def test_the_pages_have_command_lines() -> None:
    found = [words for block in _blocks("sh", "console") for words in command_lines(block.values[0])]
    assert len(found) > 40, len(found)


@pytest.mark.parametrize("block", list(_blocks("sh", "console")))
def test_command_lines_are_understood(block: str) -> None:
    for words in command_lines(block):
        if words != ["--help"]:
            understood(words)


@pytest.mark.parametrize("block", list(_blocks("yaml")))
def test_configurations_load(block: str, tmp_path: Path) -> None:
    content = yaml.safe_load(block)
    if isinstance(content, list) or content.keys() & {"triggers", "mqtt_statestream"}:
        return  # Home Assistant's
    if content.keys() & {"reduce", "round", "choose", "rollout"}:
        path = tmp_path / "fleet.yaml"
        path.write_text(yaml.safe_dump({"fleet": "plant", "model": "bundle", **content}), encoding="utf-8")
        refuses_no_more_than_missing_files(load_fleet, path)
    else:
        stream = content.get("stream", STREAM)
        path = tmp_path / "press.yaml"
        whole = {**BASE, "stream": STREAM, **content}
        if (
            "streams" not in content
            and "topic" not in stream
            and not any(isinstance(one, dict) for one in _features(stream))
        ):
            whole["stream"] = {"topic": "sensors/press-7/#", **stream}
        path.write_text(yaml.safe_dump(whole, allow_unicode=True), encoding="utf-8")
        refuses_no_more_than_missing_files(loader.load_all, path)


def refuses_no_more_than_missing_files(load: Callable[[Path], object], path: Path) -> None:
    """A page shows no keys and no bundles."""
    try:
        load(path)
    except ConfigError as problem:
        wrong = [line for line in problem.lines() if " does not exist (" not in line]
        assert not wrong, wrong


def _features(stream: dict[str, Any]) -> list[Any]:
    features = stream.get("features", [])
    return features if isinstance(features, list) else []


@pytest.mark.parametrize("block", list(_blocks("json")))
def test_json_is_well_formed(block: str) -> None:
    lines = block.strip().splitlines()
    for value in lines if all(line.startswith("{") for line in lines) else [block]:
        json.loads(value)


@pytest.mark.parametrize("block", list(_blocks("python")))
def test_python_is_well_formed(block: str) -> None:
    compile(block, "block", "exec")
