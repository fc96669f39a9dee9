"""Files by which the kernel tells something: those that are not there, or cannot be read, tell nothing."""

from __future__ import annotations

from pathlib import Path


def text(file: Path) -> str:
    """What the file tells, without white space around it; empty when untold."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(file: Path) -> int | None:
    """The whole number in a file; None when untold."""
    try:
        return int(text(file))
    except ValueError:
        return None


def own_group(file: Path) -> str | None:
    """The control group in a file such as /proc/self/cgroup, below the root of all; None when untold."""
    lines = text(file).splitlines()
    return next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), None)
