"""Rows of files for streams that join their samples: the same values in every format and as messages."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.config import StreamConfig
from edged.errors import ConfigError
from edged.storage.recordings.rows import Recording
from edged.storage.recordings.samples import read_recording
from tests.commands import edged, two_classes, write_config
from tests.device.dock import Dock, delivery

T = 1_700_000_000.0


def stream(**values: Any) -> StreamConfig:
    return StreamConfig(**{"classes": ["ok", "worn"], "key": "machine", "ts": "ts", **values})


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


PARTIAL: list[dict[str, Any]] = [
    {"ts": T, "machine": "m", "temp": "21.5", "state": "ok"},
    {"ts": T + 1, "machine": "m", "door": "OPEN", "mode": "idle"},
    {"ts": T + 2, "machine": "m", "temp": None, "state": "worn"},
    {"ts": T + 3, "machine": "m", "mode": "run"},
    {"ts": T + 4, "machine": "m", "other": 5},
    {"ts": T + 5, "machine": "m", "mode": "no such mode"},
]
FEATURES: dict[str, Any] = {
    "features": ["temp", "door", {"name": "mode", "values": {"idle": 0, "run": 2}}],
    "missing": {"fill": "last", "flags": True},
    "label": "state",
}


def test_rows_are_joined_as_messages_are(tmp_path: Path) -> None:
    config = stream(**FEATURES, topic="s/#")
    found = read_recording(lines(tmp_path / "p.jsonl", *PARTIAL), config)
    told = "2 of 6 rows are left out: 2 with no value of a feature; the first is line 5"
    assert found.left_out() == told
    dock = Dock(tmp_path, {**config.model_dump(exclude_unset=True)})
    dock.work([delivery(i + 1, payload=json.dumps(row).encode()) for i, row in enumerate(PARTIAL)])
    lived = np.concatenate([batch.x for batch in dock.batches])
    np.testing.assert_array_equal(found.x, lived)
    assert found.key == [key for batch in dock.batches for key in batch.keys]
    labels = [label for batch in dock.batches for label in batch.labels]
    assert found.y is not None
    np.testing.assert_array_equal(found.y, np.array([np.nan if v is None else v for v in labels]))
    dock.close()


def test_blank_cells_and_nan_are_filled_not_left_out(tmp_path: Path) -> None:
    config = stream(features=["a", "b"], missing={"fill": "last", "flags": True}, label="y")
    (tmp_path / "s.csv").write_text("a,b,y\n1,2,ok\n,4,worn\nunavailable,nan,ok\n")
    x = np.array([[1, 2], [np.nan, 4], [np.nan, np.nan]])
    np.savez(tmp_path / "s.npz", X=x, y=["ok", "worn", "ok"], names=["a", "b"])
    for name in ("s.csv", "s.npz"):
        found = read_recording(tmp_path / name, config)
        assert found.x.tolist() == [[1, 2, 0, 0], [1, 4, 1, 0], [1, 4, 1, 1]]
        assert found.names == ("a", "b", "a.missing", "b.missing")
        assert (None if found.y is None else found.y.tolist()) == [0, 1, 0]
        assert found.left_out() is None


def test_entities_of_home_assistant_are_features_and_hold_labels(tmp_path: Path) -> None:
    file = tmp_path / "home-assistant_v2.db"
    states = [
        ("sensor.room", "20.5"), ("binary_sensor.door", "on"), ("input_select.pump", "Worn"),
        ("sensor.room", "unavailable"), ("sensor.room", "22"), ("input_select.pump", "off"),
        ("sensor.other", "7"), ("binary_sensor.door", "off"),
    ]  # fmt: skip
    with closing(sqlite3.connect(file)) as db:
        db.execute(
            "CREATE TABLE states (state_id INTEGER PRIMARY KEY, state TEXT, last_updated_ts REAL,"
            " metadata_id INTEGER)"
        )
        db.execute("CREATE TABLE states_meta (metadata_id INTEGER PRIMARY KEY, entity_id TEXT)")
        entities = sorted({entity for entity, _ in states})
        db.executemany("INSERT INTO states_meta (entity_id) VALUES (?)", [(entity,) for entity in entities])
        rows = [(entities.index(entity) + 1, state, T + i) for i, (entity, state) in enumerate(states)]
        db.executemany("INSERT INTO states (metadata_id, state, last_updated_ts) VALUES (?, ?, ?)", rows)
        db.commit()
    config = StreamConfig(
        classes=["ok", "worn"],
        key={"fixed": "pump"},
        features=[
            {"name": "room", "topic": "homeassistant/sensor/room/state"},
            {"name": "binary_sensor.door"},
        ],
        label={"topic": "homeassistant/input_select/pump/state", "hold": True},
    )
    found: Recording = read_recording(file, config)
    assert found.x.tolist() == [[20.5, 1], [20.5, 1], [22, 1], [22, 0]]
    assert found.y is not None
    np.testing.assert_array_equal(found.y, [np.nan, 1, 1, np.nan])
    assert found.key == ["pump"] * 4
    assert found.left_out() is None


def test_samples_by_the_clock_need_times(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("a,y\n1,ok\n")
    with pytest.raises(ConfigError, match=r"has no times, which stream\.sample by the clock needs"):
        read_recording(tmp_path / "s.csv", stream(features=["a"], sample="10s", label="y"))
    with pytest.raises(ConfigError, match="there is no column 'c'"):
        read_recording(tmp_path / "s.csv", stream(features=["c"], sample="c", label="y"))


def test_evaluate_builds_and_import_fill_what_is_missing(tmp_path: Path) -> None:
    x, y = two_classes(400)
    rows = [
        [str(value) if (i + j) % 5 else "" for j, value in enumerate(row)] for i, row in enumerate(x.tolist())
    ]
    names = ["ok", "worn"]
    text = "\n".join(",".join([*row, names[label]]) for row, label in zip(rows, y, strict=True))
    (tmp_path / "d.csv").write_text(f"a,b,c,d,y\n{text}\n")
    config = write_config(
        tmp_path,
        {"features": list("abcd"), "classes": names, "missing": {"fill": "mean", "flags": True}, "key": "k"},
        storage={"dir": str(tmp_path / "state")},
    )
    told = edged("evaluate", config, "--data", tmp_path / "d.csv", "--json").json
    assert (told["samples"], told["warnings"]) == (400, [])
    assert edged("import", config, tmp_path / "d.csv", "--json").json["samples"] == 400
    model = tmp_path / "m.onnx"
    assert edged("model", "new", "mlp", "--inputs", 8, "--outputs", 2, "-o", model).code == 0
    built = edged(
        "artifacts", "build", model, "-o", tmp_path / "bundle", "--loss", "cross_entropy",
        "--engine", "portable", "--config", config, "--data", tmp_path / "d.csv", "--json",
    )  # fmt: skip
    assert built.code == 0, built
