"""Which processors there are for us, and which of them training should keep to.

A process may use what its cpuset (`isolcpus`, a container, `CPUAffinity=`) leaves it, and no more of the time
than its cgroup's quota (`cpu.max`). More threads than that wait for each other and for nothing else.

On processors with small and big cores (big.LITTLE, DynamIQ) the kernel tells each one's capacity, 1024 for
the biggest (`cpu_capacity`; "CPU capacity" in the kernel's documentation for ARM). There training keeps to
the small ones: a prediction has somebody waiting for it, a training run has not, so the big ones stay free
and cool. The daemon itself is not bound: its threads sleep nearly always, and the scheduler wakes them where
there is room.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from edged.host.kernel_files import number, own_group, text

_SYS, _PROC = Path("/sys"), Path("/proc")


def usable() -> frozenset[int]:
    """Numbers of the processors that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def small_ones(cpus: Collection[int], sys: Path = _SYS) -> tuple[int, ...]:
    """Those of `cpus` that are smaller than the biggest of them; none where all are alike or nobody tells."""
    capacities = {}
    for cpu in cpus:
        capacity = number(sys / "devices" / "system" / "cpu" / f"cpu{cpu}" / "cpu_capacity")
        if capacity is None:
            return ()
        capacities[cpu] = capacity
    biggest = max(capacities.values(), default=0)
    return tuple(sorted(cpu for cpu, capacity in capacities.items() if capacity < biggest))


def for_training(
    wanted: Sequence[int] | str | None, threads: int, sys: Path = _SYS, cpus: Collection[int] | None = None
) -> Sequence[int] | None:
    """The processors that the trainer keeps to; None for all that it may use.

    `wanted` is `training.affinity`: numbers, `all`, or None to choose. Small cores are chosen only where
    there is one for each of the `threads` of a training step; `cpus` is asked of the system when absent.
    """
    if isinstance(wanted, str):
        return None
    if wanted is not None:
        return wanted
    small = small_ones(usable() if cpus is None else cpus, sys)
    return small if len(small) >= threads else None


def quota(sys: Path = _SYS, proc: Path = _PROC) -> float | None:
    """Processors' worth of time that the cgroup may use; None without a limit (cgroup v2 alone)."""
    place = own_group(proc / "self" / "cgroup")
    if place is None:
        return None
    folder, limits = sys / "fs" / "cgroup", []
    for part in ("", *Path(place).parts):
        folder = folder / part
        with suppress(ValueError, ZeroDivisionError):
            most, period = text(folder / "cpu.max").split()
            limits += [] if most == "max" else [int(most) / int(period)]
    return min(limits, default=None)


def fitting(threads: int, cpus: int | None = None, most: float | None = None) -> int:
    """As many of these threads as there are processors for; `cpus` and `most` are asked of the system.

    >>> fitting(4, cpus=2, most=1.5), fitting(1, cpus=8, most=0.2)
    (2, 1)
    """
    cpus = len(usable()) if cpus is None else cpus
    most = quota() if most is None else most
    return max(1, min(threads, cpus, cpus if most is None else math.ceil(most)))
