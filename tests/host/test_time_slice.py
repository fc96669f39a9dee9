"""Short slices of the processor, in a real child process and its threads and children."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys

import pytest

from edged.host import time_slice

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
KERNEL = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])

CHILD = """
import json, os, subprocess, sys, threading
from edged.host import process_limits, time_slice
from tests.host.test_time_slice import slice_ns
usual = slice_ns()
os.nice(3)
taken = time_slice.request_slice(time_slice.SHORT)
found = []
thread = threading.Thread(target=lambda: found.append(slice_ns()))
thread.start(); thread.join()
found.append(os.nice(0))
process_limits.apply(process_limits.ChildLimits(nice=2))
print(json.dumps([usual, taken, *found, slice_ns(), os.nice(0)]))
"""


def slice_ns() -> int:
    """The slice of the calling thread, in nanoseconds."""
    found = ctypes.create_string_buffer(56)
    number = SCHED_GETATTR[os.uname().machine]
    assert ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, found, 56, 0) == 0
    return int(struct.unpack_from("=IIQiIQ", found)[5])


@pytest.mark.skipif(KERNEL < (6, 12), reason="this kernel does not know slices of single threads")
def test_threads_inherit_short_slices_and_limits_of_a_child_end_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, timeout=60
    )
    usual, taken, of_thread, nice, after, nicer = json.loads(done.stdout)
    assert (taken, of_thread) == (True, round(time_slice.SHORT * 1e9))
    assert usual != of_thread
    assert (after, nicer - nice) == (usual, 2)


def test_an_unknown_machine_has_the_usual_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slice, "_SCHED_SETATTR", {})
    assert not time_slice.request_slice(time_slice.SHORT)
