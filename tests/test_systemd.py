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

from edged.config import MqttConfig
from edged.config.loader import load
from edged.errors import ConfigError, RefusedError, UnavailableError
from edged.host.limits import MOUNT
from edged.mqtt.client.connection import credentials

ROOT = Path(__file__).parents[1]
UNITS = ROOT / "systemd"
SERVICES = ("edged.service", "edged@.service")
SLICES = ("edged.slice", "edged-train.slice")


@pytest.fixture(scope="session")
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.fail("systemd-analyze is not installed: run `make test`, which installs it")
    return found


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as they would verify on a machine with edged installed in /opt."""
    for name in (*SERVICES, *SLICES):
        text = re.sub(r"(?m)^(Exec\w+=)\S+", r"\1/bin/true", (UNITS / name).read_text())
        (tmp_path / name).write_text(text)
    return tmp_path


def settings(name: str = "edged.service") -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in (UNITS / name).read_text().splitlines():
        setting, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[setting].append(value)
    return found


def test_they_verify_without_a_word(analyze: str, installed: Path) -> None:
    units = [str(installed / name) for name in (*SERVICES, *SLICES)]
    done = subprocess.run(
        [analyze, "verify", *units], capture_output=True, text=True, check=False, timeout=60
    )
    words = [line for line in done.stderr.splitlines() if "edged" in line]
    assert (done.returncode, words) == (0, [])


@pytest.mark.parametrize("name", SERVICES)
def test_their_exposure_is_low(analyze: str, installed: Path, name: str) -> None:
    command = [analyze, "security", "--offline=true", "--threshold=15", "--no-pager", str(installed / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    level = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert level is not None
    assert float(level[1]) <= 1.5


def test_an_instance_differs_by_its_names_alone() -> None:
    one, several = (settings(name) for name in SERVICES)
    owned = ("edged.yaml", "StateDirectory=edged", "RuntimeDirectory=edged", "/edged", ":edged.")
    for setting in one:
        if setting == "Description":
            continue
        for value, of_instance in zip(one[setting], several[setting], strict=True):
            if value != of_instance:
                assert "%i" in of_instance
                assert any(name in f"{setting}={value}" for name in owned), setting
    assert one.keys() == several.keys()
    named = {
        "ConditionPathExists", "ExecStart", "StateDirectory", "RuntimeDirectory", "EnvironmentFile",
        "Environment",
    }  # fmt: skip
    assert all("%i" in value for setting in named for value in several[setting])
    assert all("%i" in value for value in several["LoadCredential"])


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


def test_it_may_divide_its_own_control_group_and_no_other() -> None:
    unit = settings()
    assert unit["ReadWritePaths"] == [f"-{MOUNT}/{unit['Slice'][0]}/%n"]
    assert unit["ProtectControlGroups"] == ["yes"]
    assert set(unit["Delegate"][0].split()) == {"memory", "cpu"}


def test_secrets_are_where_edged_looks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [value.partition(":")[0] for value in settings()["LoadCredential"]]
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    for name in names:
        (tmp_path / name).write_text(f"of {name}\n")
    assert credentials(MqttConfig()) == ("of mqtt-username", "of mqtt-password")


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
    trainer = {
        "setpriority",
        "sched_setattr",
        "prlimit64",
        "prctl",
        "execve",
    }
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
from edged.bundles.graph.templates import mlp
from edged.engines.inference import InferenceModel
onnx.save(mlp(64, 3), sys.argv[1] + "/model.onnx")
model = InferenceModel(Path(sys.argv[1], "model.onnx"))
assert model.predict(np.ones((256, 64), np.float32)).shape == (256, 3)
print("done")
"""

TRAIN = """
import numpy as np, sys
from pathlib import Path
from edged.bundles.build import build
from edged.bundles.request import BuildRequest
from edged.bundles.losses.named import CrossEntropy
from edged.bundles.graph.templates import mlp
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
bundle = build(BuildRequest(model=mlp(8, 3), loss=CrossEntropy()), Path(sys.argv[1], "bundle"))
engine = open_engine("portable", bundle, 2)
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
