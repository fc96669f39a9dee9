"""Limits in real child processes: nothing here changes the process that runs the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from edged.host.limits import ChildLimits, apply

# What the child reports about itself once the limits hold, in addition to its warnings.
CHILD = """
import json, os, resource, subprocess
from edged.host.limits import ChildLimits, apply
before = os.nice(0)
warnings = apply({limits})
print(json.dumps(dict(
    warnings=warnings,
    nice=os.nice(0) - before,
    cpus=sorted(os.sched_getaffinity(0)),
    idle=os.sched_getscheduler(0) == os.SCHED_IDLE,
    memory=resource.getrlimit(resource.RLIMIT_AS),
    io=subprocess.run(["ionice"], capture_output=True, text=True, check=True).stdout.strip(),
    oom=int(open("/proc/self/oom_score_adj").read()),
)))
"""


def child(limits: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(limits=limits)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_all_limits_hold_in_the_child() -> None:
    cpu = min(os.sched_getaffinity(0))
    found = child(f"ChildLimits(nice=5, affinity=({cpu},), memory_limit=2**30, idle_cpu=True)")
    assert found == {
        "warnings": [], "nice": 5, "cpus": [cpu], "idle": True, "memory": [2**30, 2**30], "io": "idle",
        "oom": 900,
    }  # fmt: skip


def test_no_limits_change_nothing() -> None:
    found = child("ChildLimits(idle_io=False, expendable=False)")
    assert found["warnings"] == []
    assert found["oom"] < 900
    assert (found["nice"], found["idle"]) == (0, False)
    assert found["cpus"] == sorted(os.sched_getaffinity(0))
    assert found["io"] != "idle"


def test_a_missing_cpu_is_a_warning_and_the_others_are_used() -> None:
    cpu = min(os.sched_getaffinity(0))
    found = child(f"ChildLimits(affinity=({cpu}, 1000), nice=3)")
    assert found["warnings"] == [f"CPU affinity [{cpu}, 1000] not set: no CPU 1000 here; the others are used"]
    assert (found["cpus"], found["nice"]) == ([cpu], 3)


@pytest.mark.parametrize("cpus", ["(1000,)", "()", "(-1,)"])
def test_impossible_cpus_are_a_warning(cpus: str) -> None:
    found = child(f"ChildLimits(affinity={cpus}, nice=2)")
    assert len(found["warnings"]) == 1
    assert found["warnings"][0].startswith("CPU affinity")
    assert found["nice"] == 2


def test_a_memory_limit_really_limits() -> None:
    code = (
        "from edged.host.limits import ChildLimits, apply\n"
        "assert not apply(ChildLimits(memory_limit=256 * 2**20))\n"
        "try:\n    bytearray(2**29)\nexcept MemoryError:\n    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "refused\n"


def test_applying_nothing_is_silent_here_too() -> None:
    assert apply(ChildLimits(idle_io=False)) == []


def test_a_child_dies_with_its_parent() -> None:
    grandchild = (
        "import os, signal\nfrom edged.host.limits import die_with_parent\n"
        "assert die_with_parent(os.getppid()) == []\nprint(os.getpid(), flush=True)\nsignal.pause()\n"
    )
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {grandchild!r}])\n"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() != ""
        os.kill(process.pid, signal.SIGKILL)
        # The pipe is closed only when the last process that holds it is gone: the grandchild.
        assert process.stdout.read() == ""


def test_a_parent_that_is_gone_already_is_noticed() -> None:
    code = (
        "from edged.errors import EdgedError\nfrom edged.host.limits import die_with_parent\n"
        "try:\n    die_with_parent(parent=1 << 22)\nexcept EdgedError as gone:\n    print(gone)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "parent process 4194304 is gone (the daemon starts a new run by itself)\n"
