"""Keys in files and signed commands: made by edged, by a shell script, and by nobody else."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edged.clock import SystemClock
from edged.config.loader import load
from edged.device.commands.dispatcher import command_authority
from edged.domain.messages.requests import REQUESTS
from edged.errors import ConfigError, RefusedError
from edged.signing import SEALED, Keys, Sealer, Unsealer, new_pair, sign, sign_command
from edged.storage.models.registry import Registry
from tests.commands import edged, write_config

SCRIPT = Path(__file__).parents[1] / "deploy" / "sign-command.sh"


def test_what_is_sealed_opens_for_its_key_and_its_topic_alone(tmp_path: Path) -> None:
    for name in ("own", "other"):
        new_pair(tmp_path / name)
    own, other = Unsealer(tmp_path / "own"), Unsealer(tmp_path / "other")
    assert Unsealer(tmp_path / "own").public == own.public != other.public
    sealer = Sealer(own.public)
    sealed = sealer.seal(b"12 samples", b"up/1/press-7")
    assert b"samples" not in sealed
    assert sealed != sealer.seal(b"12 samples", b"up/1/press-7")
    assert own.open(sealed, b"up/1/press-7") == b"12 samples"
    assert own.open(b"plain", b"up/1/press-7") == b"plain"
    about = b"up/1/press-7"
    wrong = [(other, sealed, about), (own, sealed, b"up/1/press-8"), (own, sealed[:40], about)]
    for at in range(len(SEALED), len(sealed)):
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        wrong.append((own, changed, about))
    for unsealer, message, topic in wrong:
        with pytest.raises(ValueError, match=r"sealed|key|bytes|long"):
            unsealer.open(message, topic)


def pair(folder: Path, name: str = "a") -> Path:
    new_pair(folder / name)
    return folder / name


class Device:
    """Asks, as a device does, whether a payload on its topic `wipe` may be carried out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._registry = Registry.open(folder)

    def restart(self) -> None:
        self.close()
        self._registry = Registry.open(self.folder)

    def close(self) -> None:
        self._registry.close()

    def check(self, payload: bytes, **commands: Any) -> None:
        self.checker(**commands)(payload)

    def checker(
        self, command: str = "wipe", *, root: str = "edged", makers: list[Path] | None = None, **commands: Any
    ) -> Callable[[bytes], str | None]:
        path = write_config(
            self.folder,
            {"features": 2, "classes": 2},
            device={"id": "press-7"},
            commands={"keys": [str(self.folder / "a.pub")]} | commands,
        )
        config = load(path, {})
        authority = command_authority(
            config.device.id, config.commands, self._registry, SystemClock(), root=root, makers=makers or []
        )
        assert authority is not None
        return lambda payload: authority.authorise(command, json.loads(payload), payload)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    """It trusts the key `a`, which is made here."""
    pair(tmp_path)
    device = Device(tmp_path)
    yield device
    device.close()


def by_edged(key: Path, command: str, device: str, **fields: Any) -> bytes:
    root, _, name = device.rpartition("/")
    return sign_command(
        command,
        name,
        fields,
        key,
        now=time.time(),
        transaction=os.urandom(8).hex(),
        root=root or "edged",
    )


def by_script(key: Path, command: str, device: str, **fields: Any) -> bytes:
    arguments = [str(SCRIPT), str(key), device, command, *([json.dumps(fields)] if fields else [])]
    done = subprocess.run(arguments, capture_output=True, check=True, timeout=20)
    return done.stdout.rstrip(b"\n")


# --- keys ---


def test_a_new_key_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    done = edged("keys", "new", "-o", str(tmp_path / "my.key"))
    assert done.code == 0
    assert stat.S_IMODE((tmp_path / "my.key").stat().st_mode) == 0o600
    public = (tmp_path / "my.key.pub").read_text()
    assert public.startswith("-----BEGIN PUBLIC KEY-----")
    assert "PRIVATE" not in public


