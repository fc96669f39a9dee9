"""Work that one child process does: an order as JSON on its stdin, an answer on its stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Answer:
    """How the child ended: its exit code, what it wrote, and the last line of what it complained of."""

    code: int
    output: bytes
    problem: str


def ask(module: str, order: Mapping[str, Any], seconds: float) -> Answer | None:
    """Run `python -m module` with an order; None when it took longer than `seconds` and was ended."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
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
