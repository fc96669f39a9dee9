"""A closed-form classifier beside the networks: it takes effect with each label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edged.domain.arrays import Doubles, Floats, Ints
from edged.domain.child_orders import LinearHead
from edged.domain.judging.outputs import log_likelihoods, probabilities
from edged.domain.stream.schema import Schema

SELDOM = 8000  # labels from which on a solution is not for a twentieth more of them, but for 400
LARGEST = 512  # columns: what is solved takes their square in memory, and their cube in time
HALF_LIFE = 3000.0  # labels after which one counts half
PENALTY, CONTEXT_PENALTY = 10.0, 100.0  # of weights of standardised features, and of their context
FEWEST = 2  # labels of a class before it can be answered
YOUNG = 10  # labels of a class with each of which it is known much better; as many as it counts until then
CLIP, FAR, ENOUGH = (
    5.0,
    10.0,
    20,
)  # standard deviations: in answers; in what is learned, from so many labels on


@dataclass(frozen=True)
class _Solution:
    """Scores are `prior + clip((x - mean) * scale) @ weights`; `ready` once they tell two classes apart."""

    mean: Doubles
    scale: Doubles
    weights: Doubles
    prior: Doubles
    ready: bool

    def scores(self, x: Doubles | Floats) -> Doubles:
        z = x - self.mean
        z *= self.scale
        np.maximum(z, -CLIP, out=z)  # np.clip takes longer for a row
        np.minimum(z, CLIP, out=z)
        return np.asarray(self.prior + z @ self.weights)


@dataclass(frozen=True)
class Learned:
    """Labels that a model was trained on: up to `position` in label order, when there were `classes`.

    `classes` is None where they are fixed. A label that was changed keeps its position, so that alone does
    not tell whether a model has seen the class.
    """

    position: int
    classes: int | None = None

    @classmethod
    def of(cls, position: int | None, classes: int | None) -> Learned | None:
        """Return what was learned up to a position; None where it is not known."""
        return None if position is None else cls(position, classes)

    def covers(self, place: int, first: int) -> bool:
        """Return whether a class may have been seen, by its output and the position of its first label."""
        return first <= self.position and (self.classes is None or place < self.classes)


class RidgeHead:
    """Ridge regression of classes on samples and their context, in closed form.

    It keeps sums over samples `(1, x)` and their classes, in which older ones count less, and solves
    (ZᵀZ + Λ)·W = ZᵀY for standardised Z when they have grown by a twentieth, by 400 labels, or by a class,
    and with each of the first `YOUNG` labels of a class, which until then counts as if it had so many.
    A row that is subtracted from the sums is forgotten exactly. Scores become probabilities by a softmax
    whose sharpness follows what the scores of each label had been before it was learned (Newton's method on
    its likelihood).

    `learn` is called by one thread at a time, `likelihoods` by any other. `first` has the position in label
    order of each class's first label among those that were learned, which begin at `since`.
    """

    def __init__(self, columns: int, measured: int, classes: int) -> None:
        self.columns, self.classes = columns, classes
        self._penalty = np.where(np.arange(columns) < measured, PENALTY, CONTEXT_PENALTY)
        self.clear()

    @classmethod
    def of(cls, schema: Schema) -> RidgeHead | None:
        """The head of a stream of classes, without context where that is too wide; None where it has none."""
        width = schema.width if schema.width < LARGEST else schema.measured
        if schema.task != "classify" or width >= LARGEST:
            return None
        return cls(width, schema.measured, schema.outputs)

    def clear(self) -> None:
        """Reset the head: it has learned no label then."""
        self._origin: Doubles = np.zeros(self.columns)
        self._sums = np.zeros((self.columns + 1, self.columns + 1))
        self._by_class = np.zeros((self.columns + 1, self.classes))
        self._counts = np.zeros(self.classes, np.int64)
        self.first: dict[int, int] = {}
        self.since = 0
        self._solved_at = 0
        self._solution: _Solution | None = None
        self._sharpness, self._certainty = 5.0, 10.0

    # ---- answers ---------------------------------------------------------------------------

    @property
    def labels(self) -> int:
        """Number of labels that the head has learned."""
        return int(self._counts.sum())

    @property
    def answerable(self) -> int:
        """Number of classes with enough labels to be an answer."""
        return int((self._counts >= FEWEST).sum())

    def progress(self, classes: Sequence[int]) -> tuple[int, int]:
        """Labels there are of those needed to answer each of these classes, and how many those are."""
        return int(np.minimum(self._counts[list(classes)], FEWEST).sum()), FEWEST * max(2, len(classes))

    def beyond(self, learned: Learned) -> list[int]:
        """Classes that can be answered, and of which a model that has learned so much has seen no label.

        Where all labels here came after those of the model, it is not known which classes were among its own.
        """
        comparable = self.since <= learned.position
        return [
            place
            for place, first in list(self.first.items())
            if not learned.covers(place, first if comparable else 0) and self._counts[place] >= FEWEST
        ]

    def likelihoods(self, x: Floats) -> Floats:
        """log(p + 1e-4) of each class less its mean over the classes, `(n, c)`, of rows `(n, d)`.

        0 where nothing is known yet.
        """
        solution = self._solution
        if solution is None or not solution.ready:
            return np.zeros((len(x), self.classes), np.float32)
        logits = solution.scores(x[:, : self.columns])
        logits *= self._sharpness
        return log_likelihoods(logits)

    def answers(self, x: Floats, left_out: Ints | None = None) -> Ints:
        """The most probable class of each row `(n, d)`, `(n,)`; -1 where nothing is known yet.

        Of rows that were learned as classes `left_out` `(n,)`, each answer is that of a head that has learned
        all but this row.
        """
        solution = self._solution
        if solution is None or not solution.ready:
            return np.full(len(x), -1, np.int64)
        rows = x[:, : self.columns].astype(np.float64)
        scores = solution.scores(rows)
        if left_out is not None:
            total, sums = float(self._sums[0, 0]), self._sums[0, 1:]
            spread = self._sums[1:, 1:] - np.outer(sums, sums / total)
            z = np.clip((rows - solution.mean) * solution.scale, -CLIP, CLIP)
            inverse = np.linalg.inv(self._penalised(spread, solution.scale))
            weight = (1 / total + ((z @ inverse) * z).sum(axis=1))[:, None]  # of a row in its own answer
            scores = (scores - weight * (left_out[:, None] == np.arange(self.classes))) / (1 - weight)
        return np.asarray(scores.argmax(axis=1))

    @property
    def linear(self) -> LinearHead | None:
        """The head as constants; None before it answers."""
        found = self._solution
        if found is None or not found.ready:
            return None
        mean, scale, prior = (tuple(values.tolist()) for values in (found.mean, found.scale, found.prior))
        weights = tuple(tuple(row) for row in found.weights.tolist())
        return LinearHead(mean, scale, weights, prior, self._sharpness, CLIP)

    # ---- learning --------------------------------------------------------------------------

    def learn(self, x: Floats, y: Ints) -> None:
        """Learn rows `(n, d)` of classes `y` `(n,)`, oldest first; those that are not finite are left out."""
        rows = x[:, : self.columns].astype(np.float64)
        usable = np.isfinite(rows).all(axis=1) & (y >= 0) & (y < self.classes)
        rows, y = rows[usable], y[usable]
        if not len(rows):
            return
        self._sharpen(rows, y)
        if not self.labels:
            self._origin = rows[0].copy()  # sums of differences keep their digits
        before = self.answerable
        self._add(self._bounded(rows), y)
        grown = self.labels > self._solved_at + min(self._solved_at, SELDOM) // 20
        if grown or self.answerable > before or (self._counts[y] <= YOUNG).any():
            self._solve()

    def _add(self, rows: Doubles, y: Ints) -> None:
        n = len(rows)
        share = 0.5 ** (np.arange(n)[::-1] / HALF_LIFE)
        long = np.concatenate([np.ones((n, 1)), rows - self._origin], axis=1)
        weighted = long * share[:, None]
        kept = 0.5 ** (n / HALF_LIFE)
        self._sums *= kept
        self._sums += weighted.T @ long
        self._by_class *= kept
        np.add.at(self._by_class.T, y, weighted)
        np.add.at(self._counts, y, 1)

    def _bounded(self, rows: Doubles) -> Doubles:
        """Rows with values no further from the mean than `FAR`: one that is impossible moves little."""
        solution = self._solution
        if solution is None or self.labels < ENOUGH:
            return rows
        far = np.where(solution.scale > 0, FAR / np.where(solution.scale > 0, solution.scale, 1), np.inf)
        return np.clip(rows, solution.mean - far, solution.mean + far)

    def _with_young(self) -> tuple[Doubles, Doubles]:
        """The sums, in which a class with few labels has its mean so often that it counts as `YOUNG`."""
        counts = self._by_class[0]
        young = np.flatnonzero((self._counts >= FEWEST) & (self._counts < YOUNG) & (counts > 1e-9))
        more = YOUNG / counts[young] - 1
        added = self._by_class[:, young] * more
        by_class = self._by_class.copy()
        by_class[:, young] += added
        return self._sums + added @ (self._by_class[:, young] / counts[young]).T, by_class

    def _solve(self) -> None:
        grown, shares = self._with_young()
        total, sums = float(grown[0, 0]), grown[0, 1:]
        mean, by_class = sums / total, shares[0]
        spread = grown[1:, 1:] - np.outer(sums, mean)
        deviation = np.sqrt(np.maximum(spread.diagonal(), 0) / total)
        tiny = deviation <= 1e-7 * np.maximum(np.abs(mean), 1e-5)
        scale = np.where(tiny, 0.0, 1 / np.where(tiny, 1, deviation))
        right = (shares[1:] - np.outer(mean, by_class)) * scale[:, None]
        weights = np.asarray(np.linalg.solve(self._penalised(spread, scale), right), np.float64)
        self._solution = _Solution(mean + self._origin, scale, weights, by_class / total, self.answerable > 1)
        self._solved_at = self.labels

    def _penalised(self, spread: Doubles, scale: Doubles) -> Doubles:
        """ZᵀZ + Λ, from the spread of the features."""
        left = spread * scale * scale[:, None]
        left[np.diag_indices_from(left)] += self._penalty
        return left

    def _sharpen(self, rows: Doubles, y: Ints) -> None:
        """Move the sharpness to where new labels are likelier, by their scores before they are learned."""
        solution = self._solution
        if solution is None or not solution.ready:
            return
        scores = solution.scores(rows)
        share = probabilities((self._sharpness * scores).astype(np.float32))
        expected = (share * scores).sum(axis=1)
        slope = float((scores[np.arange(len(y)), y] - expected).sum())
        bend = float((share * scores**2).sum() - (expected**2).sum())
        self._certainty = self._certainty * 0.5 ** (len(y) / HALF_LIFE) + bend
        self._sharpness = float(np.clip(self._sharpness + slope / max(self._certainty, 1e-9), 1.0, 50.0))
