"""How the daemon ended last time: `boot.json` says what it was doing, so that a start knows why it is one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edged.errors import CorruptError
from edged.storage.files.atomic import publish_file
from edged.storage.files.checksummed_json import read_sealed, seal

FILE = "boot.json"

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
    _publish(state, boot_id, failed=boot.failed, serving=False)
    return boot


def record_serving(state: Path, boot_id: str) -> None:
    """Record that the start succeeded. Raises StorageError when it cannot be noted."""
    _publish(state, boot_id)


def record_failure(state: Path, boot_id: str, failed: tuple[str, int] | None, *, ended: bool) -> None:
    """Record the part that a start is opening, or with `ended` at which it failed, and how often in a row.

    Raises StorageError when it cannot be noted.
    """
    _publish(state, boot_id, "start_failed" if ended else None, failed=failed, serving=False)


def record_failed_start(state: Path, boot_id: str) -> None:
    """Record that a start failed, unless its end is recorded. Raises StorageError when it cannot be noted."""
    if crashed(state):
        _publish(state, boot_id, "start_failed", serving=False)


def _publish(
    state: Path,
    boot_id: str,
    ended: str | None = None,
    damaged: str | None = None,
    failed: tuple[str, int] | None = None,
    *,
    serving: bool = True,
) -> None:
    values = {"boot_id": boot_id, "ended": ended, "damaged": damaged, "failed": failed, "serving": serving}
    publish_file(state / FILE, seal(values))


def _last(state: Path, boot_id: str) -> Boot:
    file = state / FILE
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
        kept = read_sealed(state / FILE)
    except CorruptError:
        return False
    return kept.get("ended") is None


def record_shutdown(state: Path, boot_id: str, how: Ending, damaged: str | None = None) -> None:
    """Record why the daemon stops, as its very last step.

    Raises StorageError when it cannot be noted: the next start will speak of a crash.
    """
    _publish(state, boot_id, how, damaged)
