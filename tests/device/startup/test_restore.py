"""What is remembered across restarts, and what becomes of it when it is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edged.device.pipeline import prediction_sets
from edged.device.startup.recovery import restored
from edged.domain.drift.live import LiveDrift
from edged.domain.judging.prediction_sets import PredictionSets
from edged.domain.stream.anomaly import Anomalies, AnomalyRules
from edged.domain.stream.schema import Schema
from edged.storage.models.registry import Registry


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry.open(tmp_path) as opened:
        yield opened


def test_at_first_there_is_nothing(registry: Registry) -> None:
    assert not restored(registry, "drift", LiveDrift(classes=True, features=2).restore)


def test_what_was_kept_is_there_again(registry: Registry) -> None:
    live = LiveDrift(classes=True, features=2)
    registry.set_value("drift", live.state())
    assert restored(registry, "drift", LiveDrift(classes=True, features=2).restore)


def test_what_is_damaged_is_begun_anew(registry: Registry) -> None:
    registry.set_value("drift", {"errors": 1})
    live = LiveDrift(classes=True, features=2)
    fresh = live.state()
    assert not restored(registry, "drift", live.restore)
    assert live.state() == fresh


def test_the_account_of_misses_goes_on_unless_it_is_damaged_or_nothing_is_promised(
    registry: Registry,
) -> None:
    schema = Schema((), 2, "classify", ("no", "yes"))
    sets = PredictionSets(0.9, schema)
    sets.promise(np.random.default_rng(0).dirichlet([1, 1], 100).astype(np.float32))
    assert prediction_sets(registry, None, schema) is None
    fresh = prediction_sets(registry, 0.9, schema)
    assert fresh is not None
    assert fresh.state() == PredictionSets(0.9, schema).state() != sets.state()
    registry.set_value("sets", sets.state())
    again = prediction_sets(registry, 0.9, schema)
    assert again is not None
    assert again.state() == sets.state()
    registry.set_value("sets", {"misses": "damaged"})
    anew = prediction_sets(registry, 0.9, schema)
    assert anew is not None
    assert anew.state() == fresh.state()


def test_alarms_and_thresholds_go_on_after_a_restart(registry: Registry) -> None:
    found, again = (Anomalies(AnomalyRules(raise_after=2, of=3)) for _ in range(2))
    scores = np.random.default_rng(0).random(200)
    scores[-3:] = 50.0
    for part in (slice(0, 150), slice(150, 200)):
        offsets = np.arange(200)[part]
        found.detect(["k"] * len(offsets), offsets, offsets.astype(np.float64), scores[part])
    assert not restored(registry, "anomalies", again.restore)
    registry.set_value("anomalies", found.state())
    assert restored(registry, "anomalies", again.restore)
    assert again.threshold == pytest.approx(found.threshold, rel=0.02)
    assert again.standing() == found.standing() == ["k"]
    registry.set_value("anomalies", {"normal": None})
    assert not restored(registry, "anomalies", again.restore)
    assert again.standing() == ["k"]
