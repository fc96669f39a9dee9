"""The unit: it verifies, it is shut tight, and what edged needs stays allowed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from edged.configfile import load
from edged.errors import ConfigError, RefusedError, UnavailableError

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "systemd" / "edged.service"


@pytest.fixture(scope="session")
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.fail("systemd-analyze is not installed: run `make test`, which installs it")
    return found


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit as it would verify on a machine with edged installed in /opt."""
    text = re.sub(r"(?m)^(Exec\w+=)\S+", r"\1/bin/true", UNIT.read_text())
    path = tmp_path / "edged.service"
    path.write_text(text)
    return path


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in UNIT.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name].append(value)
    return found


def test_it_verifies_without_a_word(analyze: str, unit: Path) -> None:
    done = subprocess.run(
        [analyze, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    words = [line for line in done.stderr.splitlines() if "edged" in line]
    assert (done.returncode, words) == (0, [])


def test_its_exposure_is_low(analyze: str, unit: Path) -> None:
    command = [analyze, "security", "--offline=true", "--threshold=15", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    level = re.search(r"exposure level for edged\.service: ([0-9.]+)", done.stdout)
    assert level is not None
    assert float(level[1]) <= 1.5


def test_it_is_watched_over_the_notification_protocol() -> None:
    unit = settings()
    assert unit["Type"] == ["notify"]
    assert unit["NotifyAccess"] == ["main"]
    assert int(unit["WatchdogSec"][0]) > 0
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_errors_that_a_restart_cannot_mend_do_not_restart() -> None:
    hopeless = {str(error.exit_code) for error in (ConfigError, RefusedError, UnavailableError)}
    assert settings()["Restart"] == ["on-failure"]
    assert set(settings()["RestartPreventExitStatus"][0].split()) == hopeless


def test_its_state_directory_is_where_edged_looks(tmp_path: Path) -> None:
    environ = dict(line.split("=", 1) for line in settings()["Environment"])
    (tmp_path / "edged.yaml").write_text("device: {id: a}\nstream: {features: 2}\n")
    config = load(tmp_path / "edged.yaml", environ)
    assert str(config.storage.dir) == f"/var/lib/{settings()['StateDirectory'][0]}"


def calls(analyze: str, group: str) -> set[str]:
    """The system calls of one of systemd's groups, those of its subgroups included."""
    done = subprocess.run(
        [analyze, "syscall-filter", "--no-pager", group],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    words = [word for line in done.stdout.splitlines()[1:] if (word := line.strip()) and word[0] != "#"]
    plain = {word for word in words if not word.startswith("@")}
    return plain.union(*(calls(analyze, word) for word in words if word.startswith("@")))


def test_the_calls_that_edged_makes_are_allowed(analyze: str) -> None:
    allowed: set[str] = set()
    for filtered in settings()["SystemCallFilter"]:
        group = calls(analyze, filtered.lstrip("~"))
        allowed = allowed - group if filtered.startswith("~") else allowed | group
    trainer = {"setpriority", "ioprio_set", "sched_setaffinity", "prlimit64", "prctl", "execve"}
    durability = {"fsync", "fdatasync", "rename", "flock", "fcntl", "ftruncate", "mmap", "statfs"}
    network = {"socket", "connect", "sendto", "recvfrom", "epoll_wait", "ppoll", "select", "eventfd2"}
    assert trainer | durability | network <= allowed
    assert not allowed & {"mount", "ptrace", "init_module", "setuid", "reboot", "bpf", "chroot"}


# The rule that MemoryDenyWriteExecute= compiles to: no mapping that is writable and executable, and
# none that becomes executable later. Numbers of mmap, mprotect and pkey_mprotect by machine.
DENY_WRITE_EXECUTE = """
import ctypes, mmap, os, struct
numbers = {"x86_64": (9, 10, 329), "aarch64": (222, 226, 288)}[os.uname().machine]
LOAD, AND, EQUAL, SET, RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
program = [
    (LOAD, 0, 0, 0),
    (EQUAL, 3, 0, numbers[0]),       # mmap: both write and execute
    (EQUAL, 5, 0, numbers[1]),       # mprotect: execute
    (EQUAL, 4, 0, numbers[2]),       # pkey_mprotect: execute
    (RETURN, 0, 0, 0x7FFF0000),
    (LOAD, 0, 0, 32),
    (AND, 0, 0, 6),
    (EQUAL, 3, 2, 6),
    (LOAD, 0, 0, 32),
    (SET, 1, 0, 4),
    (RETURN, 0, 0, 0x7FFF0000),
    (RETURN, 0, 0, 0x00050001),      # EPERM
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, ctypes.c_long(1), 0, 0, 0) == 0                                # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, ctypes.c_long(2), ctypes.c_long(ctypes.addressof(header)), 0, 0) == 0  # PR_SET_SECCOMP
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
except PermissionError:
    print("denied")
"""

SERVE = """
import numpy as np, onnx, sys
from pathlib import Path
from edged.artifacts.templates import mlp
from edged.engines.inference import InferenceModel
onnx.save(mlp(64, 3), sys.argv[1] + "/model.onnx")
model = InferenceModel(Path(sys.argv[1], "model.onnx"), threads=2)
assert model.predict(np.ones((256, 64), np.float32)).shape == (256, 3)
print("done")
"""

TRAIN = """
import numpy as np, sys
from pathlib import Path
from edged.artifacts.build import build
from edged.artifacts.templates import mlp
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
bundle = build(mlp(8, 3), Path(sys.argv[1], "bundle"), loss="cross_entropy")
engine = open_engine("auto", bundle, 2)
engine.begin(LearningRate(0.01))
x = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int64)
losses = [engine.step(x, y).loss for _ in range(100)]
assert losses[-1] < losses[0] / 2
engine.export(Path(sys.argv[1], "candidate.onnx"))
print("done")
"""

# The training build of onnxruntime does not exist for every machine; serving does.
WORK = {"serve": SERVE} | ({"train": TRAIN} if find_spec("onnxruntime.training") else {})


def run(code: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("work", WORK.values(), ids=list(WORK))
def test_onnxruntime_needs_no_writable_executable_memory(work: str, tmp_path: Path) -> None:
    assert run(DENY_WRITE_EXECUTE + work, str(tmp_path)) == ["denied", "done"]
