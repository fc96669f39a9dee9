"""The Python API as a user calls it: frames in, frozen results out, and errors of one line."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged import api
from edged.api.inputs import config_of
from edged.storage.recordings.frame import Frame
from edged.storage.recordings.samples import read_recording
from tests.commands import two_classes
from tests.running_device import Device, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

pa: Any = importlib.import_module("pyarrow")
parquet: Any = importlib.import_module("pyarrow.parquet")

CLASSES = ("ok", "worn")
CONFIG: dict[str, Any] = {
    "device": {"id": "press"},
    "stream": {"features": ["a", "b", "c", "d"], "classes": list(CLASSES), "label": "state"},
    "training": {"new_labels": 200, "engine": "portable"},
}


def columns(n: int = 600) -> dict[str, Any]:
    x, y = two_classes(n)
    features = dict(zip("abcd", x.T, strict=True))
    state = [CLASSES[value] if i % 7 else None for i, value in enumerate(y)]
    return {
        "time": np.arange(n, dtype=np.float64) + 1.7e9,
        "key": ["p1", "p2"] * (n // 2),
        **features,
        "state": state,
    }


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> tuple[api.FeedResult, Path]:
    out = tmp_path_factory.mktemp("fed") / "state"
    return api.feed(CONFIG, columns(), pretrain=200, out=out), out


def test_importing_the_package_is_cheap() -> None:
    heavy = "{'numpy', 'onnxruntime', 'onnx', 'pydantic', 'pandas', 'pyarrow', 'structlog', 'sqlite3'}"
    line = f"import sys; import edged.api; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_feed_answers_each_sample_with_the_model_of_its_moment(fed: tuple[api.FeedResult, Path]) -> None:
    found, _ = fed
    assert (len(found), found.pretrained, found.classes) == (600, 200, CLASSES)
    assert found.versions[:200].tolist() == [0] * 200
    assert (np.diff(found.versions[200:]) >= 0).all()
    assert found.versions[-1] > found.versions[200] > 0
    table = found.columns()
    assert {len(column) for column in table.values()} == {400}
    known = [
        (told, true) for told, true in zip(table["answer"], table["label"], strict=True) if true is not None
    ]
    assert len(known) == sum(1 for i in range(200, 600) if i % 7)
    right = sum(told == true for told, true in known) / len(known)
    assert right == pytest.approx(found.report.metric["accuracy"])
    assert right > 0.8


def test_a_state_directory_has_what_was_fed(fed: tuple[api.FeedResult, Path]) -> None:
    found, out = fed
    with api.open_state(out) as state:
        samples, figures = state.samples(), state.figures()
        champion, models, runs = state.champion(), state.models(), state.runs()
        newest = state.samples(limit=10, key="p2", labelled=True)
        later = state.samples(after=int(samples.offsets[-3]))
        assert champion is not None
        assert state.model_file(champion.version).is_file()
    assert (figures.pid, figures.samples, figures.stored) == (None, 600, 600)
    assert champion.version == figures.champion == found.versions[-1]
    assert [model.status for model in models].count("champion") == 1
    assert figures.runs == len(runs) > 1
    assert (champion.data.samples or 0) > 0
    assert champion.verdict is not None
    assert champion.verdict.accepted
    assert champion.verdict.numbers.items() <= champion.metrics.numbers.items()
    assert 0 < (runs[0].request.new_share or 0) < 1
    assert runs[0].outcome == "done"
    assert runs[0].result is not None
    steps = runs[0].result["steps"]
    assert isinstance(steps, int)
    assert steps > 0
    assert samples.names == tuple("abcd")
    assert samples.classes == CLASSES
    given = columns()
    assert np.array_equal(samples.x, np.array([given[name] for name in "abcd"]).T)
    assert samples.labels == given["state"]
    assert np.array_equal(samples.ts, given["time"])
    assert set(newest.keys) == {"p2"}
    assert len(newest) == 10
    assert later.offsets.tolist() == samples.offsets[-2:].tolist()
    assert pa.table(samples.columns()).column_names == ["offset", "key", "ts", *"abcd", "label", "holdout"]


def test_a_file_and_columns_in_memory_are_the_same_recording(tmp_path: Path) -> None:
    given = columns(60)
    path, table = tmp_path / "stream.parquet", pa.table(given)
    parquet.write_table(table, path)
    with (tmp_path / "stream.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(given)
        writer.writerows(zip(*given.values(), strict=True))
    (tmp_path / "edged.yaml").write_text(
        "device: {id: a}\nstream: {features: [a, b, c, d], classes: [ok, worn], label: state}\n"
    )
    stream = config_of(tmp_path / "edged.yaml", None).stream
    sources: list[Path | Frame] = [
        path,
        tmp_path / "stream.csv",
        *map(Frame.of, (given, table, _Arrow(table))),
    ]
    first, *others = [read_recording(source, stream) for source in sources]
    assert first.classes == CLASSES
    for other in others:
        assert np.array_equal(other.x, first.x)
        assert np.array_equal(other.y, first.y, equal_nan=True)  # type: ignore[arg-type]
        assert np.array_equal(other.t, first.t)  # type: ignore[arg-type]
        assert (other.key, other.classes) == (first.key, first.classes)


class _Arrow:
    """What is neither a mapping nor a table, and exports the Arrow C stream."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested: object = None) -> object:
        return self._table.__arrow_c_stream__(requested)


