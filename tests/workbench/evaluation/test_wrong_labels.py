"""Wrong labels, through the whole loop: a few cost little."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.config import loader
from edged.domain.events import TrainingPaused
from edged.storage.recordings.rows import Recording
from edged.workbench.evaluation.replay import Replay
from edged.workbench.evaluation.stream import LabelOptions, shape_stream
from tests.building import build
from tests.commands import write_config

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.storage.models.bundles import Bundle

ROWS, CLASSES = 3600, 3
PRETRAINED = 260
SETTINGS: dict[str, Any] = {
    "training": {"engine": "portable", "new_labels": 40, "learning_rate": 0.003},
    "gate": {"holdout": 0.2},
}


def stream() -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Three classes that can be told apart but for a few rows."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, ROWS)
    centres = np.eye(CLASSES, 6) * 3.0
    return (centres[y] + rng.normal(size=(ROWS, 6))).astype(np.float32), y.astype(np.float64)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path: Path = tmp_path_factory.mktemp("bundles") / "classifier"
    return build(mlp(6, CLASSES, (16,)), path, loss="cross_entropy", standardise=Statistics.identity(6))


def replayed(folder: Path, bundle: Bundle, arriving: NDArray[np.float64]) -> Replay:
    folder.mkdir()
    sections = SETTINGS | {"model": {"bundle": str(bundle.path), "head": "ridge"}}
    config = loader.load(write_config(folder, {"features": 6, "classes": CLASSES}, **sections), {})
    options = LabelOptions(delay=20, pretrain=PRETRAINED)
    replay = Replay(
        config, shape_stream(Recording(stream()[0], arriving), config, options), options, folder / "state"
    )
    replay.run()
    return replay


def accuracy(replay: Replay) -> float:
    """Against the true labels."""
    return float((replay.answers[PRETRAINED:, 0] == stream()[1][PRETRAINED:]).mean())


@pytest.mark.full
def test_a_tenth_of_wrong_labels_costs_little_and_pauses_nothing(tmp_path: Path, bundle: Bundle) -> None:
    rng, y = np.random.default_rng(1), stream()[1]
    flipped = np.where(rng.random(ROWS) < 0.1, (y + rng.integers(1, CLASSES, ROWS)) % CLASSES, y)
    clean, wrong = replayed(tmp_path / "clean", bundle, y), replayed(tmp_path / "flipped", bundle, flipped)
    assert accuracy(clean) > 0.9
    assert accuracy(wrong) >= accuracy(clean) - 0.05
    for replay in (clean, wrong):
        assert not [event for _, event in replay.events if isinstance(event, TrainingPaused)]
