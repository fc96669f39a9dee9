"""Limits in real child processes: nothing here changes the process that runs the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from edged.host.limits import apply

if TYPE_CHECKING:
    import pytest

# What the child reports about itself once the limits hold, in addition to its warnings.
CHILD = """
import json, os, resource
from edged.host.limits import apply, be_expendable
before = os.nice(0)
warnings = {limits}
print(json.dumps(dict(
    warnings=warnings,
    nice=os.nice(0) - before,
    idle=os.sched_getscheduler(0) == os.SCHED_IDLE,
    memory=resource.getrlimit(resource.RLIMIT_AS),
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
    found = child("[*apply(nice=5, idle_cpu=True, memory_limit=2**30), *be_expendable()]")
    assert found == {"warnings": [], "nice": 5, "idle": True, "memory": [2**30, 2**30], "oom": 900}


def test_no_limits_change_nothing() -> None:
    found = child("apply(nice=0, idle_cpu=False, memory_limit=None)")
    assert found["warnings"] == []
    assert found["oom"] < 900
    assert (found["nice"], found["idle"]) == (0, False)


def test_a_limit_that_is_refused_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    warnings = apply(nice=0, idle_cpu=True, memory_limit=None)
    assert warnings == ["idle scheduling not set: Operation not permitted"]


def test_as_many_files_may_be_open_as_the_machine_allows() -> None:
    program = (
        "import resource\nfrom edged.host.limits import open_many_files\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "open_many_files()\nassert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_a_memory_limit_really_limits() -> None:
    code = (
        "from edged.host.limits import apply\n"
        "assert not apply(nice=0, idle_cpu=False, memory_limit=256 * 2**20)\n"
        "try:\n    bytearray(2**29)\nexcept MemoryError:\n    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "refused\n"


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
