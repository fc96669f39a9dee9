"""`edged evaluate` reports how well confidence is calibrated, and how often sets contained the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import edged, strict_json, write_config


def evaluated(
    folder: Path, stream: dict[str, Any], coverage: float | None, **arrays: Any
) -> tuple[dict[str, Any], str]:
    """The report, and what a person is shown."""
    folder.mkdir()
    data = folder / "stream.npz"
    np.savez(data, **arrays)
    serving = {} if coverage is None else {"serving": {"coverage": coverage}}
    config = write_config(folder, stream, training={"new_labels": 400}, **serving)
    shown = edged("evaluate", config, "--data", data, "-o", folder / "out", "--labels-delay", "150")
    assert shown.code == 0, shown.err
    return strict_json((folder / "out" / "report.json").read_text()), shown.out


def noisy_classes(n: int) -> dict[str, Any]:
    """Two classes of which four fifths can be told apart."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    return {"X": x, "y": (x[:, 0] + rng.normal(0, 0.8, n) > 0).astype(int)}


@pytest.mark.slow
def test_sets_of_classes_are_reported_beside_the_calibration_of_confidence(tmp_path: Path) -> None:
    stream, arrays = {"features": 4, "classes": 2}, noisy_classes(4000)
    report, text = evaluated(tmp_path / "with", stream, 0.9, **arrays)
    found = report["coverage"]
    assert found["promised"] == 0.9
    assert 0.88 < found["covered"] < 0.92
    assert 1.0 < found["size"] < 1.5
    assert 0 <= found["empty"] < 0.1
    assert 0 < report["calibration_error"] < 0.05
    assert "covered" in text
    assert "promised 90.0 %" in text
    assert f"{100 * report['calibration_error']:.1f} %" in text
    page = (tmp_path / "with" / "out" / "report.html").read_text()
    assert "of the samples, promised were 90.0 %." in page

    without, text = evaluated(tmp_path / "without", stream, None, **arrays)
    assert without["coverage"] is None
    assert without["calibration_error"] == report["calibration_error"]
    assert without["metric"] == report["metric"], "what is promised changes nothing of what is learned"
    assert "promised" not in text
    assert "promised" not in (tmp_path / "without" / "out" / "report.html").read_text()


@pytest.mark.slow
def test_intervals_of_values_are_reported_with_their_widths(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 4))
    y = np.stack([x[:, 0] + rng.normal(0, 0.1, 4000), 10 * x[:, 1] + rng.normal(0, 2, 4000)], axis=1)
    stream = {"features": 4, "task": "regress", "targets": 2}
    report, _ = evaluated(tmp_path / "values", stream, 0.8, X=x, y=y)
    found = report["coverage"]
    assert report["calibration_error"] is None
    assert found["covered"] == pytest.approx(0.8, abs=0.01)
    assert 0.2 < found["size"][0] < 0.8
    assert 4.8 < found["size"][1] < 9


def test_a_reconstruction_can_promise_nothing(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"features": 4, "task": "reconstruct"}, serving={"coverage": 0.9})
    answer = edged("config", "check", config)
    assert answer.code == 2
    assert "serving.coverage needs labels, and a reconstruction has none" in answer.problem
