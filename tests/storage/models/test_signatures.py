"""Signed bundles: of one that is not exactly as it was signed nothing is used, and one line says why."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edged.bundles.graph.templates import mlp
from edged.clock import SystemClock
from edged.config.loader import load
from edged.device.admin.local_training import train_once
from edged.device.startup.open_state import open_state
from edged.domain.training.message import encode
from edged.domain.training.trainer_messages import Setup
from edged.errors import BundleError, ConfigError, EdgedError, RefusedError
from edged.signing import new_pair, sign
from edged.storage.models.bundles import Bundle, seal
from edged.storage.models.signatures import open_bundle, sign_bundle
from tests.building import build
from tests.commands import edged, write_config


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed bundle, the key, and another key."""
    folder = tmp_path_factory.mktemp("shop")
    for name in ("key", "other"):
        new_pair(folder / name)
    build(mlp(4, 2, [8]), folder / "bundle", loss="cross_entropy")
    sign_bundle(folder / "bundle", folder / "key")
    return folder


@pytest.fixture
def delivered(shop: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return shutil.copytree(shop / "bundle", tmp_path / "bundle")


def refused(bundle: Path, key: Path) -> str:
    with pytest.raises(RefusedError) as problem:
        open_bundle(bundle, [key])
    line = problem.value.line()
    assert "\n" not in line
    return line


def test_as_it_was_signed_it_is_taken(shop: Path, delivered: Path) -> None:
    bundle = open_bundle(delivered, [shop / "other.pub", shop / "key.pub"])
    assert bundle.fingerprint == open_bundle(shop / "bundle", []).fingerprint


@pytest.mark.parametrize(
    ("every", "of_each"), [(9, 20), pytest.param(1, 1000, marks=pytest.mark.faults)], ids=["short", "long"]
)
def test_any_byte_that_changed_is_noticed(shop: Path, delivered: Path, every: int, of_each: int) -> None:
    """All bytes of the signature; every so many of bundle.json, and some of each other file with its last."""
    steps = {"bundle.sig": 1, "bundle.json": every}
    tried = 0
    for file in sorted(delivered.iterdir()):
        content = file.read_bytes()
        step = steps.get(file.name, max(1, len(content) // of_each))
        for place in {*range(0, len(content), step), len(content) - 1}:
            changed = bytearray(content)
            changed[place] ^= 1 << place % 8
            file.write_bytes(changed)
            assert refused(delivered, shop / "key.pub")
            tried += 1
        file.write_bytes(content)
    assert tried > 300
    open_bundle(delivered, [shop / "key.pub"])


def without_signature(bundle: Path) -> None:
    (bundle / "bundle.sig").unlink()


def with_a_longer_signature(bundle: Path) -> None:
    with (bundle / "bundle.sig").open("ab") as file:
        file.write(b"\n")


def without_a_file(bundle: Path) -> None:
    (bundle / "step_eval_model.onnx").unlink()


def with_another_file(bundle: Path) -> None:
    (bundle / "more.onnx").write_bytes(b"")


def with_a_directory(bundle: Path) -> None:
    (bundle / "more").mkdir()


def cut_off(bundle: Path) -> None:
    content = (bundle / "inference_model.onnx").read_bytes()
    (bundle / "inference_model.onnx").write_bytes(content[:-1])


def with_files_exchanged(bundle: Path) -> None:
    (bundle / "step_eval_model.onnx").replace(bundle / "x")
    (bundle / "step_model.onnx").replace(bundle / "step_eval_model.onnx")
    (bundle / "x").replace(bundle / "step_model.onnx")


def sealed_again(bundle: Path) -> None:
    """As someone would who can compute hashes but has no key."""
    whole = Bundle.open(bundle)
    (bundle / "inference_model.onnx").write_bytes(b"weights of my own")
    seal(whole, whole.files)


def with_a_manifest_written_anew(bundle: Path) -> None:
    """The same values, in other bytes."""
    file = bundle / "bundle.json"
    file.write_text(file.read_text() + " ")


CHANGES = (
    without_signature,
    with_a_longer_signature,
    without_a_file,
    with_another_file,
    with_a_directory,
    cut_off,
    with_files_exchanged,
    sealed_again,
    with_a_manifest_written_anew,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_was_changed_is_refused(shop: Path, delivered: Path, change: Callable[[Path], None]) -> None:
    change(delivered)
    assert str(delivered) in refused(delivered, shop / "key.pub")


def test_another_key(shop: Path, delivered: Path) -> None:
    assert "another key" in refused(delivered, shop / "other.pub")
    sign_bundle(delivered, shop / "other")
    assert "another key" in refused(delivered, shop / "key.pub")


def test_a_signed_command_is_no_signed_bundle(shop: Path, delivered: Path) -> None:
    """The same key signs both: what is signed says what it is for."""
    manifest = (delivered / "bundle.json").read_bytes()
    (delivered / "bundle.sig").write_bytes(sign(manifest, shop / "key"))
    assert "does not fit" in refused(delivered, shop / "key.pub")


def test_only_what_is_whole_is_signed(shop: Path, delivered: Path) -> None:
    with_another_file(delivered)
    with pytest.raises(BundleError, match="not part of the bundle"):
        sign_bundle(delivered, shop / "key")
    cut_off(delivered)
    with pytest.raises(EdgedError, match="not what bundle"):
        sign_bundle(delivered, shop / "key")


def test_openssl_agrees(shop: Path, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_bytes(b"edged-bundle-1\n" + (shop / "bundle" / "bundle.json").read_bytes())
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-rawin", "-inkey", str(shop / "key.pub")]
    subprocess.run(
        [*command, "-in", message, "-sigfile", shop / "bundle" / "bundle.sig"],
        check=True,
        capture_output=True,
    )


@pytest.mark.slow
def test_the_commands(shop: Path, delivered: Path) -> None:
    without_signature(delivered)
    refusal = edged("artifacts", "verify", delivered, "--key", shop / "key.pub")
    assert (refusal.code, "not signed" in refusal.problem) == (3, True)
    assert edged("artifacts", "sign", delivered, "--key", shop / "key").code == 0
    signed = edged("artifacts", "verify", delivered, "--key", shop / "key.pub", "--json")
    assert signed.json["signed"] is True


@pytest.mark.slow
def test_only_force_replaces_the_signature_of_another_key(shop: Path, delivered: Path) -> None:
    signature = (delivered / "bundle.sig").read_bytes()
    other = ("artifacts", "sign", delivered, "--key", shop / "other")
    refusal = edged(*other)
    assert (refusal.code, "--force" in refusal.problem) == (2, True)
    assert (delivered / "bundle.sig").read_bytes() == signature
    assert edged("artifacts", "sign", delivered, "--key", shop / "key", "--version", 7).code == 0
    assert edged(*other, "--force").code == 0
    assert edged("artifacts", "verify", delivered, "--key", shop / "other.pub").code == 0


def test_a_device_uses_nothing_of_a_bundle_that_was_changed(
    shop: Path, delivered: Path, tmp_path: Path
) -> None:
    """The daemon's start, a run in the foreground, and the trainer each look for themselves."""
    model = {"bundle": str(delivered), "keys": [str(shop / "key.pub")]}
    config = load(write_config(tmp_path, {"features": 4, "classes": 2}, model=model), {})
    open_state(config, SystemClock()).close()
    cut_off(delivered)
    with pytest.raises(RefusedError, match="not as it was signed"):
        open_state(config, SystemClock())
    with pytest.raises(RefusedError, match="not as it was signed"):
        train_once(config)
    order = encode(Setup(json.dumps(config.model_dump(mode="json")))).decode()
    trainer = [sys.executable, "-m", "edged.trainer"]
    done = subprocess.run(trainer, input=order, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "not as it was signed" in done.stdout) == (3, True), done


def test_keys_without_a_bundle_are_an_error_of_the_configuration(shop: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, {"features": 4, "classes": 2}, model={"keys": [str(shop / "key.pub")]})
    with pytest.raises(ConfigError, match="name it in bundle"):
        load(config, {})
