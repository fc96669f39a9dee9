"""Models that cannot be loaded or stored, and pointers that cannot be moved: something always serves."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edged.device.promotion.model_store import BOOT_TRIES, LOADING
from edged.engines.inference import InferenceModel, InferenceReader
from edged.errors import ModelError, RefusedError, StorageError
from edged.storage.files.atomic import Disk
from edged.storage.models.registry import Registry
from tests.device.gates import Gate
from tests.device.linear import BAD, BROKEN, GOOD, candidate, inputs


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with closing(Gate(tmp_path, BAD)) as made:
        yield made


class Refusing(Disk):
    """A disk that refuses one operation on one name, as often as it is asked."""

    def __init__(self, operation: str, name: str) -> None:
        self._refused = (operation, name)

    def _ask(self, operation: str, path: Path) -> None:
        if self._refused == (operation, path.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def rename(self, source: Path, target: Path) -> None:
        self._ask("rename", target)
        super().rename(source, target)

    def sync(self, path: Path) -> None:
        self._ask("sync", path)
        super().sync(path)


def on(gate: Gate, disk: Disk) -> None:
    """Put the gate's registry on another disk."""
    gate.registry.close()
    gate.registry = Registry.open(gate.folder, disk=disk)
    gate.open_parts()


def test_a_champion_that_ends_the_process_while_it_is_loaded_is_given_up(gate: Gate) -> None:
    good = gate.crowned(GOOD, 1).version
    deadly = gate.crowned(BAD, 2).version
    for tries in range(1, BOOT_TRIES):
        # As a process leaves it that dies in the middle of loading.
        gate.registry.set_value(LOADING, {"version": deadly, "tries": tries})
        assert gate.reboot().version == deadly
        assert gate.registry.get_value(LOADING) is None
    gate.registry.set_value(LOADING, {"version": deadly, "tries": BOOT_TRIES})
    assert gate.reboot().version == good
    assert gate.registry.get(deadly).status == "rolled_back"
    assert gate.reboot().version == good


def test_a_champion_that_answers_nothing_sensible_gives_way_at_the_start(gate: Gate) -> None:
    for slope in (BROKEN, GOOD):
        staging = gate.candidates / f".staging-{slope}"
        staging.mkdir(parents=True)
        from tests.device.linear import write

        write(staging / "model.onnx", slope, outputs=2 if slope != GOOD else 5)
        record = gate.registry.add(staging, created=1.0, source="training")
        gate.registry.set_champion(record.version, "by mistake", 1.0)
        assert gate.reboot().version == 1


def test_a_full_disk_does_not_keep_the_start_from_passing_over_a_champion(gate: Gate) -> None:
    bad = gate.crowned(GOOD, 1).version
    gate.damage(bad)
    on(gate, Refusing("rename", "champion"))
    assert gate.models.boot(gate.base).version == 1
    assert gate.registry.champion() == bad, "the pointer could not be moved"
    assert gate.reboot().version == 1
    assert gate.registry.champion() == 1


def test_a_bundles_own_model_that_is_damaged_is_not_served(gate: Gate) -> None:
    """But what was served goes on: the registry has files and hashes of its own."""
    crowned = gate.crowned(GOOD, 1).version
    whole = hashlib.sha256(gate.base.read_bytes()).hexdigest()
    content = bytearray(gate.base.read_bytes())
    content[-1] ^= 1
    gate.base.write_bytes(content)
    assert gate.models.boot(gate.base, whole).version == crowned
    for version in (1, crowned):
        gate.damage(version)
    with pytest.raises(ModelError, match="the bundle's own model is damaged"):
        gate.models.boot(gate.base, whole)
    gate.base.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        gate.models.boot(gate.base, whole)


def test_a_model_that_hangs_while_it_is_loaded_is_passed_over(gate: Gate) -> None:
    import threading

    crowned = gate.crowned(GOOD, 1).version
    gate.settings["timeout"] = 0.5
    release = threading.Event()

    class Hanging(InferenceReader):
        def load(self, path: Path) -> InferenceModel:
            if path.parent.name == str(crowned):
                release.wait(20.0)
            return super().load(path)

    gate.open_parts(reader=Hanging())
    assert gate.models.boot(gate.base).version == 1
    release.set()


def test_a_pointer_that_moved_before_the_error_counts(gate: Gate) -> None:
    on(gate, Refusing("sync", "models"))
    verdict, model = gate.judge(candidate(gate.candidates, 1, GOOD))
    assert (verdict.accepted, model) == (False, None), "its own directory was not durable, either"
    on(gate, Disk())
    _, model = gate.consider(GOOD, run=2)
    assert model is not None
    on(gate, Refusing("sync", "models"))
    gate.models.set_champion(model.version, "better")
    assert gate.registry.champion() == model.version
    assert gate.reboot().version == model.version


def test_a_pointer_that_did_not_move_leaves_the_old_champion(gate: Gate) -> None:
    _, model = gate.consider(GOOD)
    assert model is not None
    on(gate, Refusing("rename", "champion"))
    with pytest.raises(StorageError, match="No space left"):
        gate.models.set_champion(model.version, "better")
    verdict = gate.models.withdraw(model.version, "disk full")
    assert gate.registry.get(model.version).status == "rejected"
    assert gate.registry.get(model.version).verdict == verdict
    assert gate.reboot().version == 1


def test_a_candidate_that_cannot_be_stored_is_refused_and_does_not_stay(gate: Gate) -> None:
    on(gate, Refusing("rename", "2"))
    verdict, model = gate.judge(candidate(gate.candidates, 1, GOOD))
    assert model is None
    assert verdict.reasons[0].startswith("storing failed")
    assert "No space left" in verdict.reasons[0]
    assert not list(gate.candidates.iterdir())


def test_when_all_others_are_damaged_a_rollback_ends_on_the_bundles_own_model(gate: Gate) -> None:
    last = gate.crowned(GOOD, 1).version
    gate.damage(1)
    back = gate.models.roll_back(last, "it fails")
    assert gate.registry.get(back.version).source == "bundle"
    assert gate.registry.champion() == back.version
    assert gate.registry.get(last).status == "rolled_back"
    assert np.isfinite(back.model.predict(inputs(3))).all()
    with pytest.raises(RefusedError):
        gate.models.roll_back(back.version, "it fails, too")


def test_the_predecessor_of_an_unproven_champion_is_loaded_again(gate: Gate) -> None:
    assert gate.models.unproven(1) is None, "the first model has none"
    version = gate.crowned(GOOD, 1).version
    gate.reboot()
    previous = gate.models.unproven(version)
    assert previous is not None
    assert previous.version == 1
    assert gate.models.unproven(1) is None, "it does not serve"
    gate.models.confirm(version)
    assert gate.models.unproven(version) is None, "it has proved itself"
    after = gate.crowned(BAD, 2).version
    gate.models.roll_back(after, "it fails")
    assert gate.models.unproven(version) is None, "it came back by a rollback"


def test_a_damaged_predecessor_costs_the_probation_alone(gate: Gate) -> None:
    version = gate.crowned(GOOD, 1).version
    gate.damage(1)
    assert gate.reboot().version == version
    assert gate.models.unproven(version) is None
