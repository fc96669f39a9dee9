"""How the daemon ended last time: `boot.json` says what it was doing, so that a start knows why it is one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edged.errors import CorruptError
from edged.storage.files.atomic import publish_file
from edged.storage.files.checksummed_json import read_sealed, seal

FILE = "boot.json"

Ending = Literal["clean_stop", "watchdog", "damaged", "start_failed"]
Reason = Literal[Ending, "first_start", "crash", "power_cut", "unknown"]


@dataclass(frozen=True)
class Boot:
    """Why the daemon starts; `damaged` names the database that it gave up on, where it did."""

    reason: Reason
    damaged: str | None = None


def record_startup(state: Path, boot_id: str) -> Boot:
    """Record that the daemon runs; return why it had to be started.

    `boot_id` is what the kernel drew when the machine was started. Another one than last time, without an
    orderly end in between, is a power cut (or a reset, or a kernel that died).

    Raises StorageError when it cannot be noted.
    """
    boot = _last(state, boot_id)
    publish_file(state / FILE, seal({"boot_id": boot_id, "ended": None, "damaged": None}))
    return boot


def _last(state: Path, boot_id: str) -> Boot:
    file = state / FILE
    if not file.exists():
        used = (state / "state.db").exists()
        return Boot("unknown" if used else "first_start")
    try:
        kept = read_sealed(file)
    except CorruptError:
        return Boot("unknown")
    if kept.get("ended") is not None:
        return Boot(kept["ended"], kept.get("damaged"))
    return Boot("crash" if kept.get("boot_id") == boot_id else "power_cut")


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
    publish_file(state / FILE, seal({"boot_id": boot_id, "ended": how, "damaged": damaged}))
