"""Every command of edged with its parameters that are paths, read from the commands themselves.

As a program, `python -m tests.cli.commands_walk FOLDER PATHS STEP`: gives each of these parameters wrong
paths, in a child process each, and prints what came of it as JSON: every kind of wrong path with 1 for a
step, every third with 3, for one parameter other ones than for the next. With `SIGINT` for a step it
interrupts each command instead. Root without capabilities is an ordinary user here: `ordinary` has the words
in front of the command that drop them.
"""

from __future__ import annotations

import inspect
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.models import ArgumentInfo, OptionInfo

from edged.__main__ import main
from edged.cli.main import app
from tests.commands import Answer
from tests.forked import fork, read_all

if TYPE_CHECKING:
    import typer

SECONDS = 60
PATIENCE = 2.0  # seconds that a command may take to end after Ctrl-C
LOOK = 0.001  # seconds between two looks whether a FIFO is read
VALUES = {"words": ["rig", "ping"], "kind": ["mlp"], "loss": ["cross_entropy"]}
"""Of required parameters that are no paths; others get the text `x`."""

ALSO = {
    "artifacts build": ["--engine", "portable"],
    "model new": ["--inputs", "4", "--outputs", "2"],
    "models": ["export", "1"],
    "ctl": ["--broker", "mqtts://localhost:1", "--timeout", "1"],
    "wipe": ["--samples", "--yes"],
    "artifacts params": ["--get", "layer1.bias"],
    "demo": ["--seconds", "10"],
    "init": ["--yes", "--broker", "localhost:1"],
    "fleet ui": ["--broker-ws", "wss://localhost:1", "--listen", "127.0.0.1:0"],
}


