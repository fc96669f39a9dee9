"""What the last daemon left: `boot.json` says how it ended, `status.json` what it reported.

The status is a report and no state, and comes every few seconds for years: it is written in place and never
synced, so that the kernel writes one page at most as often as it cleans its cache. A power cut may leave an
older one, or none. The line carries a CRC-32, for a reader may meet it half-written.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar
from zlib import crc32

from edged.domain.training.message import Message
from edged.errors import CorruptError, TrainingError
from edged.storage.files.atomic import disk_errors, publish_file, write_at
from edged.storage.files.checksummed_json import read_sealed, seal

M = TypeVar("M", bound=Message)

BOOT, STATUS = "boot.json", "status.json"
_ATTEMPTS = 5  # to read the status while a daemon might write it

Ending = Literal["clean_stop", "watchdog", "damaged"]
Reason = Literal[Ending, "start_failed", "first_start", "crash", "power_cut", "unknown"]


@dataclass(frozen=True)
class Boot:
    """Why the daemon starts; `damaged` names the database that it gave up on, where it did.

    `failed`: the part that the start before was opening when it failed, and how many failed there in a row.
    `died`: whether that start ended without a word, before it served; not where the power was cut.
    """

    reason: Reason
    damaged: str | None = None
    failed: tuple[str, int] | None = None
    died: bool = False


def record_startup(state: Path, boot_id: str) -> Boot:
    """Record that the daemon runs; return why it had to be started.

    `boot_id` is what the kernel drew when the machine was started. Another one than last time, without an
    orderly end in between, is a power cut (or a reset, or a kernel that died).

    Raises StorageError when it cannot be noted.
    """
    boot = _last(state, boot_id)
    record(state, boot_id, failed=boot.failed, serving=False)
    return boot


def record_failure(state: Path, boot_id: str, failed: tuple[str, int] | None, *, ended: bool) -> None:
    """Record the part that a start is opening, or with `ended` at which it failed, and how often in a row.

    Raises StorageError when it cannot be noted.
    """
    record(state, boot_id, "start_failed" if ended else None, failed=failed, serving=False)


def record_failed_start(state: Path, boot_id: str) -> None:
    """Record that a start failed, unless its end is recorded. Raises StorageError when it cannot be noted."""
    if crashed(state):
        record(state, boot_id, "start_failed", serving=False)


def record(
    state: Path,
    boot_id: str,
    ended: Reason | None = None,
    damaged: str | None = None,
    failed: tuple[str, int] | None = None,
    *,
    serving: bool = True,
) -> None:
    """Record that the daemon serves, or as its very last step why it has `ended`.

    Raises StorageError when it cannot be noted: then the next start will speak of a crash.
    """
    values = {"boot_id": boot_id, "ended": ended, "damaged": damaged, "failed": failed, "serving": serving}
    publish_file(state / BOOT, seal(values))


def _last(state: Path, boot_id: str) -> Boot:
    file = state / BOOT
    if not file.exists():
        used = (state / "state.db").exists()
        return Boot("unknown" if used else "first_start")
    try:
        kept = read_sealed(file)
    except CorruptError:
        return Boot("unknown")
    part = kept.get("failed")
    failed = (part[0], part[1]) if part else None
    if kept.get("ended") is not None:
        return Boot(kept["ended"], kept.get("damaged"), failed)
    if kept.get("boot_id") != boot_id:
        return Boot("power_cut")
    return Boot("crash", None, failed, died=not kept.get("serving", True))


def crashed(state: Path) -> bool:
    """Return whether the last daemon of `state`, where none runs, ended without having recorded why."""
    try:
        kept = read_sealed(state / BOOT)
    except CorruptError:
        return False
    return kept.get("ended") is None


# ---- the last status -------------------------------------------------------------------------


def write_status(state: Path, status: Message, told_at: float) -> None:
    """Write a status, told at this second of the monotonic clock. StorageError when the disk refuses it."""
    content = json.dumps({**status.to_json(), "told_at": told_at}).encode()
    line = b"%08x %s\n" % (crc32(content), content)  # what is longer of the one before stays behind it
    with disk_errors("writing the status", state / STATUS):
        file = os.open(state / STATUS, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write_at(file, line, 0)
        finally:
            os.close(file)


def read_status(state: Path, kind: type[M]) -> M:
    """Read the status that was written last; one that says nothing where none can be read."""
    for _ in range(_ATTEMPTS):
        try:
            crc, _, content = (state / STATUS).read_bytes().partition(b"\n")[0].partition(b" ")
        except OSError:
            break
        if crc == b"%08x" % crc32(content):
            with suppress(TrainingError):  # of a version whose status is another
                return kind.from_json(json.loads(content))
            break
    return kind()
