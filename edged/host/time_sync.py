"""Whether this machine's clock is right: set by a time server since the start.

Boards without a battery-backed clock start at the time of their last shutdown, or in 1970.

Source: adjtimex(2) (`STA_UNSYNC`, which every time daemon clears), and systemd-timesyncd.service(8) for the
file that stands while it is synchronised. The file comes first: a service with `ProtectClock=` may not ask
the kernel.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

from edged.host.kernel_files import text

TIMESYNCD = Path("run/systemd/timesync/synchronized")
_STA_UNSYNC = 0x0040
_ERROR = 5  # TIME_ERROR
# `struct timex` is 208 bytes with 64-bit words and 128 with 32-bit ones; `status` follows five words of the
# machine: `modes` (0: change nothing), offset, frequency and two errors.
_BYTES = 256


def synchronised(root: Path = Path("/")) -> bool | None:
    """Whether the clock was set by a time server; None where nobody tells.

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


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(file: Path = _BOOT_ID) -> str:
    """What the kernel drew when it started, the same until the machine starts again; empty when untold.

    >>> boot_id(Path("/nowhere"))
    ''
    """
    return text(file)
