"""Trainings as child processes: what is said of one that does not come to its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.workbench.experiments.config import RecipeFile
from edged.workbench.experiments.grid import expand
from edged.workbench.experiments.job import BUNDLE, TrialOrder
from edged.workbench.experiments.runner import Runner

if TYPE_CHECKING:
    from edged.workbench.experiments.job import EpochDone
    from edged.workbench.experiments.runner import TrialOutcome

FILE = RecipeFile.model_validate({"stream": {"features": 2, "classes": 2}, "recipes": [{}]})


class Told:
    """The messages of trainings; None for the end of one."""

    def __init__(self) -> None:
        self.messages: list[EpochDone | None] = []

    def begin(self, orders: Sequence[TrialOrder]) -> None:
        assert len(orders) == 1

    def advanced(self, order: TrialOrder, point: EpochDone) -> None:
        self.messages.append(point)

    def ended(self, order: TrialOrder) -> None:
        self.messages.append(None)


def outcome(folder: Path, timeout: float) -> tuple[TrialOutcome, list[Any]]:
    """How a training without data ended, and what was told on the way."""
    schema, own = FILE.stream.to_schema(), folder / "trial"
    (recipe,) = expand(FILE, Path())
    order = TrialOrder(recipe, schema, 3, "auto", 1, "accuracy", folder, own, own / BUNDLE)
    progress = Told()
    (found,) = Runner(2, timeout, progress).run([order])
    assert found.order is order
    return found, progress.messages


def test_a_training_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    found, told = outcome(tmp_path, timeout=0.05)
    assert (found.result, found.problem) == (None, "it took longer than 0.05 s (timeout)")
    assert told == [None]


@pytest.mark.slow
def test_a_training_that_breaks_is_told_by_its_last_line(tmp_path: Path) -> None:
    found, told = outcome(tmp_path, timeout=60)
    assert found.result is None
    assert "No such file or directory" in found.problem
    assert told == [None]
