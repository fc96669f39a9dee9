"""Serving a stream that labels itself: what is unusual is told, and does not count against a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.config import AnomalyConfig, GateConfig, ServingConfig
from edged.device.serving.predictor import Predictor
from edged.domain.protocols import ServedModel
from edged.domain.stream.anomaly import AnomalyRules
from edged.domain.stream.schema import Schema
from edged.engines.inference import InferenceModel
from tests.device.linear import WIDTH, numbered, samples, write
from tests.device.serving.test_predictor import serving

if TYPE_CHECKING:
    from tests.device.linear import Floats

SCHEMA = Schema((), WIDTH, "reconstruct", (), WIDTH)
RULES = AnomalyRules(raise_after=3, of=5)
EVEN = np.ones(WIDTH, np.float32)


def zeros(folder: Path, version: int, *, shift: float = 0.0, scale: Floats | None = EVEN) -> ServedModel:
    """A model that reconstructs everything as zeros but its last output, which is `shift` times the input."""
    path = write(folder / f"{version}.onnx", shift, outputs=WIDTH)
    return ServedModel(version, InferenceModel(path), scale)


def small(n: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(0, 0.1, (n, WIDTH)).astype(np.float32)


def calibrated(folder: Path, champion: ServedModel, **gate: int) -> Predictor:
    predictor = Predictor(ServingConfig(), GateConfig(**gate), SCHEMA, champion, None, RULES)
    with serving(predictor) as outlet:
        outlet.submit(samples(1, small(500)))
    assert predictor.anomalies is not None
    assert predictor.anomalies.threshold is not None
    return predictor


def test_an_alarm_is_told_when_it_begins_and_ends(tmp_path: Path) -> None:
    predictor = calibrated(tmp_path, zeros(tmp_path, 1))
    x = small(60, seed=1)
    x[20:40] += 5
    with serving(predictor) as outlet:
        outlet.submit(samples(501, x))
    start, end = outlet.named("anomaly")
    assert (start["key"], start["since"], start["offset"]) == ("k", 521.0, 523)
    assert (end["until"], end["offset"]) == (540.0, 545)
    assert end["peak"] > 10
    assert predictor.anomalies is not None
    aside, _ = predictor.anomalies.pop_changes()
    assert set(range(521, 541)) <= set(aside)


def test_alarms_and_their_threshold_follow_the_configured_sensitivity(tmp_path: Path) -> None:
    """After 250 samples that slowly grow, every third one is unusual."""
    found = []
    for sensitivity in ("low", "high"):
        rules = AnomalyConfig.model_validate({"sensitivity": sensitivity}).rules()
        predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, zeros(tmp_path, 1), None, rules)
        with serving(predictor) as outlet:
            outlet.submit(samples(1, small(1250) * np.linspace(1, 2, 1250, dtype="f4")[:, None]))
        assert predictor.anomalies is not None
        threshold = predictor.anomalies.threshold
        assert threshold is not None
        with serving(predictor) as outlet:
            outlet.submit(samples(1251, small(12) + 5 * (np.arange(12) % 3 == 0)[:, None].astype("f4")))
        found.append((threshold, [change["offset"] for change in outlet.named("anomaly")]))
    (low, quiet), (high, alarmed) = found
    assert low > high
    assert len(quiet) < len(alarmed)


def test_what_is_unusual_is_no_fall_of_quality(tmp_path: Path) -> None:
    predictor = calibrated(tmp_path, zeros(tmp_path, 1))
    before = predictor.live_quality().to_json()
    predictor.drift.pop_signals()
    with serving(predictor) as outlet:
        outlet.submit(samples(501, small(600, seed=2) + 5))
    assert predictor.live_quality().to_json() == before
    assert outlet.drifts == []
    assert not predictor.pop_quality_drop()


def test_a_model_without_units_is_not_judged_by(tmp_path: Path) -> None:
    """What was never trained reconstructs nothing: its scores say nothing of the samples."""
    predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, zeros(tmp_path, 1, scale=None), None, RULES)
    with serving(predictor) as outlet:
        outlet.submit(samples(1, small(500)))
        outlet.submit(samples(501, small(100) + 5))
    assert outlet.named("anomaly") == []
    assert predictor.anomalies is not None
    assert predictor.anomalies.threshold is None
    assert predictor.live_quality().to_json()["labelled"] == 600


def test_a_model_that_reconstructs_anomalies_worse_passes_its_probation(tmp_path: Path) -> None:
    """Both are alike on normal rows; on anomalies the new one errs twice as much as its predecessor."""
    previous, new = zeros(tmp_path, 1), zeros(tmp_path, 2, shift=-1.0)
    predictor = calibrated(tmp_path, previous, probation=100)
    predictor.swap(new)
    usual = small(100, seed=3)
    usual[:, 0] = 0
    odd = np.full((200, WIDTH), 5, np.float32)
    with serving(predictor) as outlet:
        outlet.submit(samples(501, odd))
        outlet.submit(samples(701, usual))
    assert outlet.outcomes == [True]
    assert outlet.failed == []


def test_a_model_that_finds_all_unusual_fails_its_probation(tmp_path: Path) -> None:
    """What its predecessor finds normal counts: a broken model cannot hide behind alarms of its own."""
    predictor = calibrated(tmp_path, zeros(tmp_path, 1), probation=100)
    predictor.swap(zeros(tmp_path, 2, shift=50.0))
    with serving(predictor) as outlet:
        outlet.submit(samples(501, small(200, seed=4)))
    assert outlet.outcomes == [False]


def test_streams_with_labels_have_no_detector(tmp_path: Path) -> None:
    schema = Schema((), WIDTH, "regress", (), WIDTH)
    predictor = Predictor(ServingConfig(), GateConfig(), schema, zeros(tmp_path, 1))
    assert predictor.anomalies is None
    x = small(5)
    judged = predictor.detect_anomalies(predictor.predict(numbered(1, 5), x), ["k"] * 5, np.arange(5.0))
    assert not judged.flagged.any()
    assert judged.changes == []
