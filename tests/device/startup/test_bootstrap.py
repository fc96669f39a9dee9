"""A bundle for a stream that names none."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from edged.config import Config
from edged.config.training import OptimizerConfig
from edged.device.startup.bootstrap import open_samples, with_bundle
from edged.domain.protocols import LearningRate
from edged.domain.stream.sample import Batch, LabelReading, Reading
from edged.engines.portable.engine import PortableEngine
from edged.errors import BundleError, EdgedError
from edged.storage.models.bundles import Bundle
from tests.commands import write_config
from tests.faults.tracing import require_strace


def config(folder: Path, **stream: Any) -> Config:
    return Config.model_validate(
        {
            "device": {"id": "d"},
            "stream": stream or {"features": 4, "classes": 3},
            "model": {"hidden": [8]},
            "storage": {"dir": folder / "state"},
        }
    )


def opened(made: Config) -> Bundle:
    assert made.model.bundle is not None
    bundle = Bundle.open(made.model.bundle)
    bundle.check_schema(made.stream.to_schema())
    return bundle


def test_it_is_built_once_and_then_used_again(tmp_path: Path) -> None:
    first = with_bundle(config(tmp_path))
    made = opened(first)
    assert made.path == tmp_path / "state" / "bundle"
    before = (made.path / "bundle.json").stat()
    again = with_bundle(config(tmp_path))
    after = (made.path / "bundle.json").stat()
    assert again.model.bundle == made.path
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert sorted(p.name for p in (tmp_path / "state").iterdir()) == [
        "bundle",
        "bundle.hidden.json",
    ]


@pytest.mark.parametrize(
    "stream",
    [
        {"features": ["a", "b"], "classes": ["x", "y"]},
        {"features": 4, "task": "regress", "targets": 2},
        {"features": 4, "task": "reconstruct"},
        {"features": 4, "task": {"forecast": {"of": [1, 2]}}},
        {"features": 2, "classes": 3, "window": {"size": 16}},
        {"features": 2, "task": "forecast", "window": {"size": 16}},
        {"features": 2, "task": "reconstruct", "window": {"size": 16}},
    ],
    ids=["classify", "regress", "reconstruct", "forecast", "windows", "forecast of windows", "of windows"],
)
def test_it_fits_the_stream_and_can_be_trained(tmp_path: Path, stream: dict[str, Any]) -> None:
    made = with_bundle(config(tmp_path, **stream))
    bundle, schema = opened(made), made.stream.to_schema()
    x = np.zeros((2, schema.width), np.float32)
    y = np.zeros(2, np.int64) if schema.task == "classify" else np.zeros((2, schema.targets), np.float32)
    assert np.isfinite(PortableEngine(bundle).evaluate(x, y))


@pytest.mark.parametrize("network", [None, "mlp", "gru"])
def test_a_stream_of_windows_gets_the_network_that_is_wanted(tmp_path: Path, network: str | None) -> None:
    plain = config(tmp_path, features=2, classes=3, window={"size": 16})
    model = plain.model.model_copy(update={"network": network, "hidden": None})
    bundle = opened(with_bundle(plain.model_copy(update={"model": model})))
    shapes = {name: value.shape for name, value in PortableEngine(bundle).parameters().items()}
    first = {None: (32, 2, 5), "mlp": (256, 32), "gru": (1, 192, 2)}[network]
    assert first in (shapes.get("layer1.weight"), shapes.get("layer1.weight_ih"))


def decayed(folder: Path, decay: float | None, **stream: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Parameters of the standard network after one step at a learning rate of 0.1."""
    plain = config(folder, **stream)
    model = plain.model.model_copy(update={"optimizer": OptimizerConfig(weight_decay=decay)})
    bundle = opened(with_bundle(plain.model_copy(update={"model": model})))
    engine = PortableEngine(bundle)
    engine.begin(LearningRate(0.1))
    labels = np.zeros(2, np.int64) if "classes" in stream else np.zeros((2, 1), np.float32)
    engine.step(np.ones((2, bundle.input.width), np.float32), labels)
    return {name: value for name, value in engine.parameters().items() if name.startswith("layer")}


@pytest.mark.parametrize(
    ("decay", "stream", "factor"),
    [
        (None, {"features": 4, "classes": 3}, 0.985),
        (0.5, {"features": 4, "classes": 3}, 0.95),
        (None, {"features": 2, "classes": 3, "window": {"size": 2}}, 1.0),
        (None, {"features": 4, "task": "regress"}, 1.0),
    ],
)
def test_weights_decay_where_the_network_gains_by_it(
    tmp_path: Path, decay: float | None, stream: dict[str, Any], factor: float
) -> None:
    made, without = (decayed(tmp_path / str(d), d, **stream) for d in (decay, 0.0))
    for name, value in without.items():
        np.testing.assert_allclose(made[name], value * factor, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("stream", "smoothing"),
    [
        ({"features": 4, "classes": 3}, 0.1),
        ({"features": 2, "classes": 3, "window": {"size": 2}}, 0.0),
        ({"features": 4, "task": "regress"}, 0.0),
    ],
)
def test_labels_are_smoothed_where_the_network_gains_by_it(
    tmp_path: Path, stream: dict[str, Any], smoothing: float
) -> None:
    bundle = opened(with_bundle(config(tmp_path, **stream)))
    engine = PortableEngine(bundle)
    own = engine.parameters()
    ends = [
        name for name, value in own.items() if name.endswith(".bias") and len(value) == bundle.output.width
    ]
    x = np.zeros((2, bundle.input.width), np.float32)
    if "classes" not in stream:
        assert engine.evaluate(x, np.zeros((2, 1), np.float32)) < 1
        return
    for last in ends:  # of each expert
        weight = last.replace("bias", "weight")
        engine.set_parameters({weight: np.zeros_like(own[weight]), last: np.array([12, 0, 0], np.float32)})
    # Nearly sure of class 0, the loss is what the other two get of its label: 12 times a third, twice.
    assert engine.evaluate(x, np.zeros(2, np.int64)) == pytest.approx(smoothing * 8, abs=1e-3)


