"""The last status of a daemon, in `status.json`: `edged status` reads it, also after its end.

It is a report and no state, and comes every few seconds for years: it is written in place and never synced,
so that the kernel writes one page at most as often as it cleans its cache. A power cut may leave an older
one, or none. The line carries a CRC-32, for a reader may meet it half-written.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from edged.domain.training.message import Message
from edged.errors import TrainingError
from edged.storage.files.atomic import disk_errors

M = TypeVar("M", bound=Message)

FILE = "status.json"

_ATTEMPTS = 5  # to read it while a daemon might write it


def write_status(state: Path, status: Message, told_at: float) -> None:
    """Write a status, told at this second of the monotonic clock. StorageError when the disk refuses it."""
    content = json.dumps({**status.to_json(), "told_at": told_at}).encode()
    line = b"%08x %s\n" % (crc32(content), content)  # what is longer of the one before stays behind it
    with disk_errors("writing the status", state / FILE):
        file = os.open(state / FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.pwrite(file, line, 0) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)


def read_status(state: Path, kind: type[M]) -> M:
    """Read the status that was written last; one that says nothing where none can be read."""
    for _ in range(_ATTEMPTS):
        try:
            crc, _, content = (state / FILE).read_bytes().partition(b"\n")[0].partition(b" ")
        except OSError:
            break
        if crc == b"%08x" % crc32(content):
            with suppress(TrainingError):  # of a version whose status is another
                return kind.from_json(json.loads(content))
            break
    return kind()
