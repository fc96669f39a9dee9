"""Disks that can be filled, and the system calls that make one fail."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

WRITES = "pwrite64,write,pwritev"
SYNCS = "fsync,fdatasync"
RENAMES = "rename,renameat,renameat2"


@cache
def may_mount() -> bool:
    """Whether file systems can be mounted here: as root, and not in every container."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(Path(folder), 1):
                return True
        except subprocess.CalledProcessError:
            return False


@contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own, `folder/disk`."""
    path = folder / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "edged-test", str(path)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    """Write to a file until nothing more fits."""
    with suppress(OSError), path.open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
