"""From raw model outputs to answers, probabilities and errors.

Raw outputs are `(n, k)` float32 as the inference model gives them: logits for classification,
values in the target's own units otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edged.domain.stream.schema import Schema

Floats = NDArray[np.float32]


def probabilities(raw: Floats) -> Floats:
    """Class probabilities `(n, c)` from logits `(n, c)`; one logit is read as two classes.

    >>> probabilities(np.array([[0.0, 0.0]], np.float32)).tolist()
    [[0.5, 0.5]]
    """
    if raw.shape[1] == 1:
        raw = np.concatenate([np.zeros_like(raw), raw], axis=1)
    shifted = np.exp(raw - raw.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), np.float32)


def answers(schema: Schema, raw: Floats) -> Floats:
    """What a label is compared with: `(n, 1)` class indices, or `(n, targets)` values."""
    if schema.task != "classify":
        return raw
    best = raw[:, 0] > 0 if raw.shape[1] == 1 else raw.argmax(axis=1)
    return np.asarray(best, np.float32).reshape(-1, 1)


def errors(schema: Schema, answer: Floats, y: Floats, scale: Floats | None = None) -> NDArray[np.float64]:
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
