"""What a start finds and mends before any part opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.device.startup.recovery import (
    OFFSET_MARGIN,
    Recovery,
    UnfinishedRun,
    recover,
    renumber,
    unfinished,
)
from edged.errors import StorageError
from edged.storage.files.atomic import STAGING
from edged.storage.models import bundles
from edged.storage.models.bundles import Bundle
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import Registry
from tests.crash.rig import make_bundle
from tests.storage.stream import batch, open_log


def start(state: Path, boot_id: str = "a") -> Recovery:
    return recover(state, boot_id=boot_id, now=1_700_000_000.0, check_seconds=30.0)


def leave(path: Path) -> Path:
    """Something half-written."""
    path.mkdir(parents=True)
    (path / "half").write_bytes(b"x")
    return path


def publish(state: Path, **learner: Any) -> Checkpoints:
    checkpoints = Checkpoints(state / "checkpoints", 3)
    values = {"consumed": 0, "plan": None, "excluded": []} | learner
    memory = np.array(values.pop("memory", []), np.int64)
    checkpoints.publish(checkpoints.stage(), {"learner": values}, {"memory_ids": memory})
    return checkpoints


def test_a_first_start_repairs_nothing(tmp_path: Path) -> None:
    for boot_id, reason in (("a", "first_start"), ("a", "crash"), ("b", "power_cut")):
        found = start(tmp_path / "lib" / "state", boot_id)
        assert (found.reason, found.repaired) == (reason, [])


def test_what_was_never_published_is_removed_and_told(tmp_path: Path) -> None:
    left = [
        leave(tmp_path / f"{STAGING}choice"),
        leave(tmp_path / "candidates" / f"{STAGING}7"),
        leave(tmp_path / "checkpoints" / f"{STAGING}generation"),
        leave(tmp_path / "exports" / f"{STAGING}9-model.onnx-1f"),
        leave(tmp_path / "models" / f"{STAGING}3"),
        leave(tmp_path / "rounds" / f"{STAGING}12"),
    ]
    found = start(tmp_path)
    assert not any(path.exists() for path in left)
    assert found.repaired == [
        f"removed {path.relative_to(tmp_path)}, which was never published" for path in left
    ]


@pytest.mark.parametrize("name", ["samples.db", "state.db"])
def test_a_damaged_database_is_set_aside(tmp_path: Path, name: str) -> None:
    open_log(tmp_path).close()
    Registry.open(tmp_path).close()
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    (note,) = start(tmp_path).repaired
    assert note.startswith(f"{name} was set aside as {name}.damaged-20231114T221320Z: ")
    assert not (tmp_path / name).exists()
    assert (tmp_path / f"{name}.damaged-20231114T221320Z").read_bytes() == whole[: len(whole) // 2]
    assert start(tmp_path).repaired == []


def replaced(folder: Path, *, cut_after: int) -> Bundle:
    """A bundle that was being replaced by another when the power went: `cut_after` renames were done."""
    old, new = folder / "bundle", folder / f"{STAGING}bundle-new"
    make_bundle(old)
    make_bundle(new)
    bundle = Bundle.open(old)
    if cut_after >= 1:
        old.rename(folder / f"{STAGING}bundle-old")
    if cut_after >= 2:
        new.rename(old)
    return bundle


@pytest.mark.parametrize("cut_after", [0, 1, 2])
def test_a_bundle_whose_replacement_was_cut_off_is_there(tmp_path: Path, cut_after: int) -> None:
    bundle = replaced(tmp_path, cut_after=cut_after)
    found = start(tmp_path)
    assert Bundle.open(tmp_path / "bundle").fingerprint == bundle.fingerprint
    assert ("the bundle bundle was put back in its place" in found.repaired) == (cut_after == 1)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(STAGING)]


def test_only_a_whole_bundle_is_put_back(tmp_path: Path) -> None:
    replaced(tmp_path, cut_after=1)
    for name in ("new", "old"):
        (tmp_path / f"{STAGING}bundle-{name}" / "inference_model.onnx").write_bytes(b"half")
    assert not bundles.finish_interrupted(tmp_path / "bundle")


def test_a_log_that_was_lost_goes_on_behind_what_is_known_of_it(tmp_path: Path) -> None:
    plan = {"run": 1, "trigger": "labels", "after": 70, "upto": 90, "steps": 5, "learning_rate": 0.1}
    checkpoints = publish(tmp_path, consumed=70, plan=plan, memory=[3, 400], excluded=[401])
    with Registry.open(tmp_path) as registry, open_log(tmp_path, holdout=0.0) as log:
        assert (
            renumber(log, registry, checkpoints)
            == f"the sample log begins again at offset {401 + OFFSET_MARGIN}"
        )
        assert log.next_offset() == 401 + OFFSET_MARGIN
        assert log.last_seq() == 90
        log.commit(batch(log.next_offset(), 5, labelled=True))
        assert log.labelled_since(90) == 5, "new labels count as new"
        assert renumber(log, registry, checkpoints) is None
        with pytest.raises(StorageError, match="its own numbering"):
            log.continue_from(10**9, 10**9)


def test_the_registry_alone_tells_where_a_log_had_come(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry, open_log(tmp_path) as log:
        registry.set_value("consumed", 55)
        assert renumber(log, registry, Checkpoints(tmp_path / "checkpoints", 3)) is not None
        assert (log.next_offset(), log.last_seq()) == (OFFSET_MARGIN, 55)


def test_a_new_device_begins_at_one(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry, open_log(tmp_path) as log:
        assert renumber(log, registry, Checkpoints(tmp_path / "checkpoints", 3)) is None
        assert log.next_offset() == 1


def test_a_run_that_was_cut_off_is_known_by_its_checkpoint(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        assert unfinished(Checkpoints(tmp_path / "checkpoints", 3), registry) is None
        plan = {"run": 4, "upto": 5}
        assert unfinished(publish(tmp_path, plan=plan), registry) == UnfinishedRun(4, trained=False)
        assert unfinished(publish(tmp_path, plan=None), registry) is None
        trained = publish(tmp_path, plan=None, finished=plan)
        assert unfinished(trained, registry) == UnfinishedRun(4, trained=True)
        registry.record_judged(4)
        assert unfinished(trained, registry) is None
