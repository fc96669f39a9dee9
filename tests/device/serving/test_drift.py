"""What is watched for drift while models serve, as it is configured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.config import DriftConfig, GateConfig, ServingConfig
from edged.device.serving.predictor import Predictor
from edged.domain.drift.live import DriftRules, LiveDrift
from edged.domain.drift.signals import Level
from tests.device.linear import GOOD, SCHEMA, WIDTH, classes, numbered, served

if TYPE_CHECKING:
    from edged.domain.drift.signals import DriftSignal
    from tests.device.linear import Floats


def stream() -> tuple[Floats, Floats]:
    """Inputs `(6000, 3)` and labels `(6000, 1)`; in the last and the third last thousand all is different.

    Inputs are shifted, the model is not sure of them, and half the labels are wrong.
    """
    rng, other = np.random.default_rng(0), np.isin(np.arange(6000) // 1000, (3, 5))
    x = rng.normal(size=(6000, WIDTH)).astype(np.float32)
    x[:, 0] *= np.where(other, 0.1, 3.0)
    x[:, 1] += np.where(other, 5.0, 0.0)
    y = np.asarray(classes(x), np.float32)
    return x, np.where((rng.random(6000) < 0.5) & other, 1 - y, y).astype(np.float32)[:, None]


def signals(folder: Path, rules: DriftRules) -> list[DriftSignal]:
    """The drifts of errors or confidence that are signalled."""
    predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, served(folder, 1, GOOD), rules)
    x, y = stream()
    found: list[DriftSignal] = []
    for first in range(0, len(x), 50):
        offsets = numbered(first + 1, 50)
        predictor.predict(offsets, x[first : first + 50])
        predictor.shadow(offsets, x[first : first + 50])
        predictor.label(offsets, y[first : first + 50])
        found += [
            signal
            for signal in predictor.drift.pop_signals()
            if signal.level is Level.DRIFT and signal.source != "inputs"
        ]
    return found


def test_a_drift_is_told_again_after_the_cooldown(tmp_path: Path) -> None:
    once, often = (signals(tmp_path, DriftRules(cooldown=cooldown)) for cooldown in (10_000, 0))
    assert len(often) > len(once) == 1


def test_with_a_higher_sensitivity_a_drift_is_noticed_earlier() -> None:
    wrong = np.random.default_rng(0).random(6000) < np.where(np.arange(6000) < 3000, 0.1, 0.2)
    found = []
    for name in ("high", "normal", "low"):
        live = LiveDrift(classes=True, rules=DriftConfig.model_validate({"sensitivity": name}).rules())
        live.errors(wrong.astype(np.float64), numbered(1, 6000))
        found.append(next(s.offset for s in live.pop_signals() if s.level is Level.DRIFT))
    assert 3000 < found[0] < found[1] < found[2]
