"""The builder as a child process, as the daemon starts it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.bundles.export.parameters import get
from edged.domain.child_orders import Done, MixtureOrder, OrderFailed
from edged.domain.stream.schema import Schema
from edged.domain.training.message import decode
from edged.engines.inference import InferenceModel
from edged.errors import BundleError, TrainingError
from edged.host.child_process import ChildEndedError, run_order
from edged.storage.models.bundles import Bundle

ROOT = Path(__file__).parents[2]

NETWORK: dict[str, Any] = {
    "task": "classify",
    "features": 6,
    "outputs": 3,
    "kind": "mlp",
    "window": [6, 1],
    "hidden": [8],
    "seed": 1,
}


def order(asked: object) -> None:
    """Have the builder carry out an order, as the daemon does."""
    values = {"type": "StandardBundleOrder", **asked} if isinstance(asked, dict) else asked
    command = [sys.executable, "-m", "edged.bundles"]
    done = subprocess.run(
        command, input=json.dumps(values), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    answer = decode(json.loads(done.stdout), (Done, OrderFailed))
    if isinstance(answer, OrderFailed):
        assert done.returncode == answer.error().exit_code
        raise answer.error()
    assert done.returncode == 0


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
    order({"network": network, "out": str(out)})
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
    order(asked)
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
    order(asked)
    bundle = Bundle.open(tmp_path / "b")
    assert (bundle.loss, bundle.optimizer, bundle.seed) == ("cross_entropy", "sgd", 1)
    assert bundle.loss_options.label_smoothing == 0.1
    assert get(bundle.path, "input.mean").tolist() == statistics["mean"]


def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    asked = {"network": NETWORK, "statistics": {"mean": [0.0], "scale": [1.0]}, "out": str(tmp_path / "b")}
    with pytest.raises(BundleError, match="statistics of length 1 do not fit"):
        order(asked)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ([1], "expected one of StandardBundleOrder, MixtureOrder, got [1]"),
        ({"network": NETWORK}, "StandardBundleOrder.out: the field is missing"),
        ({"network": NETWORK | {"task": "dream"}, "out": "x"}, "network.task: expected"),
        ({"network": NETWORK | {"features": "six"}, "out": "x"}, "network.features: expected int, got 'six'"),
        ({"network": NETWORK | {"hidden": [8, "9"]}, "out": "x"}, "hidden[1]: expected int, got '9'"),
    ],
)
def test_a_wrong_order_names_the_field(asked: object, what: str) -> None:
    with pytest.raises(TrainingError, match=re.escape(what)):
        order(asked)


CHILD = """
import sys
from edged.domain.child_orders import Done, MixtureOrder
from edged.host.child_process import carry_out

def work(order):
    print("a library says something")
    if order.weights[0] == 1.0:
        raise ValueError("unexpected")
    if order.weights[0] == 2.0:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    if order.weights[0] == 3.0:
        import time
        time.sleep(60)
    return Done()

sys.exit(carry_out((MixtureOrder,), work))
"""


def test_a_child_that_ends_without_an_answer_is_told_from_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child_work.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")

    def run(weight: float, seconds: float = 60) -> Done:
        return run_order("child_work", MixtureOrder(Path("a"), Path("b"), (weight,)), seconds)

    assert run(0.0) == Done(), "what a library prints is no answer"
    for weight, code, what in ((1.0, 1, "ValueError: unexpected"), (2.0, -9, "killed by SIGKILL")):
        with pytest.raises(ChildEndedError, match=what) as ended:
            run(weight)
        assert ended.value.code == code
    with pytest.raises(ChildEndedError, match="took longer than 5 s") as ended:
        run(3.0, 5)
    assert ended.value.code is None
