"""Which device had which model of the fleet when, and who let it: a file of JSON lines that only grows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from edged.fleet.coordinator.control import Order
from edged.fleet.rules.rounds import FleetState
from edged.logs import get_logger
from edged.storage.files.atomic import DISK, Disk, disk_errors, fsync_directory

if TYPE_CHECKING:
    from edged.domain.federated.messages import DeviceState

HISTORY = "history.jsonl"

log = get_logger("edged.fleet")


@dataclass(frozen=True)
class HistoryEntry:
    """A device has taken a model at `at` (seconds since the epoch), or a user has given an order.

    `device` and `model` are empty for an order; `what` says which it was. `by` is the user, or the one who
    approved the rollout; empty without an approval.
    """

    at: float
    what: str
    round: int
    by: str
    device: str = ""
    model: str = ""


class ModelHistory:
    """Adds to the history in `folder`, durably with `commit`; raises StorageError when the disk refuses."""

    def __init__(self, folder: Path, disk: Disk = DISK) -> None:
        self._path = folder / HISTORY
        self._had = {entry.device: entry.model for entry in read_history(folder) if entry.device}
        with disk_errors("opening", self._path):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":  # a power cut has torn the last line
                os.write(self._file, b"\n")
        fsync_directory(folder, disk=disk)
        self._unsynced = False

    def record(self, state: DeviceState | None, course: FleetState, at: float) -> None:
        """Add that a device has taken a model, where its state says another one than before."""
        if state is None or not state.model or self._had.get(state.device, "") == state.model:
            return
        self._had[state.device] = state.model
        announced = course.round
        newest = announced is not None and announced.base.hash == state.model
        by = course.approved_by if newest else ""
        self._add(HistoryEntry(at, "taken", course.number, by, state.device, state.model))

    def order(self, order: Order, at: float) -> None:
        """Add that an operator has given an order."""
        self._add(HistoryEntry(at, order.what, order.round, order.by))

    def _add(self, entry: HistoryEntry) -> None:
        line = json.dumps(asdict(entry), separators=(",", ":")).encode() + b"\n"
        with disk_errors("writing", self._path):
            os.write(self._file, line)
        self._unsynced = True

    def commit(self) -> None:
        """Make durable what was added."""
        if self._unsynced:
            with disk_errors("writing", self._path):
                os.fsync(self._file)
            self._unsynced = False

    def close(self) -> None:
        """Close the file; nothing can be added any more."""
        os.close(self._file)


def read_history(folder: Path) -> Iterator[HistoryEntry]:
    """The entries in a coordinator's directory, the oldest first; torn lines are left out."""
    path = folder / HISTORY
    if not path.exists():
        return
    with disk_errors("reading", path), path.open("rb") as file:
        for line in file:
            try:
                values = json.loads(line)
                yield HistoryEntry(**values)
            except (TypeError, ValueError):
                log.warning(
                    "fleet_history_line_damaged", file=str(path), line=line[:80].decode(errors="replace")
                )


def line_of(entry: HistoryEntry) -> str:
    """An entry for people.

    >>> line_of(HistoryEntry(0.0, "taken", 3, "ada", "press-7", "ab" * 32))
    '1970-01-01 00:00:00Z press-7 model abababababab, round 3, approved by ada'
    """
    at = datetime.fromtimestamp(entry.at, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    if entry.device:
        approved = f", approved by {entry.by}" if entry.by else ""
        return f"{at} {entry.device} model {entry.model[:12]}, round {entry.round}{approved}"
    return f"{at} {entry.what} round {entry.round}, by {entry.by or 'unknown'}"
