"""How much memory a process holds, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path


def resident_mb(pid: int) -> float:
    """VmRSS in MB (10^6 bytes); SystemExit when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit("the daemon is gone")
