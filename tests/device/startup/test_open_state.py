"""Opening a state directory: what a start survives, and what it leaves open when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.clock import VirtualClock
from edged.device.startup.open_state import open_state
from edged.errors import CorruptError, StorageError
from edged.storage.files.atomic import DirectoryLock
from edged.storage.models.bundle_archive import pack_bundle
from edged.storage.models.bundles import Bundle
from tests.crash.rig import config_of, make_bundle, opened


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    make_bundle(tmp_path / "bundle")
    return tmp_path / "bundle"


def test_with_a_damaged_bundle_serving_goes_on(tmp_path: Path, bundle: Path) -> None:
    opened(tmp_path, bundle).close()
    (bundle / "inference_model.onnx").write_bytes(b"x")
    state = opened(tmp_path, bundle)
    (line,) = state.recovery.repaired
    assert line.endswith("serving continues, training cannot")
    assert "inference_model.onnx" in line
    state.close()


def test_a_file_too_many_keeps_nobody_from_serving(tmp_path: Path, bundle: Path) -> None:
    (bundle / "notes.txt").write_text("of mine")
    state = opened(tmp_path, bundle)
    (line,) = state.recovery.repaired
    assert "notes.txt: this file is not part of the bundle" in line
    state.close()


def test_of_a_bundle_file_the_directory_is_made_once(tmp_path: Path, bundle: Path) -> None:
    packed = tmp_path / "press.edged"
    pack_bundle(bundle, packed)
    places = []
    for _ in range(2):
        state = opened(tmp_path, packed)
        places.append((state.bundle.path, (state.bundle.path / "bundle.json").stat().st_mtime_ns))
        assert not state.recovery.repaired
        state.close()
    assert places[0] == places[1]
    (place, _), _ = places
    damaged = place / "inference_model.onnx"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    state = opened(tmp_path, packed)
    assert (state.bundle.fingerprint, state.bundle.path) == (Bundle.open(bundle).fingerprint, place)
    state.close()
    (bundle / "bundle.sig").write_bytes(bytes(64))
    pack_bundle(bundle, packed)
    state = opened(tmp_path, packed)
    state.close()
    assert state.bundle.path != place
    assert [state.bundle.path] == list(place.parent.iterdir())


def test_a_damaged_bundle_file_is_not_begun_with(tmp_path: Path, bundle: Path) -> None:
    packed = tmp_path / "press.edged"
    pack_bundle(bundle, packed)
    packed.write_bytes(packed.read_bytes()[:-1])
    with pytest.raises(CorruptError, match="no bundle file"):
        opened(tmp_path, packed)
    assert list((tmp_path / "lib" / "state" / "unpacked").iterdir()) == []


def test_with_an_unreadable_description_it_does_not_start_and_leaves_nothing_open(
    tmp_path: Path, bundle: Path
) -> None:
    (bundle / "bundle.json").write_bytes(b"{")
    with pytest.raises(CorruptError, match=r"bundle\.json"):
        opened(tmp_path, bundle)
    assert DirectoryLock.holder(tmp_path / "lib" / "state") is None


def test_a_state_directory_in_use_is_not_touched(tmp_path: Path, bundle: Path) -> None:
    state = opened(tmp_path, bundle)
    left = tmp_path / "lib" / "state" / ".staging-running"
    left.mkdir()
    with pytest.raises(StorageError, match="another edged is using this state directory"):
        open_state(config_of(tmp_path, bundle), VirtualClock())
    assert left.exists()
    state.close()
    again = opened(tmp_path, bundle)
    assert again.recovery.reason == "clean_stop"
    again.close()