@pytest.mark.parametrize(
    ("key", "value", "told"), [("hidden", [9], True), ("hidden", [8], False), ("network", "cnn1d", True)]
)
def test_another_network_than_the_one_that_is_there_is_told_of(
    tmp_path: Path, key: str, value: Any, told: bool
) -> None:
    first = config(tmp_path)
    with_bundle(first)
    other = first.model_copy(update={"model": first.model.model_copy(update={key: value})})
    with capture_logs() as logs:
        with_bundle(other)
    assert [entry["event"] for entry in logs] == ([f"{key}_ignored"] if told else [])


def test_labels_are_joined_within_the_configured_tolerance(tmp_path: Path) -> None:
    label = {"topic": "labels/#", "join": "key_time", "tolerance": "3s"}
    plain = config(tmp_path, features=1, classes=2, label=label)
    (tmp_path / "state").mkdir()
    with closing(open_samples(plain)) as log:
        reading = Reading("k", [0.0])
        log.commit(Batch.of([reading], [None], first=1, now=100.0, ts=np.array([100.0])))
        wanted = [LabelReading(1.0, key="k", ts=ts) for ts in (97.5, 102.9, 103.1)]
        assert log.find_many(wanted) == [1, 1, None]


COMMITS = """
import sys
from pathlib import Path
from edged.config import loader
from edged.device.startup.bootstrap import open_samples
log = open_samples(loader.load(Path(sys.argv[1]), {}))
for number in range(20):
    log.commit(packets=[(1 + number, number)])
"""


def test_commits_wait_for_the_disk(tmp_path: Path) -> None:
    require_strace()
    (tmp_path / "state").mkdir()
    path = write_config(tmp_path, {"features": 2, "classes": 2})
    calls = tmp_path / "calls"
    command = ["strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(calls), sys.executable, "-c", COMMITS]
    subprocess.run([*command, str(path)], check=True, timeout=60)
    assert calls.read_text(encoding="ascii").count("sync(") >= 20


def test_statistics_of_the_stream_go_into_the_graph(tmp_path: Path) -> None:
    plain = config(tmp_path, features=4, classes=3, context=[])
    bundle = opened(with_bundle(plain, {"mean": [1, 2, 3, 4], "scale": [1, 1, 2, 2]}))
    parameters = PortableEngine(bundle).parameters()
    assert parameters["input.mean"].tolist() == [1, 2, 3, 4]
    assert parameters["input.scale"].tolist() == [1, 1, 2, 2]


def test_a_bundle_that_is_named_is_left_as_it_is(tmp_path: Path) -> None:
    given = config(tmp_path).model_copy(
        update={"model": config(tmp_path).model.model_copy(update={"bundle": tmp_path / "mine"})}
    )
    assert with_bundle(given) is given
    assert not (tmp_path / "state").exists()


def test_a_damaged_one_is_built_again_and_the_same(tmp_path: Path) -> None:
    first = opened(with_bundle(config(tmp_path)))
    damaged = first.path / "step_model.onnx"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert opened(with_bundle(config(tmp_path))).fingerprint == first.fingerprint


def test_where_it_cannot_be_built_again_the_damaged_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(with_bundle(config(tmp_path)))
    (first.path / "step_model.onnx").write_bytes(b"x")
    monkeypatch.setenv("PYTHONPATH", str(without_onnx(tmp_path)), prepend=os.pathsep)
    kept = with_bundle(config(tmp_path)).model.bundle
    assert kept == first.path
    assert (first.path / "step_model.onnx").read_bytes() == b"x"
    with pytest.raises(EdgedError):
        with_bundle(config(tmp_path / "elsewhere"))


def without_onnx(folder: Path) -> Path:
    """A device on which nothing can be built: `import onnx` fails in child processes."""
    hidden = folder / "device"
    hidden.mkdir()
    (hidden / "onnx.py").write_text("raise ImportError('no onnx here')")
    return hidden


def test_the_note_of_the_layers_may_be_damaged(tmp_path: Path) -> None:
    first = opened(with_bundle(config(tmp_path)))
    (tmp_path / "state" / "bundle.hidden.json").write_bytes(b"[6")
    assert opened(with_bundle(config(tmp_path))).fingerprint == first.fingerprint


def test_a_foreign_directory_in_its_place_is_not_overwritten(tmp_path: Path) -> None:
    place = tmp_path / "state" / "bundle"
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("precious")
    with pytest.raises(BundleError, match="bundle") as caught:
        with_bundle(config(tmp_path))
    assert str(place) in caught.value.line()
    assert "\n" not in caught.value.line()
    assert "Traceback" not in caught.value.line()
    assert [p.name for p in place.iterdir()] == ["thesis.txt"]


def test_wrong_statistics_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"statistics.*do not fit") as caught:
        with_bundle(config(tmp_path), {"mean": [0, 0], "scale": [1, 1]})
    assert caught.value.where == "model.bundle"
    assert not (tmp_path / "state" / "bundle").exists()
