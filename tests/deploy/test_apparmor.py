"""The AppArmor profile grants no more than the unit, and all that a daemon uses; its parser compiles it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.deploy.confinement import Profile, used
from tests.faults.tracing import require_strace
from tests.running_device import Device, running

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "deploy/apparmor/edged"
needs_parser = pytest.mark.skipif(
    shutil.which("apparmor_parser") is None,
    reason="needs AppArmor's parser: `make system-packages` installs it",
)
DATA = {"/var/lib/edged{,@*}/**", "/tmp/**"}  # noqa: S108  patterns of the profile


def rules(right: str) -> list[str]:
    """Paths that the profile gives a right to."""
    found = re.findall(r"(?m)^  (?:owner )?([/@]\S+) ([a-z]+),$", PROFILE.read_text())
    return [path for path, rights in found if right in rights]


def test_what_is_written_is_never_executed() -> None:
    written, executed = rules("w"), [*rules("x"), *rules("m")]
    assert set(written) >= DATA
    assert not set(written) & set(executed)
    assert all(path.startswith(("/opt/edged/", "/usr/")) for path in executed)
    for data in DATA:
        assert f"deny {data} mx," in PROFILE.read_text()


PLACES = {"state": "/var/lib/edged", "edged.yaml": "/etc/edged/edged.yaml", "run": "/run/edged"}
STREAM: dict[str, Any] = {"features": ["a", "b"], "classes": ["low", "high"], "label": "y", "key": "key"}


def installed(path: str, folder: Path) -> str:
    """Where a file would lie if edged, its interpreter and its configuration were those of the package."""
    for name, place in (PLACES | {"tmp": "/tmp"}).items():  # noqa: S108
        if path == str(folder / name) or path.startswith(f"{folder / name}/"):
            return path.replace(str(folder / name), place, 1)
    for own in (sys.prefix, os.path.realpath(sys.prefix), str(ROOT)):
        if f"{path}/".startswith(f"{own}/"):
            return path.replace(own, "/opt/edged", 1)
    return re.sub(f"^{re.escape(os.path.realpath(sys.base_prefix))}/", "/usr/", path)


@needs_parser
def test_the_parser_compiles_it() -> None:
    command = ["apparmor_parser", "--skip-kernel-load", "--skip-cache", str(PROFILE)]
    subprocess.run(command, check=True, capture_output=True)


@needs_parser
@pytest.mark.slow
def test_all_that_a_device_does_is_allowed(broker: Broker, tmp_path: Path) -> None:
    require_strace()
    for name in ("run", "tmp"):
        (tmp_path / name).mkdir()
    web = {"listen": "0.0.0.0:0", "unix_socket": str(tmp_path / "run/edged.sock")}
    device = Device(tmp_path, broker.port, STREAM, training={"every": None, "new_labels": 0}, web=web)
    device.wrapper = [
        "strace",
        "-D",
        "-ff",
        "-y",
        "-qq",
        "-o",
        str(tmp_path / "trace"),
        "-e",
        "trace=%file,mmap",
    ]
    with running(device, broker.port, TMPDIR=str(tmp_path / "tmp"), PYTHONDONTWRITEBYTECODE="1") as listener:
        live(listener)
    found = used("".join(path.read_text(errors="replace") for path in tmp_path.glob("trace.*")))
    profile = Profile.of(PROFILE)
    lacking = {path: profile.lacks(installed(path, tmp_path), rights) for path, rights in found.items()}
    assert [profile.lacks(path, {"r", "m"}) for path in ("/tmp/x", "/home/x")] == ["m", "mr"]  # noqa: S108
    assert len(found) > 300, "the trace has what it must have"
    assert {path: rights for path, rights in lacking.items() if rights} == {}


def live(listener: Listener) -> None:
    """Samples, a training run and a swap, a review of labels, an export, a wipe."""
    for row in range(200):
        side = row % 2
        listener.send("sensors/a", {"key": "k", "a": side + row / 1e4, "b": 0.5, "y": ["low", "high"][side]})
    listener.wait(lambda: len(listener.messages["predictions"]) >= 200, 60)
    listener.request("train", transaction="t", steps=30)
    listener.wait(lambda: listener.events("training_finished"), 120)
    listener.wait(lambda: listener.request("labels.suspects")["data"]["reviewed"], 60)
    assert listener.request("export", what="mixture")["status"] == "ok"
    listener.request("wipe", confirm="rig", transaction="w")
    listener.wait(lambda: any(a.get("status") == "ok" for a in listener.messages["response/wipe"]), 60)
