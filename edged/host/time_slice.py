"""How long this thread may run before another gets the processor, where threads compete for one.

Since Linux 6.12 a thread that asks for short slices runs as soon as it is woken. Without that it waits until
the one that runs has had its slice: some milliseconds of a prediction, while a model trains on the same core.
Its share of the processor does not change. Earlier kernels ignore the request, and need none.
"""

from __future__ import annotations

import ctypes
import os
import struct

SHORT = 0.0001  # seconds, the shortest there are
# sched_setattr(2) has no wrapper in the C library.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, slice, deadline, period


def request_slice(seconds: float) -> bool:
    """Ask for slices of so many seconds, 0 for the usual ones; whether the kernel took the request.

    For the calling thread, and all threads and processes that it starts from now on. Its niceness stays.
    Where it has another scheduling policy than the usual one, nothing changes.
    """
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is None or struct.calcsize("P") != 8 or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, round(seconds * 1e9), 0, 0)
    call = ctypes.CDLL(None).syscall
    return bool(call(ctypes.c_long(number), ctypes.c_long(0), attributes, ctypes.c_long(0)) == 0)
