"""Processes of edged that need not read their modules: forked by one that has read them.

To start Python and read edged takes the better part of a second, and the tests do it a thousand times. A
forked process is one as any other, with output, environment and exit code of its own. What depends on how an
interpreter starts gets an interpreter: see `may_fork`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import edged
from tests.constants import install

ROOT = Path(__file__).parents[1]
OF_INTERPRETER = (
    *("PYTHON", "LD_", "OMP_", "OPENBLAS_", "MALLOC_", "ORT_"),
    *("COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR"),
)
"""Variables that are read when an interpreter or a library starts begin with one of these."""


# ---- in the tests ------------------------------------------------------------------------------


class Forked:
    """A process that was forked; what tests need of a `subprocess.Popen`."""

    def __init__(self, told: Path) -> None:
        self._told = os.open(told, os.O_RDONLY | os.O_NONBLOCK)
        self._text = b""

    def __del__(self) -> None:
        os.close(self._told)

    @property
    def pid(self) -> int:
        """Its id; waits until there is one."""
        self._read(1, None)
        return int(self._text.split()[0])

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return self.poll()

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return int(self._text.split()[1]) if self._read(2, 0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        if not self._read(2, timeout):
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
        return int(self._text.split()[1])

    def send_signal(self, number: int) -> None:
        """Send it a signal, while it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self, lines: int, seconds: float | None) -> bool:
        """Whether so many lines were told before the time was up."""
        until = None if seconds is None else time.monotonic() + seconds
        while self._text.count(b"\n") < lines:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._told], [], [], left)[0]:
                return False
            if not (read := os.read(self._told, 100)):
                raise EOFError("the process that waited for this one was ended")
            self._text += read
        return True


class ForkServer:
    """Starts processes of one kind: `commands`, or `daemon`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._environment = dict[str, str]()
        self._server: subprocess.Popen[str] | None = None

    def start(
        self,
        words: list[str],
        environment: Mapping[str, str],
        out: Path,
        err: Path,
        constants: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Forked:
        """A process with these words behind its name, its output appended to two files."""
        if self._server is None:
            self._environment = dict(os.environ)
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", self._kind], cwd=ROOT, stdin=subprocess.PIPE, text=True
            )
        assert self._server.stdin is not None
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder, "told")
            os.mkfifo(told)
            forked = Forked(told)
            request = {
                "words": words, "folder": str(Path.cwd()),
                "out": str(out), "err": str(err), "told": str(told), "constants": constants or {},
                "set": {k: v for k, v in environment.items() if self._environment.get(k) != v},
                "gone": [name for name in self._environment if name not in environment],
            }  # fmt: skip
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            assert forked.pid > 0
        return forked


_INTERPRETER = {name: value for name, value in os.environ.items() if name.startswith(OF_INTERPRETER)}


def may_fork(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment is the same when it is forked."""
    given = {name: value for name, value in environment.items() if name.startswith(OF_INTERPRETER)}
    return given == _INTERPRETER


# ---- in the process that forks -----------------------------------------------------------------


def read_all() -> None:
    """Every module of edged, once, but those of the daemon's process."""
    skipped = ("edged.daemon",)
    for module in pkgutil.walk_packages(edged.__path__, "edged."):
        if module.name not in skipped and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    _freeze()


def fork(words: list[str], folder: Path, out: Path, err: Path, main: Callable[[], int]) -> int:
    """`edged WORDS` in `folder`, its output appended to files; the process id of the child."""
    pid = os.fork()
    if pid == 0:
        _become(words, folder, out, err, main)
    return pid


def _become(words: list[str], folder: Path, out: Path, err: Path, main: Callable[[], int]) -> NoReturn:
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in ((1, out), (2, err)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        sys.argv = ["edged", *words]
        code = main()
        atexit._run_exitfuncs()  # noqa: SLF001
    except BaseException:  # noqa: BLE001  as the interpreter does
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _freeze() -> None:
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of its parent's


def _serve(main: Callable[[], int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _watch(json.loads(line), main)
            os._exit(0)


def _watch(request: dict[str, Any], main: Callable[[], int]) -> None:
    """Tell the id of the process, and how it ended."""
    for name in request["gone"]:
        os.environ.pop(name, None)
    os.environ.update(request["set"])
    folder, out, err = (Path(request[name]) for name in ("folder", "out", "err"))
    install(request["constants"])
    pid = fork(request["words"], folder, out, err, main)
    with Path(request["told"]).open("w", encoding="ascii") as told:
        told.write(f"{pid}\n")
        told.flush()
        told.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")


def _as_run() -> NoReturn:
    """Become the process that forks daemons, with the environment that `edged run` gives a daemon."""
    from edged.cli.main import run

    execv = os.execv
    os.execv = lambda program, _: execv(program, [program, "-m", "tests.forked", "edged.daemon"])
    run(Path("unused"))
    raise AssertionError("not reached")


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        _as_run()
    if sys.argv[1] == "commands":
        from edged.__main__ import main as entry

        read_all()
    else:
        from edged.daemon import main as entry

        _freeze()
    _serve(entry)
