"""The identity of this start of the machine."""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(file: Path = _BOOT_ID) -> str:
    """What the kernel drew when it started, the same until the machine starts again; empty when untold.

    >>> boot_id(Path("/nowhere"))
    ''
    """
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
