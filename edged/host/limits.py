"""Limits of child processes: priority, processors, memory, and the control group of the trainer.

A child puts limits on itself, not its parent: code between fork and exec (`preexec_fn`) is not safe in a
process with threads. A limit that the machine refuses (containers, seccomp filters) is a warning, never an
error: training at the wrong priority is better than no training.

Control group: where systemd delegates its group to this service (`Delegate=` in systemd.resource-control(5)),
the daemon moves to one part of it and the trainer to another. The kernel bounds the trainer's part, and ends
all of it and nothing else when it takes more (cgroups(7)).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edged.errors import EdgedError
from edged.host.kernel import own_group

MOUNT = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")
VARIABLE = "EDGED_TRAINER_CGROUP"
"""Names the trainer's part to child processes."""

TRAINER_WEIGHT = 20  # the daemon's part keeps the kernel's default of 100
_CONTROLLERS = ("memory", "cpu")

_PR_SET_PDEATHSIG = 1
_EXPENDABLE = 900


# ---- limits of this process ----------------------------------------------------------------


def apply(*, nice: int, idle_cpu: bool, memory_limit: int | None) -> list[str]:
    """Limit the calling process, before any other thread exists; return a line for each limit refused.

    `nice` is added to the niceness. With `idle_cpu` it gets a processor only where nobody else wants it
    (SCHED_IDLE, sched(7)). `memory_limit` are bytes of address space; None for no limit.

    A priority belongs to a thread on Linux: only those that are started afterwards inherit it. Importing
    numpy starts threads, so this comes first.
    """
    warnings: list[str] = []
    _try(warnings, f"nice {nice}", lambda: os.nice(nice))
    if idle_cpu:
        _try(warnings, "idle scheduling", _set_idle_cpu)
    if memory_limit is not None:
        _try(
            warnings,
            f"memory limit of {memory_limit} bytes",
            lambda: _lower(resource.RLIMIT_AS, memory_limit),
        )
    return warnings


def open_many_files() -> None:
    """Let this process open as many files as it may: fourteen for each of several streams.

    systemd gives a service 1024 unless it asks for more, which is enough for seventy streams.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # then the last streams fail, and say so
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def be_expendable() -> list[str]:
    """Have the kernel end this process before others when memory runs out; return a line if it refused."""
    warnings: list[str] = []
    _try(warnings, "out-of-memory score", _set_expendable)
    return warnings


def die_with_parent(parent: int | None = None) -> list[str]:
    """Have the kernel kill this process when its parent ends, however the parent ends.

    The kernel means the parent's *thread*: it must be one that lives as long as the parent.
    Source: prctl(2), PR_SET_PDEATHSIG. Gives a warning when the kernel refused.

    `parent` is the parent's process id, handed down by it: EdgedError when it is gone already; without it a
    parent that ended before this call goes unnoticed.
    """
    warnings: list[str] = []
    _try(warnings, "death with the parent process", _set_death_signal)
    if parent is not None and os.getppid() != parent:
        raise EdgedError(f"parent process {parent} is gone", remedy="the daemon starts a new run by itself")
    return warnings


def _try(warnings: list[str], what: str, action: Callable[[], object]) -> None:
    try:
        action()
    except (OSError, ValueError) as problem:
        warnings.append(f"{what} not set: {getattr(problem, 'strerror', None) or problem}")


def _set_idle_cpu() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _set_expendable() -> None:
    # proc(5): from -1000, never, to 1000, first. Anyone may raise the score of a process of their own.
    Path("/proc/self/oom_score_adj").write_text(str(_EXPENDABLE), encoding="ascii")


def confine(memory: int, seconds: int) -> None:
    """Let this process hold at most `memory` bytes of data and use `seconds` of processor time, in earnest.

    Data are all private writable pages, whether or not they were touched; see setrlimit(2), RLIMIT_DATA. A
    file that it writes has at most `memory` bytes, too. Raises OSError or ValueError when the kernel refuses.
    """
    for kind, limit in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        _lower(kind, limit)


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (wanted, wanted))


def _set_death_signal() -> None:
    # Variadic C functions read whole registers: plain ints would be passed as 32 bits.
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if libc.prctl(*(ctypes.c_long(value) for value in arguments)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


# ---- the control group of the trainer --------------------------------------------------------


@dataclass(frozen=True)
class CgroupSplit:
    """The two parts of the control group, and the kernel's bounds on that of the trainer."""

    trainer: Path  # folder of the trainer's part
    memory_max: int | None  # bytes that it may hold; None where the memory controller was not lent
    controllers: tuple[str, ...]  # those that are at work: of `memory` and `cpu`


def lent(own: Path = SELF, mount: Path = MOUNT) -> Path | None:
    """Return the folder of this process's group if the service manager has delegated it; else None.

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
    """Move this process into the trainer's part, if there is one; return the reason of a failure."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return ""
    try:
        _write(Path(folder, "cgroup.procs"), "0")
    except OSError as problem:
        return f"control group not joined: {problem.strerror}"
    return ""


def half_of_memory() -> int:
    """Return half of this machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _write(file: Path, value: str) -> None:
    """Write an order to the kernel; errors name the file, as those of writing do not."""
    try:
        with file.open("wb", buffering=0) as target:
            target.write(value.encode("ascii"))
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(file)) from problem
