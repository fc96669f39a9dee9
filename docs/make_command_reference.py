# ruff: noqa: INP001  a program, not a package
"""Writes docs/commands.md from the commands themselves; `--check` only says whether it is up to date.

`--man FILE` writes the manual page edged(1) instead.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer.models

from edged import __version__
from edged.cli.main import app

PAGE = Path(__file__).with_name("commands.md")
VALUES = {Path: "PATH", int: "N", float: "NUMBER", str: "TEXT"}
ABOUT = "keeps a small ONNX model accurate on the device where it runs"

INTRODUCTION = """\
# Commands

`edged COMMAND --help` shows the same in the terminal. `edged completion bash|zsh|fish` prints a script that
completes commands and options.

* `--json` prints one JSON object on stdout. Everything else, errors too, goes to stderr.
* No command overwrites a file or a directory without `--force`.
* `CONFIG` is a configuration file: [config.md](config.md).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | wrong usage or configuration |
| 3 | rejected, such as by the gate or a signature check |
| 4 | not available here: a missing package, engine or broker |
| 130 | interrupted |

This page is generated from the code by `docs/make_command_reference.py`.
"""
EXIT_STATUS = (
    "0 done, 1 failed, 2 wrong usage or configuration, 3 rejected, 4 not available here, 130 interrupted"
)


@dataclass(frozen=True)
class Parameter:
    """An argument or an option: how it is given, what it means, whether it is required."""

    form: str
    help: str
    required: bool
    option: bool


@dataclass(frozen=True)
class Command:
    """A command with its full name."""

    name: str
    help: str
    parameters: list[Parameter]

    @property
    def usage(self) -> str:
        """The command line in one line."""
        options = ["[OPTIONS]"] if any(one.option for one in self.parameters) else []
        arguments = [
            one.form if one.required else f"[{one.form}]" for one in self.parameters if not one.option
        ]
        return " ".join([self.name, *options, *arguments])


def commands(group: typer.Typer = app, name: str = "edged") -> Iterator[Command]:
    """Each command, in the order of `--help`.

    >>> next(commands()).usage
    'edged run [OPTIONS] CONFIG'
    """
    for one in group.registered_commands:
        function: Any = one.callback
        if not one.hidden:
            full = f"{name} {one.name or function.__name__}"
            yield Command(full, paragraphs(inspect.getdoc(function) or ""), list(parameters(function)))
    for inner in group.registered_groups:
        yield from commands(inner.typer_instance or app, f"{name} {inner.name}")


def parameters(function: Any) -> Iterator[Parameter]:
    """What a command takes, of its annotations."""
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = get_args(hints[name])[:2]
        if info.hidden:
            continue
        required = parameter.default is inspect.Parameter.empty
        if isinstance(info, typer.models.ArgumentInfo):
            word = (info.metavar or "|".join(choices(kind)) or name.upper()).strip("[]")
            yield Parameter(word, info.help or "", required, option=False)
        else:
            meaning = option_help(info, parameter.default)
            yield Parameter(option_form(name, kind, info), meaning, required, option=True)


def option_form(name: str, kind: Any, info: Any) -> str:
    """An option as it is given, with what stands behind it."""
    # The first word stands where the default does in the older way to declare an option.
    words = [word for word in (info.default, *(info.param_decls or ())) if str(word).startswith("-")]
    plain = name.replace("_", "-")
    if basic(kind) is bool:
        return ", ".join(words) or f"--{plain}/--no-{plain}"
    value = info.metavar or "|".join(choices(kind)) or VALUES[basic(kind)]
    return f"{', '.join(words) or f'--{plain}'} {value}"


def option_help(info: Any, default: Any) -> str:
    """What an option means, and its default."""
    empty = default is inspect.Parameter.empty
    given = not empty and not isinstance(default, bool) and default not in (None, "")
    notes = (info.help or "", f"default {default}" if given else "", "required" if empty else "")
    return "; ".join(note for note in notes if note)


def choices(kind: Any) -> list[str]:
    """The words of a Literal, optional or not.

    >>> choices(Literal["a", "b"] | None), choices(int)
    (['a', 'b'], [])
    """
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for part in get_args(kind) for word in choices(part)]


def basic(kind: Any) -> type:
    """The type of a value, of an optional one or of a list as well.

    >>> basic(list[Path] | None)
    <class 'pathlib.Path'>
    """
    inner = [part for part in get_args(kind) if part is not NoneType]
    return basic(inner[0]) if inner else kind


def page() -> str:
    """The whole of docs/commands.md."""
    parts = [INTRODUCTION]
    for command in commands():
        parts.append(f"\n## {command.name}\n\n```\n{command.usage}\n```\n\n{command.help}\n")
        rows = [one for one in command.parameters if one.help and one.form != "--json"]
        if rows:
            parts.append("\n| | |\n|---|---|\n")
            parts += [f"| {form(row.form)} | {escaped(row.help)} |\n" for row in rows]
    return "".join(parts)


def manual() -> str:
    """The manual page, as roff."""
    lines = [f'.TH EDGED 1 "" "edged {__version__}" "User Commands"', ".SH NAME", f"edged \\- {ABOUT}"]
    lines += [".SH SYNOPSIS", ".B edged", "COMMAND [OPTIONS] ...", ".SH COMMANDS"]
    for command in commands():
        lines += [f".SS {roff(command.usage)}", roff(command.help).replace("\n\n", "\n.PP\n")]
        for one in command.parameters:
            if one.help:
                lines += [".TP", f".B {roff(one.form)}", roff(one.help)]
    return "\n".join([*lines, ".SH EXIT STATUS", EXIT_STATUS]) + "\n"


def paragraphs(text: str) -> str:
    """A docstring without line breaks inside paragraphs."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text))


def form(text: str) -> str:
    """What stands for an argument or option, in code; a table's code cannot hold a bar.

    >>> form("DIR|FILE")
    '`DIR` or `FILE`'
    """
    return "`" + text.replace("|", "` or `") + "`"


def escaped(text: str) -> str:
    """For a cell of a table."""
    return text.replace("|", "\\|")


def roff(text: str) -> str:
    r"""Text as roff takes it literally.

    >>> print(roff("--json of .npz"))
    \-\-json of .npz
    """
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def main() -> int:
    """Write the page or the manual, or compare the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--man", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if asked.check:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page() else 1
    if asked.man is None:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        asked.man.write_text(manual(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
