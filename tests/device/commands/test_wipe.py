"""`edged wipe`: what was asked for is in no file of the state directory, and the device goes on."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.config import loader
from edged.device.admin.local_training import train_once
from edged.device.admin.models import on_models
from edged.device.admin.status import status_of
from edged.device.admin.wiping import wipe
from edged.device.startup.bootstrap import open_samples
from edged.domain.stream.sample import Batch, Rejected
from edged.errors import ConfigError, RefusedError
from edged.storage.files.atomic import DirectoryLock
from edged.storage.models.bundles import Bundle
from edged.storage.models.registry import Registry
from tests.commands import edged, two_classes, write_config

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.config import Config

ROWS = 600
STREAM = {"features": 4, "classes": 2}


class Rig:
    """A device that has learned from samples that can be recognised by their bytes."""

    x: NDArray[np.float32]
    ids: list[str]
    refused: bytes

    def __init__(self, folder: Path, copy: Rig | None = None) -> None:
        self.path = write_config(folder, STREAM, training={"engine": "portable"})
        self.config: Config = loader.load(self.path, {})
        self.state = self.config.storage.dir
        if copy is not None:
            shutil.copytree(copy.state, self.state)
            self.x, self.ids, self.refused = copy.x, copy.ids, copy.refused
            return
        self.state.mkdir(exist_ok=True)
        x, y = two_classes(ROWS)
        # Low bits of the mantissa: they change nothing that could be learned.
        noise = np.random.default_rng().integers(0, 4096, x.shape, np.uint32)
        self.x = (x.view(np.uint32) ^ noise).view(np.float32)
        self.ids = [secrets.token_hex(12) for _ in range(ROWS)]
        self.refused = secrets.token_bytes(2000)
        self.feed(y)

    def feed(self, y: Any) -> None:
        """Store the samples; labels as the daemon would have them."""
        with open_samples(self.config) as log:
            offsets, t = log.next_offset() + np.arange(ROWS), np.full(ROWS, 1.7e9)
            batch = Batch(offsets, ["k"] * ROWS, t, t, self.x, y.astype(float).tolist(), list(self.ids))
            log.commit(batch, [], [Rejected(1.7e9, "t", "not_json", self.refused, "no")])

    def found(self) -> dict[str, int]:
        """In which files bytes of the samples are, and of how many."""
        needles = [
            *(row.tobytes() for row in self.x),
            *(name.encode() for name in self.ids),
            self.refused[:64],
        ]
        counts = {}
        for path in sorted(self.state.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                counts[str(path.relative_to(self.state))] = sum(needle in content for needle in needles)
        return {name: count for name, count in counts.items() if count}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    made = Rig(tmp_path_factory.mktemp("first"))
    train_once(made.config)
    return made


@pytest.fixture
def rig(first: Rig, tmp_path: Path) -> Rig:
    return Rig(tmp_path, first)


def test_samples_are_in_no_file_and_the_device_learns_on(rig: Rig) -> None:
    assert rig.found()["samples.db"] > ROWS, "else nothing would be shown"
    left = rig.state / "samples.db.damaged-20260101"
    left.write_bytes(rig.x.tobytes())
    gone = wipe(rig.config, ["samples"])
    assert gone.to_json() == {"samples": ROWS, "labels": ROWS, "quarantined": 1}
    assert rig.found() == {}
    assert not left.exists()
    status = status_of(rig.config)
    assert (status.samples, status.evicted, status.model.version) == (ROWS, ROWS, 2)
    rig.feed(two_classes(ROWS)[1])
    assert train_once(rig.config).result.samples > ROWS // 2


def test_labels_go_and_nothing_can_be_learned(rig: Rig) -> None:
    assert wipe(rig.config, ["labels"]).labels == ROWS
    with open_samples(rig.config) as log:
        assert len(log.training_window(0, ROWS)) == 0
        assert log.counters().rows == ROWS


def test_without_checkpoints_the_learner_begins_anew_with_what_is_there(rig: Rig) -> None:
    # A first run has 1140 steps: one at its beginning, every 500, at its end, of which three are kept.
    assert wipe(rig.config, ["checkpoints"]).to_json() == {"checkpoints": 3}
    assert not (rig.state / "checkpoints").exists()
    assert train_once(rig.config).result.samples > ROWS // 2


def test_of_models_the_bundles_own_is_left_and_serves(rig: Rig) -> None:
    on_models(rig.config, "pin", 2, None)
    assert wipe(rig.config, ["models"]).to_json() == {"models": 2}
    listed = on_models(rig.config, "list", None, None)
    assert isinstance(listed, list)
    (model,) = listed
    record = model.record
    assert (record.version, record.source, model.champion, record.pinned) == (
        3,
        "bundle",
        True,
        False,
    )
    assert [path.name for path in (rig.state / "models").iterdir() if path.is_dir()] == ["3"]
    with Registry.open(rig.state) as registry:
        base = Bundle.open(rig.state / "bundle").inference_model
        assert registry.verify(3).read_bytes() == base.read_bytes()


def test_all_leaves_the_bundle_alone_and_nothing_else(rig: Rig) -> None:
    (rig.state / "notes.txt").write_text("of the operator", encoding="utf-8")
    answer = wipe(rig.config, ["all"])
    audit = ["audit-1.jsonl", "audit.head"]  # that it was wiped is part of it
    assert answer.kept == (*audit, "bundle", "bundle.hidden.json", "edged.lock", "notes.txt")
    assert (answer.files or 0) > 10
    assert rig.found() == {}
    assert status_of(rig.config).samples == 0
    rig.feed(two_classes(ROWS)[1])
    assert train_once(rig.config).version == 2


def test_while_a_daemon_runs_it_is_refused(rig: Rig) -> None:
    with DirectoryLock(rig.state), pytest.raises(RefusedError, match="another edged is using"):
        wipe(rig.config, ["all"])
    assert rig.found()["samples.db"] > ROWS


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = loader.load(write_config(tmp_path, STREAM), {})
    with pytest.raises(ConfigError, match=r"storage\.dir"):
        wipe(config, ["all"])
    assert not config.storage.dir.exists()


def test_labels_that_are_the_samples_cannot_go_alone(tmp_path: Path) -> None:
    config = loader.load(write_config(tmp_path, {"features": 4, "task": "reconstruct"}), {})
    config.storage.dir.mkdir()
    with pytest.raises(ConfigError, match="--samples"):
        wipe(config, ["labels"])


@pytest.mark.slow
def test_the_command_asks_before_it_erases(rig: Rig) -> None:
    nothing = edged("wipe", rig.path)
    assert (nothing.code, "--samples" in nothing.problem) == (2, True)
    unasked = edged("wipe", rig.path, "--samples")
    assert (unasked.code, "--yes" in unasked.problem) == (2, True)
    assert rig.found()["samples.db"] > ROWS
    done = edged("wipe", rig.path, "--samples", "--labels", "--yes", "--json")
    assert done.code == 0, done.err
    assert done.json == {"samples": ROWS, "labels": ROWS, "quarantined": 1}
    assert rig.found() == {}
