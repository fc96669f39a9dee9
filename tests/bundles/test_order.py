"""The builder as a child process, as the daemon starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.bundles.export.parameters import get
from edged.domain.stream.schema import Schema
from edged.engines.inference import InferenceModel
from edged.storage.models.bundles import Bundle

NETWORK: dict[str, Any] = {
    "task": "classify",
    "features": 6,
    "outputs": 3,
    "kind": "mlp",
    "window": [6, 1],
    "hidden": [8],
    "seed": 1,
}


def order(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edged.bundles"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)


SCHEMAS = [
    Schema((), 6, "classify", ("a", "b", "c")),
    Schema((), 6, "regress", targets=2),
    Schema((), 6, "forecast", targets=1),
    Schema((), 6, "reconstruct", targets=6),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: str(schema.task))
def test_every_task_gets_a_bundle_that_fits(tmp_path: Path, schema: Schema) -> None:
    out = tmp_path / "bundle"
    kind = "autoencoder" if schema.task == "reconstruct" else "mlp"
    network = NETWORK | {"task": schema.task, "outputs": schema.outputs, "kind": kind}
    done = order(json.dumps({"network": network, "out": str(out)}))
    assert (done.returncode, done.stderr) == (0, "")
    bundle = Bundle.open(out)
    bundle.check_schema(schema)
    assert bundle.standardise is not None
    assert (bundle.target_standardise is None) == (schema.task == "classify")


@pytest.mark.parametrize(("kind", "window"), [("mlp", [1, 6]), ("cnn1d", [3, 2]), ("gru", [3, 2])])
@pytest.mark.parametrize("known", [True, False], ids=["statistics", "none"])
def test_a_forecast_begins_with_the_last_value(
    tmp_path: Path, kind: str, window: list[int], known: bool
) -> None:
    schema = Schema((), 6, "forecast", targets=2, forecast=(4, 5))
    network = NETWORK | {"task": "forecast", "outputs": 2, "kind": kind, "window": window}
    asked = {"network": network | {"change_of": [4, 5]}, "out": str(tmp_path / "b")}
    if known:
        asked["statistics"] = {"mean": [1.0] * 6, "scale": [2.0] * 6}
    assert order(json.dumps(asked)).returncode == 0
    bundle = Bundle.open(tmp_path / "b")
    bundle.check_schema(schema)
    assert bundle.change_of == (4, 5)
    x = np.random.default_rng(0).normal(0, 1e4, (8, 6)).astype(np.float32)
    assert InferenceModel(bundle.inference_model).predict(x).tolist() == x[:, 4:].tolist()


def test_statistics_and_choices_are_taken(tmp_path: Path) -> None:
    statistics = {"mean": [1.0] * 6, "scale": [2.0] * 6}
    asked = {
        "network": NETWORK, "optimizer": "sgd", "label_smoothing": 0.1, "statistics": statistics,
        "out": str(tmp_path / "b"),
    }  # fmt: skip
    assert order(json.dumps(asked)).returncode == 0
    bundle = Bundle.open(tmp_path / "b")
    assert (bundle.loss, bundle.optimizer, bundle.seed) == ("cross_entropy", "sgd", 1)
    assert bundle.loss_options.label_smoothing == 0.1
    assert get(bundle.path, "input.mean").tolist() == statistics["mean"]


def test_a_build_that_fails_is_one_line(tmp_path: Path) -> None:
    asked = {"network": NETWORK, "statistics": {"mean": [0.0], "scale": [1.0]}, "out": str(tmp_path / "b")}
    done = order(json.dumps(asked))
    assert (done.returncode, done.stdout) == (1, "")
    assert "statistics of length 1 do not fit" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ([1], "expected StandardBundleOrder, got [1]"),
        ({"network": NETWORK}, "StandardBundleOrder.out: the field is missing"),
        ({"network": NETWORK | {"task": "dream"}, "out": "x"}, "network.task: expected"),
        ({"network": NETWORK | {"features": "six"}, "out": "x"}, "network.features: expected int, got 'six'"),
        ({"network": NETWORK | {"hidden": [8, "9"]}, "out": "x"}, "hidden[1]: expected int, got '9'"),
    ],
)
def test_a_wrong_order_is_one_line_that_names_the_field(asked: object, what: str) -> None:
    done = order(json.dumps(asked))
    assert (done.returncode, done.stdout) == (1, "")
    assert what in done.stderr
    assert done.stderr.count("\n") == 1
