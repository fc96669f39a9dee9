"""The builder as a child process, as the daemon starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from edged.domain.stream.schema import Schema
from edged.storage.models.bundles import Bundle

if TYPE_CHECKING:
    from pathlib import Path

ORDER: dict[str, Any] = {
    "task": "classify",
    "features": 6,
    "outputs": 3,
    "hidden": [8],
    "statistics": None,
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
    asked = {**ORDER, "task": schema.task, "outputs": schema.outputs, "out": str(out)}
    done = order(json.dumps(asked))
    assert (done.returncode, done.stderr) == (0, "")
    bundle = Bundle.open(out)
    bundle.check_schema(schema)
    assert json.loads(done.stdout)["fingerprint"] == bundle.fingerprint
    assert bundle.standardise is not None
    assert (bundle.target_standardise is None) == (schema.task == "classify")


def test_statistics_and_choices_are_taken(tmp_path: Path) -> None:
    statistics = {"mean": [1.0] * 6, "scale": [2.0] * 6}
    asked = {
        **ORDER,
        "outputs": 1,
        "loss": "bce_with_logits",
        "optimizer": "sgd",
        "statistics": statistics,
    }
    assert order(json.dumps({**asked, "out": str(tmp_path / "b")})).returncode == 0
    bundle = Bundle.open(tmp_path / "b")
    assert (bundle.loss, bundle.optimizer, bundle.seed) == ("bce_with_logits", "sgd", 1)


def test_a_build_that_fails_is_one_line(tmp_path: Path) -> None:
    asked = {**ORDER, "statistics": {"mean": [0.0], "scale": [1.0]}, "out": str(tmp_path / "b")}
    done = order(json.dumps(asked))
    assert (done.returncode, done.stdout) == (1, "")
    assert "statistics of length 1 do not fit" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "expected one JSON object"),
        ("[" * 100_000, "expected one JSON object"),
        ("[1]", "expected a JSON object"),
        (json.dumps({**ORDER}), "its keys"),
        (json.dumps({**ORDER, "out": "x", "colour": 1}), "its keys"),
        (json.dumps({**ORDER, "out": "x", "task": "dream"}), "no task 'dream'"),
        (json.dumps({**ORDER, "out": "x", "features": 0}), "above 0, got 0"),
        (json.dumps({**ORDER, "out": "x", "hidden": [8, "9"]}), "got '9'"),
        (json.dumps({**ORDER, "out": "x", "hidden": 8}), "list of layer sizes"),
    ],
)
def test_a_wrong_order_is_one_line_and_exit_code_2(text: str, what: str) -> None:
    done = order(text)
    assert (done.returncode, done.stdout) == (2, "")
    assert what in done.stderr
    assert done.stderr.count("\n") == 1
