"""Attacks with bundles that are signed, yet old, by their names in The Update Framework (TUF); and keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.bundles.build import build
from edged.mqtt import weight_encoding
from edged.signing import new_pair, sign, sign_command
from edged.storage.models.bundle_archive import pack_bundle
from edged.storage.models.bundles import Bundle
from edged.storage.models.signatures import HEADER, sign_bundle
from tests.device.linear import write
from tests.device.transfers.test_install import QUIET, STREAM, outcome
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from edged.workbench.demo.broker import Mosquitto

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Site:
    """A maker of signed bundles, and a device that takes only those."""

    def __init__(self, folder: Path, port: int, **sections: Any) -> None:
        self.folder, self.port = folder, port
        for name in ("old", "new", "other"):
            new_pair(folder / name)
        self.key = folder / "old"
        self.first = self.bundle("first", version=100)
        trusted = [f"{self.key}.pub"]
        self.device = Device(
            folder, port, STREAM, training=QUIET, install={"accept": True}, commands={"keys": trusted},
            model={"bundle": str(self.first), "keys": trusted}, **sections,
        )  # fmt: skip

    def bundle(self, name: str, version: int | None, expires: float | None = None, key: str = "old") -> Path:
        """A signed bundle of its own; with no version as before there were any."""
        slope = 1.0 + len(list(self.folder.glob("*.onnx")))
        model = write(self.folder / f"{name}.onnx", slope)
        bundle = build(model, self.folder / name, loss="cross_entropy", engine="portable")
        sign_bundle(bundle.path, self.folder / key, version, expires)
        return bundle.path

    def file(self, bundle: Path) -> bytes:
        out = bundle.with_suffix(".edged")
        pack_bundle(bundle, out)
        return out.read_bytes()

    def command(self, listener: Listener, name: str, **fields: Any) -> dict[str, Any]:
        """Send a signed command and wait for its answer."""
        payload = sign_command(
            name, "rig", fields, self.key, now=time.time(), transaction=os.urandom(8).hex()
        )
        before = len(listener.messages[f"response/{name}"])
        listener.publish(f"edged/rig/request/{name}", payload)
        listener.wait(lambda: len(listener.messages[f"response/{name}"]) > before)
        return listener.messages[f"response/{name}"][before]

    def install(self, listener: Listener, bundle: Path, **fields: Any) -> str:
        """Send a bundle; why it was refused, if it was, by the device or at last by the gate."""
        content, name = self.file(bundle), os.urandom(8).hex()
        chunks = weight_encoding.split(content, 20_000)
        manifest = weight_encoding.manifest("bundle", content, chunks)
        answer = self.command(listener, "bundle.install", transfer=name, manifest=manifest, **fields)
        assert answer["status"] == "ok", answer
        for number in answer["data"]["missing"]:
            listener.publish(f"{answer['data']['topic']}/{number}", chunks[number])
        return " ".join(outcome(listener, name)["reasons"])

    def refused_start(self) -> str:
        """Start in vain; what the daemon says at last."""
        self.device.start()
        assert self.device.process is not None
        assert self.device.process.wait(60) == 3
        return self.device.log.read_text().splitlines()[-1]


def test_rollback_attack(broker: Mosquitto, tmp_path: Path) -> None:
    site = Site(tmp_path, broker.port)
    newer, older = site.bundle("newer", 102), site.bundle("older", 101)
    with running(site.device, broker.port) as listener:
        assert "has taken" not in site.install(listener, newer)
    with running(site.device, broker.port) as listener:  # the first one is still that of the configuration
        line = site.install(listener, older)
        assert "the bundle has version 101, and this device has taken version 102" in line
        assert "version 0" in site.install(listener, unversioned(site))
        assert "has taken" not in site.install(listener, older, allow_downgrade=True)
        assert "has taken" not in site.install(listener, older)


def unversioned(site: Site) -> Path:
    """A bundle as it was signed before there were versions."""
    path = site.bundle("unversioned", 0)
    text = replace(Bundle.open(path), version=None).to_json().encode()
    (path / "bundle.json").write_bytes(text)
    (path / "bundle.sig").write_bytes(sign(HEADER + text, site.key))
    assert "version" not in json.loads(text)
    return path


def test_rollback_attack_on_the_configured_bundle(broker: Mosquitto, tmp_path: Path) -> None:
    site = Site(tmp_path, broker.port)
    started(site)
    saved = shutil.copytree(site.first, tmp_path / "saved")
    replaced(site.first, site.bundle("newer", 102))
    started(site)
    replaced(site.first, saved)  # which this device has opened before
    assert "the bundle has version 100, and this device has taken version 102" in site.refused_start()
    command = [sys.executable, "-m", "edged", "run", str(site.device.path), "--allow-downgrade"]
    with site.device.log.open("ab") as sink:
        site.device.process = subprocess.Popen(command, stdout=sink, stderr=sink)
    wait_until(lambda: '"running"' in site.device.log.read_text().splitlines()[-1], 60)
    site.device.stop()
    started(site)


def test_freeze_attack(broker: Mosquitto, tmp_path: Path) -> None:
    site = Site(tmp_path, broker.port)
    end = time.time() + 8
    replaced(site.first, site.bundle("short", 101, expires=end))
    with running(site.device, broker.port) as listener:
        expired = site.bundle("expired", 103, expires=time.time() - 60)
        assert "the bundle expired on " in site.install(listener, expired)
        fresh = site.bundle("fresh", 102, expires=time.time() + 3600)
        assert "expired" not in site.install(listener, fresh)
    wait_until(lambda: time.time() > end)
    started(site)  # what was taken goes on serving
    replaced(site.first, expired)
    assert "the bundle expired on " in site.refused_start()


def test_how_a_version_is_given(tmp_path: Path) -> None:
    site = Site(tmp_path, 0)
    for arguments, version in ((["--version", "7", "--expires", "90d"], 7), ([], int(time.time()))):
        command = [
            sys.executable,
            "-m",
            "edged",
            "artifacts",
            "sign",
            str(site.first),
            "--key",
            str(site.key),
        ]
        subprocess.run([*command, *arguments], check=True)
        told = site.device.cli("artifacts", "inspect", str(site.first))
        assert version <= told["version"] <= version + 60
        assert (told["expires"] is None) == (not arguments)
    assert told["expires"] is None


def test_a_downgrade_must_be_signed(broker: Mosquitto, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, STREAM, training=QUIET, install={"accept": True})
    with running(device, broker.port) as listener:
        answer = listener.request(
            "bundle.install", transfer="t", url="https://a.example/b", bytes=1, sha256="0" * 64,
            allow_downgrade=True,
        )  # fmt: skip
    assert "counts only where this command must be signed" in answer["error"]


def started(site: Site) -> None:
    with running(site.device, site.port) as listener:
        listener.request("ping")


def replaced(place: Path, bundle: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(bundle, place)