def test_frames_of_pandas_are_read_with_their_missing_values_and_times() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "time": pandas.to_datetime(["2026-01-01", "2026-01-02", "2026-01-03"]),
            "a": [1.0, None, 3.0],
            "n": pandas.array([1, None, 3], dtype="Int64"),
            "state": pandas.Categorical(["ok", None, "worn"]),
        },
        index=[7, 8, 9],
    )
    cells = dict(
        zip(
            ("time", "a", "n", "state"),
            zip(*(row for _, row in Frame.of(frame).rows(("time", "a", "n", "state"))), strict=True),
            strict=True,
        )
    )
    assert [moment.day for moment in cells["time"]] == [1, 2, 3]
    assert cells["a"] == (1.0, None, 3.0)
    assert cells["n"] == (1, None, 3)
    assert cells["state"] == ("ok", None, "worn")


def test_frames_of_polars_are_read() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1.0, None], "state": ["ok", "worn"]})
    assert list(Frame.of(frame).rows(("a", "state"))) == [(0, (1.0, "ok")), (1, (None, "worn"))]


def test_numpy_times_are_times() -> None:
    times = np.array(["2026-01-01T00:00:01", "NaT"], "datetime64[ns]")
    (_, (first,)), (_, (second,)) = Frame.of({"time": times}).rows(("time",))
    assert (first.year, first.second, second) == (2026, 1, None)


def test_evaluate_keeps_its_report_in_a_new_directory(tmp_path: Path) -> None:
    report = api.evaluate(CONFIG, columns(), pretrain=200, out=tmp_path / "out")
    assert report.metric["accuracy"] > 0.7
    assert (tmp_path / "out" / "report.html").is_file()
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.samples = 1  # type: ignore[misc]
    with pytest.raises(api.ConfigError, match="exists already"):
        api.evaluate(CONFIG, columns(), out=tmp_path / "out")


def test_a_model_is_built_and_goes_on_learning(tmp_path: Path) -> None:
    model = api.new_model("mlp", tmp_path / "model.onnx", inputs=4, outputs=2, hidden=[8])
    bundle = api.build(
        model, tmp_path / "bundle", loss="cross_entropy", data=columns(), config=CONFIG,
        optimizer_options={"weight_decay": 0.01}, engine="portable",
    )  # fmt: skip
    assert bundle.engine == "portable"
    assert bundle.trainable == 4 * 8 + 8 + 8 * 2 + 2
    assert len(bundle.fingerprint) == 64
    found = api.feed(CONFIG | {"model": {"bundle": str(bundle.path)}}, columns(), pretrain=0)
    assert (found.pretrained, found.versions[0]) == (0, 1)


def test_a_state_directory_is_read_while_its_daemon_writes_it(tmp_path: Path, broker: Mosquitto) -> None:
    device = Device(
        tmp_path, broker.port, {"features": ["a", "b"], "classes": list(CLASSES), "label": "state"}
    )
    with running(device, broker.port) as listener, api.open_state(device.path) as state:
        assert device.process is not None
        for i in range(5):
            listener.send("sensors/p1", {"a": i, "b": -i, "state": CLASSES[i % 2]} if i else {"a": 0, "b": 0})
        wait_until(lambda: len(state.samples()) == 5)
        samples, figures = state.samples(), state.figures()
        assert samples.labels == [None, "worn", "ok", "worn", "ok"]
        assert samples.x.tolist() == [[i, -i] for i in range(5)]
        assert (figures.pid, figures.labels, figures.champion) == (device.process.pid, 4, 1)
        assert state.runs() == ()


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: api.feed({"stream": {"features": 1}}, {}), "configuration: device: this key is required"),
        (lambda: api.feed(CONFIG | {"streem": {}}, {}), "configuration: streem: unknown key"),
        (lambda: api.feed(CONFIG, {"a": [1.0], "b": [1.0, 2.0]}), "data frame: columns differ in length"),
        (lambda: api.feed(CONFIG, 7), "data: expected a data frame, a pyarrow table"),
        (lambda: api.feed(CONFIG, {}), "data frame: row 1: there is no column 'a'"),
        (lambda: api.feed(CONFIG, "nothing.csv"), "nothing.csv: no such file"),
        (lambda: api.open_state("/nowhere"), "/nowhere: this is no state directory"),
    ],
)  # fmt: skip
def test_errors_are_one_line(call: Any, line: str) -> None:
    with pytest.raises(api.EdgedError) as caught:
        call()
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
