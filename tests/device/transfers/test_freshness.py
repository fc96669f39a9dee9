"""Attacks with bundles that are signed, yet old, by their names in The Update Framework (TUF); and keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from edged.mqtt import weight_encoding
from edged.signing import key_id, new_pair, sign, sign_command
from edged.storage.files.checksummed_json import seal
from edged.storage.models.bundle_archive import pack_bundle
from edged.storage.models.bundles import Bundle
from edged.storage.models.signatures import HEADER, sign_bundle
from tests.building import build
from tests.device.linear import write
from tests.device.transfers.test_install import QUIET, STREAM, outcome
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

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
            folder, port, STREAM, training=QUIET, install={}, commands={"keys": trusted},
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
        manifest = weight_encoding.manifest(content, chunks).to_json()
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
    """A bundle that was signed without a version."""
    path = site.bundle("unversioned", 0)
    text = seal(replace(Bundle.open(path), version=None).to_json())
    (path / "bundle.json").write_bytes(text)
    (path / "bundle.sig").write_bytes(sign(HEADER + text, site.key))
    assert json.loads(text)["version"] is None
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
    before = len(site.device.log.read_text())
    with site.device.log.open("ab") as sink:
        site.device.process = subprocess.Popen(command, stdout=sink, stderr=sink)
    wait_until(lambda: '"running"' in site.device.log.read_text()[before:], 60)
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
    device = Device(tmp_path, broker.port, STREAM, training=QUIET, install={})
    with running(device, broker.port) as listener:
        answer = listener.request("bundle.install", transfer="t", manifest={}, allow_downgrade=True)
    assert "counts only where this command must be signed" in answer["error"]


def started(site: Site) -> None:
    with running(site.device, site.port) as listener:
        listener.request("ping")


def replaced(place: Path, bundle: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(bundle, place)


def test_keys_are_rotated_and_revoked_across_restarts(broker: Mosquitto, tmp_path: Path) -> None:
    site = Site(tmp_path, broker.port)
    new = (tmp_path / "new.pub").read_text()
    with running(site.device, broker.port) as listener:
        unsigned = listener.request("keys.rotate", old=key_id(tmp_path / "old.pub"), new=new)
        assert "must be signed" in unsigned["error"]
        last = site.command(listener, "keys.revoke", key=key_id(tmp_path / "old.pub"))
        assert "no key would be left to sign commands" in last["error"]
        site.key = tmp_path / "other"
        foreign = site.command(listener, "keys.rotate", old=key_id(tmp_path / "old.pub"), new=new)
        assert "the signature does not fit" in foreign["error"]
        site.key = tmp_path / "old"
        told = site.command(listener, "keys.rotate", old=key_id(tmp_path / "old.pub"), new=new)
        (entry,) = told["data"]["keys"]
        assert (entry["id"], entry["for"]) == (key_id(tmp_path / "new.pub"), ["commands", "bundles"])
        checked_after_rotation(site, listener)
    with running(site.device, broker.port) as listener:  # with the bundle of the old key, which it has taken
        site.key = tmp_path / "old"
        assert "does not fit" in site.command(listener, "ping")["error"]
        site.key = tmp_path / "new"
        assert "does not fit" in site.install(listener, site.bundle("late", 200))
        other = (tmp_path / "other.pub").read_text()
        assert site.command(listener, "keys.rotate", old=new, new=other)["status"] == "ok"
        back = sign_and_send(site, listener, tmp_path / "other", "keys.rotate", old=other, new=new)
        assert "was replaced or revoked before" in back["error"]
    (listed,) = site.device.cli("keys", "list", str(site.device.path))["keys"]
    assert listed["id"] == key_id(tmp_path / "other.pub")
    replaced(site.first, site.bundle("forged", 300))
    assert "does not fit" in site.refused_start()
    ids = [key_id(tmp_path / f"{name}.pub") for name in ("old", "new", "other")]
    uses = [{"keys": {key: ["commands", "bundles"]}} for key in ids]
    log = site.device.cli("audit", str(site.device.path))["log"]
    rotated = [entry for entry in log if (entry.get("command"), entry.get("state")) == ROTATED]
    assert [(entry["before"], entry["after"]) for entry in rotated] == list(pairwise(uses))


ROTATED = ("keys.rotate", "successful")


def checked_after_rotation(site: Site, listener: Listener) -> None:
    """At once the new key signs commands and bundles, and the old one does not."""
    assert "does not fit" in site.command(listener, "ping")["error"]
    site.key = site.folder / "new"
    assert site.command(listener, "ping")["status"] == "ok"
    assert "does not fit" in site.install(listener, site.bundle("stolen", 101))
    assert "held-back" in site.install(listener, site.bundle("proper", 101, key="new"))


def sign_and_send(site: Site, listener: Listener, key: Path, name: str, **fields: Any) -> dict[str, Any]:
    site.key = key
    return site.command(listener, name, **fields)


class Partial:
    """A transfer of which one chunk is sent at a time."""

    def __init__(self, name: str) -> None:
        content = os.urandom(5000)
        self.name, self._chunks = name, weight_encoding.split(content, 2500)
        sizes = weight_encoding.manifest(content, self._chunks).to_json()
        self.fields = {"transfer": name, "manifest": {"encoding": weight_encoding.ENCODING, **sizes}}

    def send(self, listener: Listener, number: int) -> None:
        listener.publish(f"edged/rig/weights/in/{self.name}/{number}", self._chunks[number])

    def refusal(self, listener: Listener, event: str) -> str:
        def found() -> list[dict[str, Any]]:
            return [e for e in listener.events(event) if e["transfer"] == self.name]

        listener.wait(found, 60)
        return " ".join(found()[-1]["reasons"])


@pytest.mark.parametrize(
    ("command", "event", "reason"),
    [
        ("weights.apply", "weights_applied", "announced when other keys counted"),
        ("model.install", "model_installed", "takes signed bundles only"),
    ],
)
def test_a_transfer_that_was_announced_before_there_were_keys(
    broker: Mosquitto, tmp_path: Path, command: str, event: str, reason: str
) -> None:
    site, early, late = Site(tmp_path, broker.port, weights={"accept": True}), Partial("e"), Partial("l")
    signed_only = site.device.path.read_text()
    config = yaml.safe_load(signed_only)
    del config["commands"], config["model"]["keys"]
    site.device.path.write_text(yaml.safe_dump(config))
    with running(site.device, broker.port) as listener:
        assert listener.request(command, **early.fields)["data"]["missing"] == [0, 1]
        early.send(listener, 0)
        wait_until(lambda: listener.request(command, **early.fields)["data"]["missing"] == [1])
    site.device.path.write_text(signed_only)
    with running(site.device, broker.port) as listener:
        early.send(listener, 1)
        assert reason in early.refusal(listener, event)
        if command == "model.install":
            return
        assert site.command(listener, command, **late.fields)["data"]["missing"] == [0, 1]
        late.send(listener, 0)
    with running(site.device, broker.port) as listener:  # the keys that counted then count now, too
        late.send(listener, 1)
        assert "keys" not in late.refusal(listener, event)


def test_one_of_two_keys_is_revoked(broker: Mosquitto, tmp_path: Path) -> None:
    site = Site(tmp_path, broker.port)
    both = [f"{tmp_path / name}.pub" for name in ("old", "new")]
    config = yaml.safe_load(site.device.path.read_text())
    config["commands"]["keys"] = config["model"]["keys"] = both
    site.device.path.write_text(yaml.safe_dump(config))
    with running(site.device, broker.port) as listener:
        site.key = tmp_path / "new"
        payload = sign_command(
            "keys.revoke",
            "rig",
            {"key": Path(both[0]).read_text()},
            site.key,
            now=time.time(),
            transaction="1",
        )
        listener.publish("edged/rig/request/keys.revoke", payload)
        listener.wait(lambda: listener.messages["response/keys.revoke"])
        assert listener.messages["response/keys.revoke"][0]["status"] == "ok"
        site.key = tmp_path / "old"
        assert "does not fit" in site.command(listener, "ping")["error"]
    with running(site.device, broker.port) as listener:
        assert "does not fit" in site.command(listener, "ping")["error"]
        assert sign_and_send(site, listener, tmp_path / "new", "ping")["status"] == "ok"
