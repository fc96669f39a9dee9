"""Facts from the kernel's files and calls; a file that is missing or cannot be read gives no value."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

TIMESYNCD = Path("run/systemd/timesync/synchronized")
_STA_UNSYNC = 0x0040
_ERROR = 5  # TIME_ERROR
# `struct timex` is 208 bytes with 64-bit words and 128 with 32-bit ones; `status` follows five words of the
# machine: `modes` (0: change nothing), offset, frequency and two errors.
_BYTES = 256
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def text(file: Path) -> str:
    """Return the text of a file without white space around it; empty when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(file: Path) -> int | None:
    """Return the whole number in a file; None when there is none."""
    try:
        return int(text(file))
    except ValueError:
        return None


def own_group(file: Path) -> str | None:
    """Return the control group in a file such as /proc/self/cgroup, below the root; None without one."""
    lines = text(file).splitlines()
    return next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), None)


def synchronised(root: Path = Path("/")) -> bool | None:
    """Return whether a time server has set the clock since the start; None where it is unknown.

    Boards without a battery-backed clock start at the time of their last shutdown, or in 1970. The file of
    systemd-timesyncd.service(8), which stands while it is synchronised, comes first: a service with
    `ProtectClock=` may not ask the kernel (adjtimex(2): every time daemon clears `STA_UNSYNC`).

    For another `root` of the file system than this machine's the kernel is not asked.

    >>> synchronised(Path("/nowhere")) is None
    True
    """
    if (root / TIMESYNCD).exists():
        return True
    return _kernel() if root == Path("/") else None


def _kernel() -> bool | None:
    buffer = ctypes.create_string_buffer(_BYTES)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except AttributeError:
        return None  # a C library without it
    if state < 0:
        return None
    (status,) = struct.unpack_from("i", buffer.raw, 5 * struct.calcsize("l"))
    return state != _ERROR and not status & _STA_UNSYNC


def boot_id(file: Path = _BOOT_ID) -> str:
    """Return the identifier of this start of the machine; empty where it is unknown.

    >>> boot_id(Path("/nowhere"))
    ''
    """
    return text(file)
