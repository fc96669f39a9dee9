"""Health of the daemon of a state directory, for `edged status` and for watchdogs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.clock import SystemClock
from edged.device.reports import StoredStatus
from edged.storage.files.atomic import DirectoryLock
from edged.storage.journal.last_shutdown import crashed
from edged.storage.models.registry import Registry

if TYPE_CHECKING:
    from edged.config import Config

STATUS_SECONDS = 5.0  # that a status may be late


def health(config: Config) -> tuple[bool, str]:
    """Return whether the daemon runs without a problem, and one line that describes its state.

    Raises StorageError when the registry cannot be read.
    """
    state = config.storage.dir
    running = DirectoryLock.holder(state)
    if running is None:
        ended = "crashed: the daemon ended without a stop, none" if crashed(state) else "stopped: no daemon"
        return False, f"{ended} runs on {state}"
    problem = None
    if (state / "state.db").exists():
        with Registry.open(state, readonly=True) as registry:
            problem = problem_of(StoredStatus.of(state), registry.boots(), config.report.every)
    return (True, f"online: process {running}") if problem is None else (False, f"degraded: {problem}")


def problem_of(last: StoredStatus, boot: int, report_every: float) -> str | None:
    """Return the problem that the daemon reported last, or that its report is too old; None: no problem."""
    if last.boot != boot or last.told_at is None:
        return None  # of an earlier start: this one has not come to it yet
    # Both processes count on the same monotonic clock, whatever happens to the wall clock.
    age = SystemClock().monotonic() - last.told_at
    if age > 2 * report_every + STATUS_SECONDS:
        return f"the daemon has not written its status for {age:.0f} s: is the disk full or read-only?"
    return last.problem or None