def ordinary() -> list[str]:
    """Words in front of a command, so that permissions of files hold for root as well."""
    if os.geteuid() != 0:
        return []
    return [shutil.which("setpriv") or "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a command: an option is given by `flag`, an argument by its place."""

    name: str
    flag: str | None
    path: bool
    required: bool


@dataclass(frozen=True)
class Command:
    """One command, such as `artifacts build`."""

    name: str
    parameters: tuple[Parameter, ...]

    def line(self, given: dict[str, str]) -> list[str]:
        """The words that call it: `given` by name of the parameter, required ones always."""
        words = self.name.split()
        for parameter in self.parameters:
            if parameter.name in given:
                values = [given[parameter.name]]
            elif parameter.required:
                values = VALUES.get(parameter.name, ["x"])
            else:
                continue
            words += [] if parameter.flag is None else [parameter.flag]
            words += values
        return words + ALSO.get(self.name, [])


def commands(group: typer.Typer = app, above: str = "") -> Iterator[Command]:
    """All commands of the command line."""
    for info in group.registered_commands:
        callback = typing.cast("Callable[..., Any]", info.callback)
        name = info.name or callback.__name__.replace("_", "-")
        yield Command(f"{above}{name}", tuple(_parameters(callback)))
    for sub in group.registered_groups:
        if sub.typer_instance is not None:
            yield from commands(sub.typer_instance, f"{above}{sub.name} ")


def _parameters(callback: Callable[..., Any]) -> Iterator[Parameter]:
    hints = typing.get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, *extras = (
            typing.get_args(hints[name]) if hasattr(hints[name], "__metadata__") else (hints[name],)
        )
        told = next((e for e in extras if isinstance(e, ArgumentInfo | OptionInfo)), None)
        flag = None
        if not isinstance(told, ArgumentInfo):
            declared = [] if told is None else [told.default, *(told.param_decls or ())]
            declared = [text for text in declared if isinstance(text, str) and text.startswith("-")]
            flag = declared[0] if declared else "--" + name.replace("_", "-")
        yield Parameter(name, flag, _is_path(kind), parameter.default is inspect.Parameter.empty)


def _is_path(kind: Any) -> bool:
    return kind is Path or any(map(_is_path, typing.get_args(kind)))


# ---- wrong paths ---------------------------------------------------------------------------


def wrong_paths(folder: Path) -> dict[str, str]:
    """A path of each kind that a person gets wrong, made in the empty directory `folder`."""
    text, binary, full, locked, dark, secret, empty, loop = (
        folder / name for name in ("text.txt", "binary", "full", "locked", "dark", "secret", "empty", "loop")
    )
    text.write_text("hello\n", encoding="utf-8")
    binary.write_bytes(bytes(range(256)))
    secret.write_bytes(b"secret")
    secret.chmod(0)
    empty.touch()
    loop.symlink_to(loop)
    for directory in (full, locked, dark):
        directory.mkdir()
        (directory / "keep").write_text("kept\n", encoding="utf-8")
    locked.chmod(0o555)
    dark.chmod(0)
    return {
        "missing": str(folder / "none" / "deeper" / "file"),
        "a text": str(text),
        "a binary file": str(binary),
        "an empty file": str(empty),
        "a directory": str(full),
        "below a file": str(text / "file"),
        "not readable": str(secret),
        "in a directory that cannot be written": str(locked / "new"),
        "in a directory that cannot be read": str(dark / "new"),
        "a directory that cannot be read": str(dark),
        "too long": str(folder / ("x" * 300)),
        "a loop": str(loop),
        "nothing": "",
    }


def content(folder: Path) -> dict[str, bytes]:
    """Every file in what `wrong_paths` made, with its bytes; afterwards all of it can be read and removed."""
    for name in ("locked", "dark", "secret"):
        (folder / name).chmod(0o755)
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# ---- one command in a child ----------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a command ended; `changed` names files that it replaced or removed."""

    words: list[str]
    case: str
    answer: Answer
    changed: list[str]


def run(words: list[str], folder: Path, *, reader: Path | None = None) -> Answer:
    """How `edged WORDS` in `folder` ended; interrupted as soon as it reads the FIFO `reader`."""
    out, err = folder / ".stdout", folder / ".stderr"
    for file in (out, err):
        file.unlink(missing_ok=True)
    pid = fork(words, folder, out, err, limited)
    if reader is not None:
        _interrupt(pid, reader)
    _, status = os.waitpid(pid, 0)
    told = [file.read_text(encoding="utf-8", errors="replace") for file in (out, err)]
    return Answer(os.waitstatus_to_exitcode(status), *told)


def limited() -> int:
    """The command line, ended when it takes too long."""
    signal.alarm(SECONDS)
    return main()


def _interrupt(pid: int, reader: Path) -> None:
    """SIGINT once the child waits for what the FIFO brings; nothing when it ends without."""
    ended = os.pidfd_open(pid)
    while not select.select([ended], [], [], LOOK)[0]:
        try:
            writer = os.open(reader, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            continue
        os.kill(pid, signal.SIGINT)
        select.select([ended], [], [], PATIENCE)
        os.close(writer)
        break
    os.close(ended)


def interrupted(good: dict[str, str], place: Path) -> Iterator[Outcome]:
    """Interrupt each command that reads a path, while it reads it."""
    for command in commands():
        paths = [p for p in command.parameters if p.path]
        for parameter in paths:
            work, pipe = place / "work", place / "pipe.csv"
            shutil.rmtree(place, ignore_errors=True)
            work.mkdir(parents=True)
            os.mkfifo(pipe)
            words = command.line(right_paths(command, good) | {parameter.name: str(pipe)})
            title = f"{command.name} {parameter.flag or parameter.name}"
            yield Outcome(words, title, run(words, work, reader=pipe), [])


def right_paths(command: Command, good: dict[str, str]) -> dict[str, str]:
    """Right paths for the parameters that a command must have."""
    return {
        p.name: good.get(f"{command.name}:{p.name}", good.get(p.name, "x"))
        for p in command.parameters
        if p.path and p.required
    }


def walk(good: dict[str, str], place: Path, step: int = 1) -> Iterator[Outcome]:
    """Give each path wrong values, each `step`-th one of those there are.

    `good` are right ones, by `COMMAND:PARAMETER` or `PARAMETER`.
    """
    turn = 0
    for command in commands():
        paths = [p for p in command.parameters if p.path]
        right = right_paths(command, good)
        for parameter in paths:
            title = f"{command.name} {parameter.flag or parameter.name}"
            turn += 1
            for case in _CASES[turn % step :: step]:
                work, wrong = place / "work", place / "wrong"
                for folder in (work, wrong):
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.mkdir()
                words = command.line(right | {parameter.name: wrong_paths(wrong)[case]})
                answer = run(words, work)
                left = content(wrong)
                changed = [name for name, data in _KEPT.items() if left.get(name) != data]
                yield Outcome(words, f"{title}: {case}", answer, changed)


def _sample() -> tuple[list[str], dict[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        return list(wrong_paths(Path(folder))), content(Path(folder))


_CASES, _KEPT = _sample()


if __name__ == "__main__":
    read_all()
    place, good, given = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    for outcome in interrupted(good, place / "i") if given == "SIGINT" else walk(good, place, int(given)):
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
        sys.stdout.flush()
