"""The control group that systemd lends this service, divided: the daemon in one part, the trainer in another.

What the trainer's part may take is bounded, and the kernel ends all of it and nothing else when it takes
more. Source: cgroups(7) and systemd's rules for delegation (`Delegate=` in systemd.resource-control(5)).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edged.host.kernel_files import own_group

MOUNT = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")
VARIABLE = "EDGED_TRAINER_CGROUP"
"""Names the trainer's part to child processes."""

TRAINER_WEIGHT = 20  # the daemon's part keeps the kernel's default of 100
_CONTROLLERS = ("memory", "cpu")


@dataclass(frozen=True)
class CgroupSplit:
    """The two parts, and what of the trainer's the kernel bounds."""

    trainer: Path  # folder of the trainer's part
    memory_max: int | None  # bytes that it may hold; None where the memory controller was not lent
    controllers: tuple[str, ...]  # those that are at work: of `memory` and `cpu`


def lent(own: Path = SELF, mount: Path = MOUNT) -> Path | None:
    """The folder of this process's group, when the service manager has lent it; else None.

    >>> lent(Path("/nowhere"))
    """
    group = own_group(own)
    if group is None:
        return None
    try:
        return mount / group if os.getxattr(mount / group, "user.delegate") == b"1" else None
    except OSError:
        return None


def divide(folder: Path, memory_max: int) -> CgroupSplit:
    """Move this process into a part of its own and make one for the trainer beside it.

    `folder` is a group that was lent and holds no process but this one; the trainer's part may hold
    `memory_max` bytes, page cache included. Raises OSError when the kernel refuses: the daemon works without.
    """
    daemon, trainer = folder / "daemon", folder / "trainer"
    for part in (daemon, trainer):
        part.mkdir(exist_ok=True)
    # A group with processes of its own may not hand controllers down.
    _write(daemon / "cgroup.procs", "0")
    offered = (folder / "cgroup.controllers").read_text(encoding="ascii").split()
    controllers = tuple(name for name in _CONTROLLERS if name in offered)
    if controllers:
        _write(folder / "cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))
    if "memory" in controllers:
        _write(trainer / "memory.max", str(memory_max))
        _write(trainer / "memory.oom.group", "1")
    if "cpu" in controllers:
        _write(trainer / "cpu.weight", str(TRAINER_WEIGHT))
    os.environ[VARIABLE] = str(trainer)
    return CgroupSplit(trainer, memory_max if "memory" in controllers else None, controllers)


def join_trainer() -> str:
    """Move this process into the trainer's part, where there is one; why that failed, or nothing."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return ""
    try:
        _write(Path(folder, "cgroup.procs"), "0")
    except OSError as problem:
        return f"control group not joined: {problem.strerror}"
    return ""


def half_of_memory() -> int:
    """Half of this machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _write(file: Path, value: str) -> None:
    """One order to the kernel; what it refuses names the file, as errors of writing do not."""
    try:
        with file.open("wb", buffering=0) as target:
            target.write(value.encode("ascii"))
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(file)) from problem
