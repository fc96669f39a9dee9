"""What is watched for drift while models serve, as it is configured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.config import DriftConfig, GateConfig, ServingConfig
from edged.device.serving import Predictor
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


def signals(folder: Path, **drift: Any) -> list[DriftSignal]:
    """The drifts that are signalled."""
    rules = DriftConfig(**drift).rules()
    predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, served(folder, 1, GOOD), rules)
    x, y = stream()
    found: list[DriftSignal] = []
    for first in range(0, len(x), 50):
        offsets = numbered(first + 1, 50)
        predictor.predict(offsets, x[first : first + 50])
        predictor.shadow(offsets, x[first : first + 50])
        predictor.label(offsets, y[first : first + 50])
        found += [signal for signal in predictor.drift.pop_signals() if signal.level is Level.DRIFT]
    return found


@pytest.mark.parametrize(
    ("key", "source"), [("errors", "error"), ("confidence", "confidence"), ("inputs", "inputs")]
)
def test_only_what_is_configured_is_watched(tmp_path: Path, key: str, source: str) -> None:
    others = {"errors": False, "confidence": False, "inputs": False}
    assert {signal.source for signal in signals(tmp_path, **others | {key: True})} == {source}
    assert signals(tmp_path, **others) == []


ERRORS: dict[str, Any] = {"confidence": False, "inputs": False}


def test_a_drift_is_told_again_after_the_cooldown(tmp_path: Path) -> None:
    once, often = (signals(tmp_path, cooldown=cooldown, **ERRORS) for cooldown in (10_000, 0))
    assert len(often) > len(once) == 1


def test_with_a_smaller_delta_a_drift_is_noticed_later(tmp_path: Path) -> None:
    early, late = (signals(tmp_path, delta=delta, **ERRORS)[0].offset for delta in (0.002, 1e-20))
    assert 3000 < early < late
