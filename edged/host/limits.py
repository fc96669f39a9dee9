"""Limits of child processes: priority, processors, memory, and the control group of the trainer.

A child puts limits on itself, not its parent: code between fork and exec (`preexec_fn`) is not safe in a
process with threads. A limit that the machine refuses (containers, seccomp filters) is a warning, never an
error: training at the wrong priority is better than no training.

Control group: where systemd delegates its group to this service (`Delegate=` in systemd.resource-control(5)),
the daemon moves to one part of it and the trainer to another. The kernel bounds the trainer's part, and ends
all of it and nothing else when it takes more (cgroups(7)).

Processors: a process may use what its cpuset (`isolcpus`, a container, `CPUAffinity=`) leaves it. Where
there are small and big cores (big.LITTLE, DynamIQ) the kernel tells each one's capacity (`cpu_capacity`),
and training keeps to the small ones: a prediction has somebody waiting for it, a training run has not. The
daemon itself is not bound: its threads sleep nearly always, and the scheduler wakes them where there is
room.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from edged.errors import EdgedError
from edged.host.kernel import number, own_group

MOUNT = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")
VARIABLE = "EDGED_TRAINER_CGROUP"
"""Names the trainer's part to child processes."""

TRAINER_WEIGHT = 20  # the daemon's part keeps the kernel's default of 100
_CONTROLLERS = ("memory", "cpu")

_SYS, _PROC = Path("/sys"), Path("/proc")
# ioprio_set(2) has no wrapper in the C library; its number depends on kernel and word size.
_IOPRIO_SET = {
    ("x86_64", 8): 251,
    ("x86_64", 4): 289,
    ("aarch64", 8): 30,
    ("aarch64", 4): 314,
    ("armv7l", 4): 314,
    ("armv6l", 4): 314,
    ("riscv64", 8): 30,
    ("i686", 4): 289,
}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_IDLE = 3 << 13
_PR_SET_PDEATHSIG = 1
_EXPENDABLE = 900


# ---- limits of this process ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Limits of a child process."""

    nice: int = 0  # added to the niceness, 0 to 19
    affinity: Sequence[int] | None = None  # numbers of the CPUs it may use; None for all
    memory_limit: int | None = None  # address space in bytes; None for no limit
    idle_cpu: bool = False  # gets a processor only where nobody else wants it (SCHED_IDLE, sched(7))
    idle_io: bool = True  # gets the disk only when nobody else wants it
    expendable: bool = True  # the kernel ends it before others when the machine runs out of memory


def apply(limits: ChildLimits) -> list[str]:
    """Put `limits` on the calling process, before any other thread exists; a line for each that was refused.

    Priority, I/O class and affinity belong to threads on Linux: only those that are started
    afterwards inherit them. Importing numpy starts threads, so this comes first.
    """
    warnings: list[str] = []
    if limits.nice:
        _try(warnings, f"nice {limits.nice}", lambda: os.nice(limits.nice))
    if limits.idle_cpu:
        _try(warnings, "idle scheduling", _set_idle_cpu)
    if limits.idle_io:
        _try(warnings, "idle I/O class", _set_idle_io)
    if limits.expendable:
        _try(warnings, "out-of-memory score", _set_expendable)
    if limits.affinity is not None:
        cpus = frozenset(limits.affinity)
        _try(warnings, f"CPU affinity {sorted(cpus)}", lambda: _set_affinity(cpus))
    if limits.memory_limit is not None:
        limit = limits.memory_limit
        _try(warnings, f"memory limit of {limit} bytes", lambda: _set_memory(limit))
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


def _set_idle_io() -> None:
    machine = (os.uname().machine, struct.calcsize("P"))
    if machine not in _IOPRIO_SET:
        raise OSError(0, f"unknown on {machine[0]}")
    _call("syscall", _IOPRIO_SET[machine], _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)


def _set_expendable() -> None:
    # proc(5): from -1000, never, to 1000, first. Anyone may raise the score of a process of their own.
    Path("/proc/self/oom_score_adj").write_text(str(_EXPENDABLE), encoding="ascii")


def _set_affinity(cpus: frozenset[int]) -> None:
    os.sched_setaffinity(0, cpus)
    # The kernel drops CPUs that do not exist without a word.
    missing = cpus - os.sched_getaffinity(0)
    if missing:
        raise OSError(0, f"no CPU {', '.join(map(str, sorted(missing)))} here; the others are used")


def _set_memory(limit: int) -> None:
    _lower(resource.RLIMIT_AS, limit)


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
    _call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _call(function: str, *arguments: int) -> None:
    # Variadic C functions read whole registers: plain ints would be passed as 32 bits.
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*(ctypes.c_long(a) for a in arguments)) != 0:
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


# ---- processors --------------------------------------------------------------------------


def usable() -> frozenset[int]:
    """Return the numbers of the processors that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def small_ones(cpus: Collection[int], sys: Path = _SYS) -> tuple[int, ...]:
    """Return those of `cpus` that are smaller than the biggest; none where all are alike or it is unknown."""
    capacities = {}
    for cpu in cpus:
        capacity = number(sys / "devices" / "system" / "cpu" / f"cpu{cpu}" / "cpu_capacity")
        if capacity is None:
            return ()
        capacities[cpu] = capacity
    biggest = max(capacities.values(), default=0)
    return tuple(sorted(cpu for cpu, capacity in capacities.items() if capacity < biggest))


def for_training(sys: Path = _SYS, cpus: Collection[int] | None = None) -> Sequence[int] | None:
    """Return the processors that the trainer keeps to: the small ones of a big.LITTLE CPU; None for all.

    `cpus` is asked of the system when absent.
    """
    return small_ones(usable() if cpus is None else cpus, sys) or None