def test_a_key_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    before = pair(tmp_path).read_bytes()
    with pytest.raises(ConfigError, match="there already"):
        new_pair(tmp_path / "a")
    (tmp_path / "b.pub").write_text("mine")
    with pytest.raises(ConfigError, match="there already"):
        new_pair(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == before
    assert not (tmp_path / "b").exists()


def test_openssl_and_edged_read_each_others_keys(tmp_path: Path) -> None:
    ours, theirs = pair(tmp_path), tmp_path / "openssl.key"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", theirs], check=True)
    public = ["openssl", "pkey", "-pubout", "-out", f"{theirs}.pub", "-in", str(theirs)]
    subprocess.run(public, check=True)
    keys = Keys([tmp_path / "a.pub", tmp_path / "openssl.key.pub"])
    assert keys.signer(b"hello", sign(b"hello", theirs)) == tmp_path / "openssl.key.pub"
    assert keys.signer(b"hello", sign(b"hello", ours)) == tmp_path / "a.pub"
    assert keys.signer(b"hallo", sign(b"hello", ours)) is None


@pytest.mark.parametrize("what", ["nothing", "text", "private", "rsa"])
def test_what_is_no_public_key_is_named(tmp_path: Path, what: str) -> None:
    key = tmp_path / "key"
    if what == "text":
        key.write_text("no key")
    elif what == "private":
        pair(tmp_path, "key")
    elif what == "rsa":
        command = ["openssl", "genpkey", "-algorithm", "rsa", "-out", str(tmp_path / "rsa"), "-quiet"]
        subprocess.run(command, check=True, capture_output=True)
        subprocess.run(["openssl", "pkey", "-pubout", "-in", tmp_path / "rsa", "-out", key], check=True)
    with pytest.raises(ConfigError, match=r"key: (cannot be read|is no public key of Ed25519)"):
        Keys([key])


# --- commands ---


@pytest.mark.parametrize("make", [by_edged, by_script])
def test_a_signed_command_is_taken_once(device: Device, make: Callable[..., bytes]) -> None:
    key = device.folder / "a"
    payload = make(key, "wipe", "press-7", confirm="press-7", note='a "quoted" \\ µ', number=0.1)
    device.check(payload)
    with pytest.raises(RefusedError, match="accepted before"):
        device.check(payload)
    device.restart()
    with pytest.raises(RefusedError, match="accepted before"):
        device.check(payload)
    device.check(make(key, "wipe", "press-7"))


def test_every_byte_of_a_signed_command_counts(device: Device) -> None:
    payload = by_edged(device.folder / "a", "wipe", "press-7", confirm="press-7")
    check, taken = device.checker(require_signed="all"), []
    for place in range(len(payload)):
        for flip in (1, 32, 128):
            changed = bytearray(payload)
            changed[place] ^= flip
            try:
                check(bytes(changed))
            except (RefusedError, ValueError):  # ValueError: it is no JSON any more
                continue
            taken.append(bytes(changed))
    assert taken == []
    check(payload)


@pytest.mark.parametrize(
    ("command", "name"), [("rollback", "press-7"), ("wipe", "press-8"), ("wipe\npress-7", "press-7")]
)
def test_it_is_good_for_its_device_and_command_alone(device: Device, command: str, name: str) -> None:
    with pytest.raises(RefusedError, match="does not fit"):
        device.check(by_edged(device.folder / "a", command, name))


def test_a_key_that_is_not_trusted(device: Device) -> None:
    with pytest.raises(RefusedError, match="does not fit"):
        device.check(by_edged(pair(device.folder, "b"), "wipe", "press-7"))


@pytest.mark.parametrize(("off", "words"), [(-301, "s old"), (310, "ahead of this device's clock")])
def test_the_time_of_a_signature(device: Device, off: float, words: str) -> None:
    key = device.folder / "a"
    payload = sign_command("wipe", "press-7", {}, key, now=time.time() + off, transaction="t")
    with pytest.raises(RefusedError, match=words):
        device.check(payload)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ts": None}, "needs its time"),
        ({"ts": True}, "needs its time"),
        ({"ts": "now"}, "needs its time"),
        ({"transaction": ""}, "needs an id"),
        ({"transaction": 7}, "needs an id"),
        ({"transaction": "x" * 129}, "needs an id"),
    ],
)
def test_a_signed_command_has_a_time_and_an_id(device: Device, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        device.check(by_edged(device.folder / "a", "wipe", "press-7", **fields))


def test_what_needs_no_signature_passes_without_one_but_not_with_a_wrong_one(device: Device) -> None:
    device.check(b"{}", require_signed=["rollback"])
    for wrong in (b'{"signature": "no"}', b'{"signature": 7}', b'{"signature": "QUJD", "a": "QUJD"}'):
        with pytest.raises(RefusedError, match="not Base64 in its own field"):
            device.check(wrong, require_signed=["rollback"])
    with pytest.raises(RefusedError, match="must be signed"):
        device.check(b"{}", require_signed="all")


@pytest.mark.parametrize("command", sorted(REQUESTS))
def test_every_command_but_those_that_read_needs_a_signature_as_soon_as_there_are_keys(
    device: Device, command: str
) -> None:
    check = device.checker(command)
    if command in {"capabilities", "config.get", "labels.suspects", "ping", "status"}:
        check(b"{}")
        return
    with pytest.raises(RefusedError, match=f"{command}: this command must be signed"):
        check(b"{}")
    check(by_edged(device.folder / "a", command, "press-7"))


@pytest.mark.parametrize("other", ["pause", "weights.apply"])
def test_a_list_narrows_what_must_be_signed(device: Device, other: str) -> None:
    device.checker(other, require_signed=["wipe"])(b"{}")
    with pytest.raises(RefusedError, match="must be signed"):
        device.checker(require_signed=["wipe"])(b"{}")


def test_weights_come_in_by_the_keys_of_models_where_there_are_any(device: Device) -> None:
    maker = pair(device.folder, "maker")
    makers = [device.folder / "maker.pub"]
    settings: list[dict[str, Any]] = [{}, {"require_signed": []}, {"keys": []}]
    for rules in settings:
        check = device.checker("weights.apply", makers=makers, **rules)
        with pytest.raises(RefusedError, match=r"must be signed.*model\.keys"):
            check(b"{}")
        with pytest.raises(RefusedError, match=r"does not fit.*model\.keys"):
            check(by_edged(device.folder / "a", "weights.apply", "press-7"))
        check(by_edged(maker, "weights.apply", "press-7"))
    device.checker("pause", makers=makers, keys=[])(b"{}")
    with pytest.raises(RefusedError, match="does not fit"):
        device.checker("pause", makers=makers)(by_edged(maker, "pause", "press-7"))


@pytest.mark.parametrize("make", [by_edged, by_script])
def test_a_signature_counts_below_its_root_alone(device: Device, make: Callable[..., bytes]) -> None:
    key = device.folder / "a"
    payload = make(key, "wipe", "plant/b/press-7", confirm="press-7")
    for root in ("edged", "plant/a", "plant"):
        with pytest.raises(RefusedError, match="does not fit: of another key, root"):
            device.checker(root=root)(payload)
    device.checker(root="plant/b")(payload)


def test_signatures_that_nobody_could_make_are_an_error_of_the_configuration(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"features": 2, "classes": 2}, commands={"require_signed": "all"})
    with pytest.raises(ConfigError, match="keys"):
        load(path, {})
