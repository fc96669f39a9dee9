"""Acting as the user to whom a directory belongs, where root is asked to write into it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edged.storage.files.atomic import disk_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def as_owner_of(directory: Path) -> Iterator[None]:
    """Within it root has the owner's and the group's rights to files, and no others; nobody else changes.

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
