"""Child processes: orders as JSON on their stdin, answers on their stdout, and their end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

log = get_logger("edged.child")

GONE_SECONDS = 10.0  # how long a process that was killed may take to be gone


@dataclass(frozen=True)
class Answer:
    """How the child ended: its exit code, what it wrote, and the last line of what it complained of."""

    code: int
    output: bytes
    problem: str


def command(module: str) -> list[str]:
    """How `python -m module` is started, so that it has to go before the daemon when memory is short."""
    return [sys.executable, "-m", "edged.host.expendable", module]


def ask(module: str, order: Mapping[str, Any], seconds: float) -> Answer | None:
    """Run `python -m module` with an order; None when it took longer than `seconds` and was ended."""
    try:
        done = subprocess.run(
            command(module),
            input=json.dumps(order).encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    problem = lines[-1] if lines else f"the process ended with exit code {done.returncode}"
    return Answer(done.returncode, done.stdout, problem)


def message_in(line: bytes) -> dict[str, Any] | None:
    """The message in a line of output; None when a library has printed something of its own."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if isinstance(message, dict) and "type" in message:
        return message
    log.warning("child_printed", text=line[:200].decode(errors="replace"))
    return None


def end(process: subprocess.Popen[bytes], seconds: float, *, kindly: bool = True) -> None:
    """End a process: ask it to (not `kindly` when it is leaving by itself), wait, then kill it and wait."""
    if kindly:
        process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    try:
        process.wait(GONE_SECONDS)
    except subprocess.TimeoutExpired:
        # It waits for a disk inside the kernel, and dies as soon as that answers.
        log.error("child_unkillable", pid=process.pid)
