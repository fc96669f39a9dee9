"""From raw model outputs to answers, probabilities and errors.

Raw outputs are `(n, k)` float32 as the inference model gives them: logits for classification,
values in the target's own units otherwise.
"""

from __future__ import annotations

from math import exp, log

import numpy as np

from edged.domain.arrays import Doubles, Floats
from edged.domain.bundle_contents import FLOOR
from edged.domain.stream.schema import Schema

FEW = 16  # values of a single row, up to which it is computed faster without arrays


def probabilities(raw: Floats) -> Floats:
    """Class probabilities `(n, c)` from logits `(n, c)`; one logit is read as two classes.

    >>> probabilities(np.array([[0.0, 0.0]], np.float32)).tolist()
    [[0.5, 0.5]]
    """
    if raw.shape[1] == 1:
        raw = np.concatenate([np.zeros_like(raw), raw], axis=1)
    if len(raw) == 1 and raw.shape[1] <= FEW:
        return np.array([_softmax(raw[0].tolist())], np.float32)
    # The ufuncs themselves: for a single row what the methods do around them takes as long.
    shifted = np.exp(raw - np.maximum.reduce(raw, axis=1, keepdims=True))
    shifted /= np.add.reduce(shifted, axis=1, keepdims=True)
    return np.asarray(shifted, np.float32)


def log_likelihoods(raw: Floats | Doubles) -> Floats:
    """log(p + 1e-4) of each class less its mean over the classes, `(n, c)`, of logits as above."""
    c = raw.shape[1]
    if len(raw) == 1 < c <= FEW:
        logs = [log(p + FLOOR) for p in _softmax(raw[0].tolist())]
        mean = sum(logs) / c
        return np.array([[value - mean for value in logs]], np.float32)
    found: Floats = np.log(probabilities(np.asarray(raw, np.float32)) + FLOOR)
    found -= np.add.reduce(found, axis=1, keepdims=True) / found.shape[1]
    return found


def _softmax(row: list[float]) -> list[float]:
    most = max(row)
    shares = [exp(value - most) for value in row]
    total = sum(shares)
    return [share / total for share in shares]


def answers(schema: Schema, raw: Floats) -> Floats:
    """Return the answers that labels are compared with: `(n, 1)` class indices, or `(n, targets)` values."""
    if schema.task != "classify":
        return raw
    best = raw[:, 0] > 0 if raw.shape[1] == 1 else raw.argmax(axis=1)
    return np.asarray(best, np.float32).reshape(-1, 1)


def errors(schema: Schema, answer: Floats, y: Floats, scale: Floats | None = None) -> Doubles:
    """Error of each row, `(n,)`: 0 or 1 for classes, mean absolute error over the targets otherwise.

    `scale` `(targets,)` weights the targets, so that none counts for more because of its unit.
    """
    if schema.task == "classify":
        return np.asarray(answer[:, 0] != y[:, 0], np.float64)
    difference = np.abs(answer.astype(np.float64) - y)
    if scale is not None:
        difference = difference * scale
    return np.asarray(difference.mean(axis=1))


def unit_scale(y: Floats) -> Floats:
    """`1/std` of each target, `(targets,)`; 1 for constant ones."""
    deviation = y.std(axis=0, dtype=np.float64)
    return np.asarray(np.where(deviation > 1e-12, 1.0 / np.maximum(deviation, 1e-12), 1.0), np.float32)
