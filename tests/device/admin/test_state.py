"""Commands on a state directory: one training run, the registry, and what is told about both."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged import __version__
from edged.config import loader
from edged.device.admin.local_training import train_once
from edged.device.admin.models import on_models
from edged.device.admin.status import status_of
from edged.device.learning.scheduler import BACKOFF
from edged.device.reports import ModelStatus, TrainingStatus
from edged.device.startup.bootstrap import open_samples
from edged.domain.stream.sample import Batch
from edged.domain.stream.temporal_context import pad
from edged.engines.inference import InferenceModel
from edged.engines.runtime import ort
from edged.errors import ConfigError, EdgedError, RefusedError, StorageError
from edged.storage.files.atomic import DirectoryLock
from edged.storage.journal.journal import RunRecord
from edged.storage.models.bundles import Bundle
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import Registry
from tests.commands import COMMAND, edged, two_classes, write_config
from tests.constants import loaded
from tests.device.partners import Observer
from tests.running_device import wait_until

if TYPE_CHECKING:
    from edged.config import Config
    from edged.domain.training.trainer_messages import RunProgress

STREAM = {"features": 4, "classes": 2}
ROWS = 600


def prepare(folder: Path, rows: int = ROWS, **sections: Any) -> Path:
    """A configuration whose sample log holds labelled samples."""
    path = write_config(folder, STREAM, **sections)
    config = loader.load(path, {})
    config.storage.dir.mkdir(exist_ok=True)
    add(config, rows)
    return path


def add(config: Config, rows: int, seed: int = 0) -> None:
    """Store labelled samples, as the daemon would."""
    x, y = two_classes(rows, seed=seed)
    log = open_samples(config)
    offsets = log.next_offset() + np.arange(rows)
    nothing: list[Any] = [None] * rows
    t = np.zeros(rows)
    log.commit(Batch(offsets, ["k"] * rows, t, t, x, y.astype(float).tolist(), nothing, nothing))
    log.close()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return loader.load(prepare(tmp_path), {})


def models(config: Config, action: str, version: int | None, out: Path | None) -> Any:
    """What `edged models --json` prints."""
    answer = on_models(config, action, version, out)
    return [one.to_json() for one in answer] if isinstance(answer, list) else answer.to_json()


def line_of(error: pytest.ExceptionInfo[EdgedError]) -> str:
    line = error.value.line()
    assert "\n" not in line
    return line


# ---- status --------------------------------------------------------------------------------------


def test_status_of_a_device_that_never_ran_is_all_zeros(tmp_path: Path) -> None:
    status = status_of(loader.load(write_config(tmp_path, STREAM), {}))
    assert {getattr(status, key) for key in ("samples", "labels", "quarantined", "evicted")} == {0}
    assert status.state == "stopped"
    assert status.model == ModelStatus()
    assert status.training == TrainingStatus()
    assert status.outbox.to_json() == {"pending": 0, "bytes": 0, "dropped": 0}


def test_a_run_is_seen_in_the_status(config: Config) -> None:
    progress: list[RunProgress] = []
    result = train_once(config, observer=Observer(progress.append))
    assert result.verdict.accepted
    assert result.version == result.champion == 2
    assert (result.result.loss_last or 1.0) < (result.result.loss_first or 0.0)
    assert progress[-1].step == progress[-1].steps == result.result.steps
    status = status_of(config)
    assert (status.samples, status.labels) == (ROWS, ROWS)
    assert status.model.version == 2
    assert status.training.runs == 1
    assert isinstance(status.training.last, RunRecord)
    assert status.training.last.outcome == "done"
    assert status.training.last.result is not None
    assert status.training.last.result["steps"] == result.result.steps


@pytest.mark.full
def test_what_was_learned_is_not_learned_again(config: Config) -> None:
    first = train_once(config)
    add(config, 200, seed=1)
    second = train_once(config)
    assert (second.result.first_offset or 0) > (first.result.last_offset or 0) > 0
    assert second.result.samples < 200 < first.result.samples
    assert status_of(config).training.runs == 2


def test_without_samples_a_run_says_so(tmp_path: Path) -> None:
    config = loader.load(write_config(tmp_path, STREAM), {})
    with pytest.raises(EdgedError) as caught:
        train_once(config)
    assert "no labelled sample" in line_of(caught)
    last = status_of(config).training.last
    assert last is not None
    assert last.outcome == "no_data"


@pytest.mark.full
def test_a_model_of_before_serves_until_the_new_standard_network_is_better(tmp_path: Path) -> None:
    old = loader.load(prepare(tmp_path, model={"network": "mlp"}), {})
    assert train_once(old).champion == 2
    shutil.rmtree(old.storage.dir / "bundle")
    config = loaded(tmp_path, STREAM, gate={"min_gain": 0.0, "significance": 0.001})
    add(config, 400, seed=1)
    result = train_once(config)
    assert Bundle.open(config.storage.dir / "bundle").context
    assert result.verdict.accepted
    widths = {v: InferenceModel(Path(models(config, "show", v, None)["path"])).input_width for v in (2, 3)}
    assert (widths, status_of(config).model.version) == ({2: 4, 3: 16}, 3)
    assert models(config, "rollback", None, None) == {"from": 3, "to": 2}


# ---- the registry --------------------------------------------------------------------------------


def test_models_are_listed_shown_and_exported(config: Config, tmp_path: Path) -> None:
    train_once(config)
    listed = models(config, "list", None, None)
    assert [(m["version"], m["source"], m["champion"]) for m in listed] == [
        (1, "bundle", False),
        (2, "training", True),
    ]
    shown = models(config, "show", 2, None)
    assert {k: v for k, v in shown.items() if k != "path"} == listed[1]
    assert models(config, "export", 2, tmp_path / "out.onnx")["version"] == 2
    told = ort.session(str(tmp_path / "out.onnx")).get_modelmeta().custom_metadata_map
    record, created = listed[1], datetime.fromtimestamp(listed[1]["created"], timezone.utc)
    context = {"edged.context": json.dumps(list(Bundle.open(config.storage.dir / "bundle").context))}
    assert told == context | {
        "edged.version": __version__, "edged.model_version": "2", "edged.parent": "1", "edged.run": "1",
        "edged.source": "training", "edged.created": created.isoformat(timespec="seconds"),
        **{f"edged.{name}": str(record["data"][name]) for name in ("samples", "first_offset", "last_offset")},
        "edged.bundle": record["data"]["bundle"],
    }  # fmt: skip
    stored = config.storage.dir / "models" / "2"
    assert edged("artifacts", "export", stored, "-o", tmp_path / "again.onnx").code == 0
    assert ort.session(str(tmp_path / "again.onnx")).get_modelmeta().custom_metadata_map == told
    x, y = two_classes(200, seed=9)
    model = InferenceModel(tmp_path / "out.onnx")
    x = pad(x, model.input_width)
    exported = model.predict(x)
    assert np.array_equal(exported, InferenceModel(Path(shown["path"])).predict(x))
    assert (exported.argmax(axis=1) == y).mean() > 0.9


def test_rolling_back_and_forth(config: Config) -> None:
    train_once(config)
    assert models(config, "rollback", None, None) == {"from": 2, "to": 1}
    assert status_of(config).model.version == 1
    assert models(config, "rollback", 2, None) == {"from": 1, "to": 2}
    assert status_of(config).model.version == 2


@pytest.mark.full
def test_a_pinned_model_stays_whatever_is_trained(config: Config) -> None:
    train_once(config)
    assert models(config, "pin", 1, None) == {"pinned": 1}
    assert status_of(config).model.version == 1
    add(config, 200, seed=1)
    refused = train_once(config)
    assert not refused.verdict.accepted
    assert "pinned" in refused.verdict.reasons[0]
    assert (refused.version, refused.champion) == (None, 1)
    models(config, "pin", 2, None)
    assert [m["version"] for m in models(config, "list", None, None) if m["pinned"]] == [2]
    assert models(config, "unpin", None, None) == {"pinned": None}
    add(config, 200, seed=2)
    assert not [m for m in models(config, "list", None, None) if m["pinned"]]
    assert train_once(config).verdict.numbers["holdout"] > 20


@pytest.mark.parametrize(
    ("action", "version", "error", "hint"),
    [
        ("show", None, ConfigError, "version is missing"),
        ("pin", None, ConfigError, "version is missing"),
        ("export", 1, ConfigError, "-o model.onnx"),
        ("remove", 1, ConfigError, "list, show, rollback"),
        ("show", 77, StorageError, "77"),
        ("pin", 77, StorageError, "no model version 77"),
        ("rollback", 77, RefusedError, "77"),
        ("rollback", 2, RefusedError, "serving already"),
    ],
)
def test_what_cannot_be_done_with_a_model_is_said_and_changes_nothing(
    trained: Config, action: str, version: int | None, error: type[EdgedError], hint: str
) -> None:
    before = models(trained, "list", None, None)
    with pytest.raises(error) as caught:
        models(trained, action, version, None)
    assert hint in line_of(caught)
    assert models(trained, "list", None, None) == before


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A state directory with two models; its tests change nothing."""
    config = loader.load(prepare(tmp_path_factory.mktemp("trained")), {})
    train_once(config)
    return config


