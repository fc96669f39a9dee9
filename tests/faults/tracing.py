"""System calls of a running process that fail for a while: strace attaches, injects, and lets go."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SECONDS = 90.0


def require_strace() -> None:
    """Skip where strace is missing, but never in CI."""
    if shutil.which("strace") is None:
        missing = "strace is not installed: run the tests with `make test`, which installs it"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)


@contextmanager
def failing(pid: int, calls: str, error: str, *paths: Path, first: int = 1) -> Iterator[None]:
    """These calls on these files fail in a process and its children, as long as the block lasts.

    `first` lets those before it through, counted in each thread. Of a rename the old name counts.
    """
    inject = f"inject={calls}:error={error}:when={first}+"
    command = ["strace", "-f", "-o", os.devnull, "-e", f"trace={calls}", "-e", inject]
    for path in paths:
        command += ["-P", str(path)]
    process = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = iter(process.stderr.readline, "")
    first_line = next(said, "")
    if "not permitted" in first_line:
        process.wait(SECONDS)
        process.stderr.close()
        pytest.skip("processes may not be traced here")
    assert " attached" in first_line, first_line
    drain = threading.Thread(target=lambda: list(said), daemon=True)  # it tells of every new thread
    drain.start()
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)
        drain.join(SECONDS)
        process.stderr.close()
