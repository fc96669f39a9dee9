"""Stored labels that the other labels contradict, and a map of the samples.

Each label is judged by classifiers that were fitted without it: ridge regression of the classes on random
features, whose answer without a row follows in closed form from the fit with it (the leave-one-out identity
of Allen's PRESS, Technometrics 16, 1974): p₋ᵢ = yᵢ − (yᵢ − pᵢ)/(1 − hᵢ), hᵢ the leverage of the row. So no
label vouches for itself, and none is fitted twice. Two such answers are averaged, of all rows and of the
stretch of label order around the row: what held once need not hold now.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edged.domain.arrays import Doubles, Flags, Floats, Ints, quantiles
from edged.domain.judging.outputs import probabilities
from edged.domain.protocols import Throttle
from edged.domain.seeded_rng import SeededRng
from edged.errors import TrainingError

FEATURES = 250  # random features of the measured values, and as many of all inputs
PENALTY = 10.0  # of weights of standardised features
STRETCH = 5000  # labels that are fitted together beside all of them
PART = 1000  # rows in memory at a time with their features
FEWEST_LABELS, FEWEST = 40, 5  # labels that a review takes, and of a class for one of them to be judged
CLIP = 5.0  # standard deviations
STEPS = 30  # of Newton's method, and of the power iteration
FLOOR = 1e-4  # of a probability
MAPPED = 0.2  # probability that a class has somewhere, to have a place on the map


@dataclass(frozen=True)
class ReviewedLabels:
    """What is said of labels without them: `p` `(n, c)` probabilities, `scores` `(n, c)` before they were.

    `judged` `(n,)` says which labels have enough others of their class to be judged at all.
    """

    p: Floats
    scores: Doubles
    judged: Flags

    def suspicion(self, y: Ints) -> Doubles:
        """log(p of the likeliest other class / p of the label), `(n,)`; −inf where nothing can be said."""
        rows = np.arange(len(y))
        own, others = self.p[rows, y].astype(np.float64), self.p.astype(np.float64)
        others[rows, y] = 0.0
        odds = np.log((others.max(axis=1) + FLOOR) / (own + FLOOR))
        return np.where(self.judged, odds, -np.inf)


def review(
    x: Floats, y: Ints, classes: int, measured: int, throttle: Throttle | None = None
) -> ReviewedLabels | None:
    """Judge labels `y` `(n,)` of rows `x` `(n, d)`, oldest first; None where there are too few.

    The first `measured` of the `d` inputs are the sample, those behind them its context. `throttle` slows it
    down between parts of the rows; TrainingError when that asks to stop.
    """
    counts = np.bincount(y, minlength=classes)
    if len(y) < FEWEST_LABELS or int((counts >= FEWEST).sum()) < 2:
        return None
    fit = _LeaveOneOut(x, y, classes, measured, throttle)
    scores = fit.scores()
    scores[:, counts == 0] = scores.min()
    p = probabilities((_sharpness(scores, y) * scores).astype(np.float32))
    return ReviewedLabels(p, scores, counts[y] >= FEWEST)


class _LeaveOneOut:
    """Answers about each row by fits on the others; see `review`."""

    def __init__(self, x: Floats, y: Ints, classes: int, measured: int, throttle: Throttle | None) -> None:
        self._x, self._y, self._classes, self._measured = x, y, classes, measured
        self._throttle = throttle
        self._centre, self._scale, self._low, self._high = _units(x)
        draw, width = SeededRng(0), x.shape[1]
        self._weights = [
            (_normal(draw, n, FEATURES), 2 * draw.uniform(FEATURES) - 1) for n in (measured, width)
        ]

    def scores(self) -> Doubles:
        """Score of each class for each row, `(n, c)`, by fits without its label."""
        edges = np.linspace(0, len(self._x), max(1, len(self._x) // STRETCH) + 1).astype(int)
        stretches = [slice(int(a), int(b)) for a, b in pairwise(edges)]
        sums = [self._sums(stretch) for stretch in stretches]
        whole = _Fit(*(sum(parts) for parts in zip(*sums, strict=True)))
        made = np.empty((len(self._x), self._classes))
        for stretch, own in zip(stretches, sums, strict=True):
            fits = [whole] if len(sums) == 1 else [whole, _Fit(*own)]
            for part in self._parts(stretch):
                rows, truth = self._features(part), self._one_hot(part)
                made[part] = np.mean([fit.without_each(rows, truth) for fit in fits], axis=0)
        return made

    def _sums(self, stretch: slice) -> tuple[Doubles, Doubles]:
        size = 1 + 2 * FEATURES
        square, by_class = np.zeros((size, size)), np.zeros((size, self._classes))
        for part in self._parts(stretch):
            rows = self._features(part)
            square += rows.T @ rows
            by_class += rows.T @ self._one_hot(part)
        return square, by_class

    def _parts(self, stretch: slice) -> Iterator[slice]:
        for start in range(stretch.start, stretch.stop, PART):
            began = time.monotonic()
            yield slice(start, min(start + PART, stretch.stop))
            if self._throttle is not None:
                self._throttle.throttle(time.monotonic() - began)
                if self._throttle.stopping:
                    raise TrainingError("the review of labels was asked to stop")

    def _features(self, part: slice) -> Floats:
        x = np.clip(self._x[part].astype(np.float64), self._low, self._high)
        z = np.clip((x - self._centre) * self._scale, -CLIP, CLIP).astype(np.float32)
        made = [np.maximum(z[:, : len(w)] @ w + b, 0) for w, b in self._weights]
        return np.concatenate([np.ones((len(z), 1), np.float32), *made], axis=1)

    def _one_hot(self, part: slice) -> Floats:
        return np.eye(self._classes, dtype=np.float32)[self._y[part]]


class _Fit:
    """Ridge regression from sums over rows `(1, features)`: their products, and those with classes."""

    def __init__(self, square: Doubles, by_class: Doubles) -> None:
        n, total = square[0, 0], square[0, 1:]
        self._n, self._mean = n, total / n
        spread = square[1:, 1:] - np.outer(total, self._mean)
        diagonal = spread.diagonal().copy()
        spread[np.diag_indices_from(spread)] += PENALTY * diagonal / n + 1e-9 * n
        self._inverse = np.linalg.inv(spread)
        self._prior = by_class[0] / n
        self._slope = self._inverse @ (by_class[1:] - np.outer(self._mean, by_class[0]))

    def without_each(self, rows: Floats, truth: Floats) -> Doubles:
        away = rows[:, 1:] - self._mean
        leverage = 1.0 / self._n + np.einsum("ij,ij->i", away @ self._inverse, away)
        wrong = truth - (self._prior + away @ self._slope)
        return np.asarray(truth - wrong / np.maximum(1e-3, 1.0 - leverage)[:, None])


def _units(x: Floats) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Centre, 1/deviation, and the bounds of values that count: one that is impossible moves nothing."""
    low, high = quantiles(x[:: max(1, len(x) // STRETCH)], [0.01, 0.99])
    width = high - low
    low = np.where(width > 0, low - width, -np.inf)
    high = np.where(width > 0, high + width, np.inf)
    bounded = np.clip(x, low.astype(np.float32), high.astype(np.float32))
    deviation = bounded.std(axis=0, dtype=np.float64)
    scale = np.where(deviation > 0, 1.0 / np.where(deviation > 0, deviation, 1.0), 0.0)
    return bounded.mean(axis=0, dtype=np.float64), scale, low, high


def _normal(draw: SeededRng, rows: int, columns: int) -> Floats:
    """Normal numbers of variance 1/rows, by Box and Muller."""
    first, second = 1.0 - draw.uniform(rows * columns), draw.uniform(rows * columns)
    made = np.sqrt(-2.0 * np.log(first) / rows) * np.cos(2.0 * np.pi * second)
    return made.reshape(rows, columns).astype(np.float32)


def _sharpness(scores: Doubles, y: Ints) -> float:
    """The factor of scores `(n, c)` under which labels `(n,)` are likeliest (Newton's method)."""
    factor, own = 5.0, scores[np.arange(len(y)), y]
    for _ in range(STEPS):
        p = probabilities((factor * scores).astype(np.float32)).astype(np.float64)
        mean = (p * scores).sum(axis=1)
        bend = ((p * scores**2).sum(axis=1) - mean**2).sum()
        step = float((own - mean).sum() / max(bend, 1e-9))
        factor = float(np.clip(factor + step, 1.0, 50.0))
        if abs(step) < 1e-3:
            break
    return factor


# ---- the map -----------------------------------------------------------------------------------


def drawn(y: Ints, most: int) -> Ints:
    """At most `most` places in `y` `(n,)`, rising: as many of each class as can be, evenly over its labels.

    >>> drawn(np.array([0] * 98 + [1] * 2), 6).tolist()
    [0, 32, 65, 97, 98, 99]
    """
    places = [np.flatnonzero(y == one) for one in sorted(set(y.tolist()))]
    chosen, left = [], most
    for at, own in enumerate(sorted(places, key=len)):  # what a rare class leaves over is for the others
        count = min(len(own), left // (len(places) - at))
        left -= count
        chosen.append(own[np.linspace(0, len(own) - 1, count).round().astype(int)])
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)


def class_map(scores: Doubles, p: Floats, x: Floats) -> Doubles:
    """Places `(n, 2)` between −1 and 1 of rows `x` `(n, d)`; by scores and `p`, both `(n, c)`.

    Two classes lie left and right, by the scores' first principal component, three by the first two. More are
    anchors on a circle, like ones side by side, and a row lies where its probabilities draw it (the mapping
    RadViz: P. Hoffman et al., DNA visual and analytic data mining, IEEE Visualization 1997). Where the scores
    leave an axis free, or a row to its anchor alone, the principal components of the inputs tell rows apart.
    """
    centred = scores - scores.mean(axis=0)
    first, second = _components(centred)
    classes = np.flatnonzero(p.max(axis=0) > MAPPED)
    centre, scale, low, high = _units(x)
    z = np.clip((np.clip(x.astype(np.float64), low, high) - centre) * scale, -CLIP, CLIP)
    if len(classes) > 3:
        z -= p.astype(np.float64) @ np.linalg.lstsq(p.astype(np.float64), z, rcond=None)[0]
        angles = [np.arctan2(second @ p[:, one], first @ p[:, one]) for one in classes]
        turn = 2 * np.pi * np.argsort(np.argsort(angles)) / len(classes)
        share = p[:, classes] / p[:, classes].sum(axis=1, keepdims=True)
        first, second = (share @ np.cos(turn), share @ np.sin(turn))
        aside = np.pi / (2 * len(classes))
        beside = [aside * _bounded(one) for one in _components(z - z.mean(axis=0))]
        return np.stack([first + beside[0], second + beside[1]], axis=1) / (1.0 + aside)
    if second.std() < 0.05 * first.std():
        z -= np.outer(first, first @ z) / max(float(first @ first), 1e-12)
        second, _ = _components(z - z.mean(axis=0))
    return np.stack([_bounded(first), _bounded(second)], axis=1)


def _components(rows: Doubles) -> tuple[Doubles, Doubles]:
    """The first two principal components of centred rows `(n, d)`, each `(n,)`."""
    first = _component(rows)
    return first, _component(rows - np.outer(first, first @ rows) / max(float(first @ first), 1e-12))


def _component(rows: Doubles) -> Doubles:
    """The first principal component of centred rows `(n, d)`, `(n,)`; the power iteration."""
    square = rows.T @ rows
    direction = square[int(square.diagonal().argmax())].copy()
    for _ in range(STEPS):
        length = float(np.sqrt(direction @ direction))
        if length == 0.0:
            break
        direction = square @ (direction / length)
    direction /= max(float(np.sqrt(direction @ direction)), 1e-12)
    direction *= 1.0 if direction[int(np.abs(direction).argmax())] >= 0 else -1.0
    return np.asarray(rows @ direction)


def _bounded(values: Doubles) -> Doubles:
    low, high = quantiles(values, [0.005, 0.995])
    return np.asarray(np.clip(2.0 * (values - low) / max(high - low, 1e-12) - 1.0, -1.0, 1.0))