def test_an_export_that_cannot_be_written_says_where(trained: Config, tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        models(trained, "export", 2, tmp_path / "none" / "model.onnx")
    assert str(tmp_path / "none") in line_of(caught)


def test_a_damaged_model_is_neither_shown_nor_exported(config: Config, tmp_path: Path) -> None:
    train_once(config)
    path = config.storage.dir / "models" / "2" / "model.onnx"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for action in ("show", "export"):
        with pytest.raises(StorageError) as caught:
            models(config, action, 2, tmp_path / "out.onnx")
        assert "model.onnx" in line_of(caught)
    assert not (tmp_path / "out.onnx").exists()


def test_without_a_registry_there_is_nothing_to_list(tmp_path: Path) -> None:
    config = loader.load(write_config(tmp_path, STREAM), {})
    with pytest.raises(ConfigError, match="no registry yet"):
        models(config, "list", None, None)


@pytest.mark.parametrize("action", ["rollback", "pin", "unpin"])
def test_the_registry_of_a_running_daemon_is_only_read(trained: Config, action: str) -> None:
    with DirectoryLock(trained.storage.dir):
        assert len(models(trained, "list", None, None)) == 2
        with pytest.raises(RefusedError, match="another edged is using this state directory"):
            models(trained, action, 1, None)
        with pytest.raises(RefusedError, match="request/train"):
            train_once(trained)
    assert status_of(trained).model.version == 2


# ---- interrupted runs ----------------------------------------------------------------------------


def test_resume_without_an_interrupted_run_is_refused(config: Config) -> None:
    with pytest.raises(RefusedError, match="no run was interrupted"):
        train_once(config, resume=True)


def test_a_paused_training_is_told_and_a_run_by_hand_lifts_it(config: Config) -> None:
    train_once(config)
    with Registry.open(config.storage.dir) as registry:
        bundle = Bundle.open(config.storage.dir / "bundle").fingerprint
        values = {"failures": 3, "reason": "killed by SIGSEGV", "remedy": "", "since": 5.0}
        registry.set_value(BACKOFF, {"bundle": bundle, **values})
    paused = status_of(config).training.paused
    assert paused is not None
    assert (paused.failures, paused.reason, paused.since) == (3, "killed by SIGSEGV", 5.0)
    add(config, 200, seed=1)
    train_once(config)
    assert status_of(config).training.paused is None


@pytest.mark.slow
def test_an_interrupted_run_is_taken_up_where_it_was(tmp_path: Path) -> None:
    training = {"steps": 15_000}
    path = prepare(tmp_path, training=training)
    state = loader.load(path, {}).storage.dir
    with subprocess.Popen([*COMMAND, "train", str(path)], stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: len(list((state / "checkpoints").glob("[0-9]*"))) >= 2, 60.0)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    answer = edged("train", path, "--resume", "--json")
    assert answer.code == 0, answer.err
    assert (answer.json["run"], answer.json["steps"]) == (2, 5000)
    newest = Checkpoints(state / "checkpoints", keep=3).latest()
    assert newest is not None
    assert newest.state["learner"]["total_steps"] == 5000, "and no step was done twice"
    status = edged("status", path, "--json").json
    assert status["training"]["runs"] == 2
    assert status["model"]["version"] == answer.json["version"]
    assert edged("train", path, "--resume").code == 3
