"""The largest memory that this process has had."""

from __future__ import annotations

from pathlib import Path


def peak_memory() -> int | None:
    """Bytes in memory at most so far (`VmHWM` of proc(5)); None where the system does not tell.

    `getrusage` is no substitute: what it says of a child includes the parent's memory before the exec.
    """
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith("VmHWM:")), None)
    return None if line is None else int(line.split()[1]) * 1024
