"""The published recipe of edged's classifier as a plain loop in numpy: no holdout, no gate, no daemon.

Two networks with one hidden layer: one sees each feature in pieces (Gorishniy, Rubachev and Babenko 2022),
one sees a row beside means of the rows before it (Žliobaitė et al. 2015). Their answers are mixed in logs,
with weights that follow the labels (Mattern 2012). What edged adds to it, and what its gate and holdout cost,
is the difference to its own rows in `learning.py`, where this is a rival.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Doubles = NDArray[np.float64]
    Ids = NDArray[np.int64]

HALF_LIVES = (3, 12, 48)
HIDDEN, BATCH, FRESH, RATE, DECAY, PACE = 128, 64, 16, 1e-3, 1e-2, 0.002
BEGINNING = 2000  # steps on the pre-training part
RUN = 40  # labels
BLOCK = 10  # rows that are answered at once


def _standardised(x: Doubles, known: int) -> Doubles:
    scale = x[:known].std(axis=0)
    return np.asarray((x - x[:known].mean(axis=0)) / np.where(scale < 1e-6, 1.0, scale))


def in_pieces(x: Floats, known: int) -> Floats:
    """Rows `(n, d)` with each feature in pieces; edges are quantiles of the first `known` rows."""
    z = _standardised(x.astype(np.float64), known)
    bins = int(np.clip(384 // x.shape[1], 2, 8))
    columns = [np.clip(z, -5, 5)]
    for column in z.T:
        edges = np.unique(np.quantile(column[:known], np.linspace(0, 1, bins + 1)))
        columns += [2 * np.clip((column - a) / (b - a), 0, 1)[:, None] - 1 for a, b in pairwise(edges)]
    return np.hstack(columns).astype(np.float32)


def with_past(x: Floats, known: int) -> Floats:
    """Rows `(n, d)`, and their differences to exponential means of the rows before them."""
    columns = [x.astype(np.float64)]
    for half_life in HALF_LIVES:
        kept, total, count = 0.5 ** (1 / half_life), np.zeros(x.shape[1]), 0.0
        past = np.empty_like(columns[0])
        for i, row in enumerate(columns[0]):
            past[i] = total / count if count else row
            total, count = kept * total + row, kept * count + 1
        columns.append(columns[0] - past)
    return np.clip(_standardised(np.hstack(columns), known), -5, 5).astype(np.float32)


class Network:
    """One hidden layer, softmax, AdamW; `x` `(n, k)` are all rows of a stream."""

    def __init__(self, x: Floats, classes: int, rng: np.random.Generator) -> None:
        self._x = x
        shapes = [(x.shape[1], HIDDEN), (HIDDEN,), (HIDDEN, classes), (classes,)]
        self._w = [
            (rng.normal(0, np.sqrt(2 / shape[0]), shape) if len(shape) == 2 else np.zeros(shape)).astype(
                np.float32
            )
            for shape in shapes
        ]
        self._mean, self._square = ([np.zeros_like(w) for w in self._w] for _ in range(2))
        self._steps = 0

    def _forward(self, x: Floats) -> tuple[Floats, Floats]:
        hidden = np.maximum(x @ self._w[0] + self._w[1], 0)
        logits = hidden @ self._w[2] + self._w[3]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        return hidden, p / p.sum(axis=1, keepdims=True)

    def probabilities(self, rows: Ids) -> Floats:
        """Of each class, `(n, classes)`."""
        return self._forward(self._x[rows])[1]

    def step(self, rows: Ids, y: Ids) -> None:
        """One step on rows `(n,)` with classes `(n,)`."""
        x = self._x[rows]
        hidden, error = self._forward(x)
        error[np.arange(len(rows)), y] -= 1
        error /= len(rows)
        inner = (error @ self._w[2].T) * (hidden > 0)
        self._steps += 1
        gradients = (x.T @ inner, inner.sum(axis=0), hidden.T @ error, error.sum(axis=0))
        rate = RATE * np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps)
        for i, gradient in enumerate(gradients):
            self._mean[i] += 0.1 * (gradient - self._mean[i])
            self._square[i] += 0.001 * (gradient**2 - self._square[i])
            self._w[i] -= rate * self._mean[i] / (np.sqrt(self._square[i]) + 1e-8)
            if i % 2 == 0:
                self._w[i] *= 1 - RATE * DECAY


class Mixture:
    """Networks whose logs of probabilities are added up, each with a weight that labels move."""

    def __init__(self, networks: list[Network]) -> None:
        self._networks = networks
        self._weights = np.full(len(networks), 1 / len(networks))

    def logs(self, rows: Ids) -> Doubles:
        """Centred logs of the probabilities `(networks, n, classes)`."""
        p = np.stack([network.probabilities(rows) for network in self._networks]).astype(np.float64)
        logs = np.log(p + 1e-4)
        return np.asarray(logs - logs.mean(axis=2, keepdims=True))

    def answers(self, logs: Doubles) -> Ids:
        """Classes `(n,)`."""
        return np.asarray(np.tensordot(self._weights, logs, 1).argmax(axis=1))

    def learn(self, logs: Doubles, y: int) -> None:
        """A label `y` of a row, with the logs `(networks, classes)` of when it was answered."""
        mixed = self._weights @ logs
        error = np.exp(mixed - mixed.max())
        error /= error.sum()
        error[y] -= 1
        self._weights = np.maximum(0, self._weights - PACE * (logs @ error))

    def step(self, rows: Ids, y: Ids, number: int) -> None:
        """A step of the first network; of the second one half as often."""
        for network in self._networks[: 2 - number % 2]:
            network.step(rows, y)


def follow(x: Floats, y: Ids, known: int, delay: int, arrives: NDArray[np.bool_], seed: int) -> Ids:
    """Answers `(n,)` to rows `(n, d)`, labels `delay` rows late; the first `known` rows have theirs."""
    rng, classes, n = np.random.default_rng(seed), int(y.max()) + 1, len(y)
    mixture = Mixture([Network(inputs(x, known), classes, rng) for inputs in (in_pieces, with_past)])
    labelled = list(range(known))
    for number in range(BEGINNING):
        rows = rng.choice(known, BATCH)
        mixture.step(rows, y[rows], number)
    answers, logs = np.zeros(n, np.int64), np.zeros((2, n, classes))
    due, waiting = known, 0
    for start in range(known, n, BLOCK):
        rows = np.arange(start, min(start + BLOCK, n))
        logs[:, rows] = mixture.logs(rows)
        answers[rows] = mixture.answers(logs[:, rows])
        while due < rows[-1] + 1 - delay:
            if arrives[due]:
                mixture.learn(logs[:, due], int(y[due]))
                labelled.append(due)
                waiting += 1
            due += 1
        if waiting >= RUN:
            everything = np.asarray(labelled)
            for number in range(waiting):
                fresh, old = rng.choice(everything[-waiting:], FRESH), rng.choice(everything, BATCH - FRESH)
                picked = np.concatenate([fresh, old])
                mixture.step(picked, y[picked], number)
            waiting = 0
    return answers
