"""What each champion still knows of every part of the stream, measured on samples no one trains on.

`skill[i, j]`, `(T, T)` float64, is the quality on held-out samples of part `j` after learning part `i`;
larger is better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.domain.judging import metrics
from edged.domain.judging.outputs import answers
from edged.domain.stream.holdout import is_holdout
from edged.workbench.evaluation.figures import RetentionFigures

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.protocols import ServedModel
    from edged.domain.stream.schema import Schema
    from edged.workbench.recordings.stream import Stream

PARTS = 10
FEWEST_ROWS = 5
MOST_ROWS = 500


class ForgettingMeter:
    """Cuts the stream into parts and measures the champion on all of them at the end of each.

    Part 0 is the pre-training part, the others are of equal length. Of each the newest held-out
    samples are used, `MOST_ROWS` at most; a part with hardly any makes the whole measure void.
    """

    def __init__(self, stream: Stream, schema: Schema, pretrain: int, holdout: float) -> None:
        self._stream, self._schema = stream, schema
        self.bounds = np.linspace(pretrain, len(stream), PARTS + 1).astype(np.int64)
        starts = np.concatenate([[0], self.bounds])
        kept = is_holdout(np.arange(len(stream)) + 1, holdout) & stream.known
        self._rows = [
            np.flatnonzero(kept[start:end])[-MOST_ROWS:] + start
            for start, end in zip(starts, self.bounds, strict=False)
        ]
        whole = all(len(rows) >= FEWEST_ROWS for rows in self._rows)
        self.measured = whole and not schema.labels_itself
        self._skill: list[NDArray[np.float64]] = []

    def passed(self, position: int, champion: ServedModel) -> None:
        """The stream has been replayed up to `position`; measures where parts have ended."""
        while self.measured and len(self._skill) <= PARTS and position >= self.bounds[len(self._skill)]:
            self._skill.append(self.skill_of(champion))

    def skill_of(self, served: ServedModel) -> NDArray[np.float64]:
        """Skill of a model on every part, `(PARTS + 1,)`."""
        x, y = self._stream.x, self._stream.y
        return np.array([skill(self._schema, served, x[rows], y[rows]) for rows in self._rows])

    def figures(self, frozen: ServedModel) -> RetentionFigures | None:
        """Matrix and figures of continual learning for the report; None where they cannot be measured."""
        if not self.measured or len(self._skill) <= PARTS:
            return None
        skill = np.array(self._skill)
        first = self.skill_of(frozen)
        return RetentionFigures(
            parts=tuple(self.bounds.tolist()),
            skill=tuple(map(tuple, skill.round(4).tolist())),
            frozen=tuple(first.round(4).tolist()),
            backward_transfer=backward_transfer(skill),
            forward_transfer=forward_transfer(skill, first),
            forgetting=forgetting(skill),
        )


def skill(schema: Schema, served: ServedModel, x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    """Accuracy of a model on samples `(n, d)` with targets `(n, targets)`, or the negative absolute error."""
    answer = answers(schema, served.model.predict(x)).astype(np.float64)
    figures = metrics.score(schema, y.astype(np.float64), answer)
    return figures["accuracy"] if schema.task == "classify" else -figures["mae"]


def backward_transfer(skill: NDArray[np.float64]) -> float:
    """Mean change of the skill on each earlier part from the end of that part to the end of the stream.

    Negative values are forgetting. Lopez-Paz & Ranzato, "Gradient episodic memory for continual
    learning", NeurIPS 2017.

    >>> round(backward_transfer(np.array([[0.9, 0.5], [0.7, 0.8]])), 3)
    -0.2
    """
    return float(np.mean(skill[-1, :-1] - np.diag(skill)[:-1])) if len(skill) > 1 else 0.0


def forward_transfer(skill: NDArray[np.float64], untrained: NDArray[np.float64]) -> float:
    """Mean skill on each part before it was learned, above that of the first model, `untrained` `(T,)`.

    Lopez-Paz & Ranzato (2017), with the frozen model in place of a random one.

    >>> round(forward_transfer(np.array([[0.9, 0.6], [0.7, 0.8]]), np.array([0.9, 0.5])), 3)
    0.1
    """
    return float(np.mean(np.diag(skill, 1) - untrained[1:])) if len(skill) > 1 else 0.0


def forgetting(skill: NDArray[np.float64]) -> float:
    """Mean distance of the final skill on each earlier part from the best that was ever reached on it.

    Chaudhry et al., "Riemannian walk for incremental learning", ECCV 2018.

    >>> round(forgetting(np.array([[0.9, 0.5, 0.4], [0.95, 0.8, 0.4], [0.7, 0.8, 0.9]])), 3)
    0.125
    """
    if len(skill) < 2:
        return 0.0
    earlier = [skill[part:-1, part].max() - skill[-1, part] for part in range(len(skill) - 1)]
    return float(np.mean(earlier))
