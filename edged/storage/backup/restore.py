"""The end of a restore: a state that was unpacked and verified takes its place, however often power is cut.

`.restored/` holds it. First the old state moves to `.replaced/`, which the mark in `.restored/` seals, then
the new one moves in, then both folders go. Each step finds out by looking what the one before it has done.
`.restored/` is called `.restoring/` before it goes: half of it would be taken for a state without its mark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edged.storage.files.atomic import DISK, Disk, disk_errors, publish_file
from edged.storage.journal import last_run

RESTORING, RESTORED, REPLACED = ".restoring", ".restored", ".replaced"
_MARK = ".old-is-gone"

COLLECTED = (
    "samples.db*", "state.db*", "outbox.db*", "*.damaged*", "checkpoints", "candidates", "models",
    "exports", "rounds", "fleet", "incoming", "bundles", last_run.STATUS,
)  # fmt: skip
"""Names of what a device has collected, learned and received."""
STATE = (*COLLECTED, "bundle", "bundle.hidden.json", "config.set.json", "boot.json")
"""Names of what belongs to a state; other files in its directory are left alone."""


def state_files(state: Path) -> list[Path]:
    """Everything in a state directory that belongs to a state."""
    return sorted({path for name in STATE for path in state.glob(name)})


def copies(state: Path) -> list[Path]:
    """Copies of a state that edged has made in its directory: what was damaged, and what a restore left."""
    return [*sorted(state.glob("*.damaged*")), *(state / name for name in (RESTORING, RESTORED, REPLACED))]


def derived_files(state: Path, *, models: bool) -> list[Path]:
    """Files beside the databases that hold something of samples: copies, candidates, exports.

    With `models` also what rounds of a fleet have left.
    """
    names = ("candidates", "exports", *(("rounds", "fleet") if models else ()))
    return [*copies(state), *(state / name for name in names)]


def finish(state: Path, *, disk: Disk = DISK) -> bool:
    """Carry on a restore that has come as far as `.restored/`, and forget one that has not.

    Whether there was one to carry on. To be called under the directory's lock, before anything in it is
    opened.

    Raises StorageError when the disk refuses; the next call continues.
    """
    restored, replaced = state / RESTORED, state / REPLACED
    with disk_errors("restoring", state):
        disk.remove(state / RESTORING)
        found = restored.is_dir()
        if found:
            _move_in(state, restored, replaced, disk)
        disk.remove(replaced)
    return found


def _move_in(state: Path, restored: Path, replaced: Path, disk: Disk) -> None:
    if not (restored / _MARK).exists():
        disk.make_directory(replaced)
        for path in state_files(state):
            disk.rename(path, replaced / path.name)
        disk.sync(replaced)
        disk.sync(state)
        publish_file(restored / _MARK, b"", disk=disk)
    for path in sorted(restored.iterdir()):
        if not path.name.startswith("."):
            disk.rename(path, state / path.name)
    disk.sync(state)
    disk.sync(restored)
    disk.rename(restored, state / RESTORING)
    disk.sync(state)
    disk.remove(state / RESTORING)


@contextmanager
def as_owner_of(directory: Path) -> Iterator[None]:
    """Give root the rights of owner and group to files, and no others; nothing changes for other users.

    What is made belongs to the owner then, and links that the owner has laid lead root nowhere that the owner
    may not go. It holds for the whole process: for commands, not for a process with threads of its own.

    Raises StorageError when there is no such directory, or root may not do this here.
    """
    with disk_errors("acting as the owner", directory):
        owner = directory.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    try:
        with disk_errors("acting as the owner", directory):
            os.setgroups([owner.st_gid])
            os.setegid(owner.st_gid)
            os.seteuid(owner.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)
