"""Wrong labels, through the whole loop: a few cost little, and what nobody can explain is not learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.build import build
from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.config import loader
from edged.domain.events import CandidateRejected, LabelsDisputed, TrainingPaused
from edged.storage.recordings import Recording
from edged.workbench.evaluation.replay import Replay
from edged.workbench.recordings.stream import LabelOptions, shape_stream
from tests.commands import write_config
from tests.installed import USUAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.storage.models.bundles import Bundle

ROWS, CLASSES = 3600, 3
PRETRAINED, FALSE_FROM, NOISY_FROM = 260, 900, 1700
SETTINGS: dict[str, Any] = {
    "training": {"engine": USUAL, "min_new_samples": 40, "learning_rate": 0.003},
    "gate": {"recent": 60, "holdout": 0.2},
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


def replayed(
    folder: Path,
    bundle: Bundle,
    arriving: NDArray[np.float64],
    *,
    watched: bool = True,
    pretrained: int = PRETRAINED,
) -> Replay:
    folder.mkdir()
    sections = SETTINGS | {"model": {"bundle": str(bundle.path), "head": "ridge"}}
    sections["gate"] = {**sections["gate"], "suspect_labels": watched}
    config = loader.load(write_config(folder, {"features": 6, "classes": CLASSES}, **sections), {})
    options = LabelOptions(delay=20, pretrain=pretrained)
    replay = Replay(
        config, shape_stream(Recording(stream()[0], arriving), config, options), options, folder / "state"
    )
    replay.run()
    return replay


def accuracy(replay: Replay) -> float:
    """Against the true labels."""
    return float((replay.answers[PRETRAINED:, 0] == stream()[1][PRETRAINED:]).mean())


@pytest.mark.slow
def test_a_tenth_of_wrong_labels_costs_little_and_pauses_nothing(tmp_path: Path, bundle: Bundle) -> None:
    rng, y = np.random.default_rng(1), stream()[1]
    flipped = np.where(rng.random(ROWS) < 0.1, (y + rng.integers(1, CLASSES, ROWS)) % CLASSES, y)
    clean, wrong = replayed(tmp_path / "clean", bundle, y), replayed(tmp_path / "flipped", bundle, flipped)
    assert accuracy(clean) > 0.9
    assert accuracy(wrong) >= accuracy(clean) - 0.05
    for replay in (clean, wrong):
        assert not [event for _, event in replay.events if isinstance(event, TrainingPaused)]


@pytest.mark.slow
def test_labels_that_became_noise_are_refused_and_training_pauses(tmp_path: Path, bundle: Bundle) -> None:
    rng, y = np.random.default_rng(1), stream()[1]
    noisy = (np.arange(ROWS) >= NOISY_FROM) & (rng.random(ROWS) < 0.5)
    arriving = np.where(noisy, rng.integers(0, CLASSES, ROWS), y)
    watched = replayed(tmp_path / "watched", bundle, arriving)
    paused = [(at, event) for at, event in watched.events if isinstance(event, TrainingPaused)]
    since = paused[0][0]
    assert NOISY_FROM < since < ROWS
    assert {(event.reason, (event.new_labels or 0) >= 200) for _, event in paused} == {("labels", True)}
    late = [e.judged for at, e in watched.events if isinstance(e, CandidateRejected) and at >= since]
    assert late
    assert all("the newest labels look wrong" in judged.verdict.reasons[-1] for judged in late)
    assert accuracy(watched) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("pretrained", [PRETRAINED, FALSE_FROM])
def test_of_a_source_that_falsifies_a_class_what_contradicts_the_model_is_not_learned(
    tmp_path: Path, bundle: Bundle, pretrained: int
) -> None:
    """Whether labels that were predicted before them confirm the model, or those that are stored."""
    rng, y = np.random.default_rng(1), stream()[1]
    false = (np.arange(ROWS) >= FALSE_FROM) & (y == 1) & (rng.random(ROWS) < 0.6)  # more than half
    arriving = np.where(false, 0.0, y)
    watched = replayed(tmp_path / "watched", bundle, arriving, pretrained=pretrained)
    disputes = [(at, event) for at, event in watched.events if isinstance(event, LabelsDisputed)]
    ((told, event),) = disputes
    assert FALSE_FROM < told <= FALSE_FROM + 500
    assert (event.predicted, event.said, event.labels) == ("1", "0", "contradicting")
    usual = replayed(tmp_path / "usual", bundle, arriving, watched=False, pretrained=pretrained)

    def recall(replay: Replay) -> float:
        return float((replay.answers[1400:, 0] == 1)[y[1400:] == 1].mean())

    assert recall(watched) > 0.85
    assert recall(usual) < 0.7
    assert watched.pipeline.teacher.changes <= 3, "the head learns anew once a dispute, not once a label"
