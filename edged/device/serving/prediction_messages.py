"""Predictions as the JSON messages that are published."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from edged.domain.judging.prediction_sets import Promise
from edged.domain.judging.predictions import Predictions
from edged.domain.stream.open_classes import OpenClasses


def encode(
    made: Predictions,
    ids: Sequence[str],
    keys: Sequence[str],
    ts: NDArray[np.float64],
    classes: Sequence[str],
) -> list[bytes]:
    """Return the JSON payloads of a batch of predictions.

    Output, label and confidence of a row without an answer are null; so is the label of an undecided one. An
    untrained model says what it lacks.
    """
    # Of classes that come and go an output may have none yet.
    names = [name or None for name in classes] if isinstance(classes, OpenClasses) else list(classes)
    confidence = None if made.confidence is None else made.confidence.tolist()
    undecided = made.undecided.tolist() if made.promise is not None or made.least else None
    sets = [None] * len(ids) if made.promise is None else _sets(made.promise, names)
    payloads = []
    rows = zip(ids, keys, ts.tolist(), made.output.tolist(), made.answers.tolist(), strict=True)
    for i, (sample, key, moment, output, answer) in enumerate(rows):
        known = isfinite(sum(output))
        label = names[int(answer[0])] if known and names and not (undecided and undecided[i]) else None
        message: dict[str, Any] = {
            "id": sample,
            "key": key,
            "ts": round(moment, 6),
            "output": [_short(value) for value in output] if known else None,
            "label": label,
            "confidence": _short(confidence[i]) if known and confidence is not None else None,
        }
        if made.promise is not None:
            message |= {"set": sets[i] if known else None, "coverage": made.promise.coverage}
        message["model"] = made.version
        if made.missing is not None:
            message |= {"untrained": True, "missing": made.missing}
        payloads.append(to_json(message))
    return payloads


def _short(value: float) -> float:
    """Return a float32 with the six digits that it is sure of."""
    return float("%.6g" % value)


def _sets(promise: Promise, names: Sequence[str | None]) -> list[list[Any] | None]:
    """Return the set of each row: class names or pairs of limits; None where there are too few labels."""
    sets: list[list[Any] | None] = []
    for row, made in zip(promise.sets.tolist(), promise.made.tolist(), strict=True):
        if not made:
            sets.append(None)
        elif promise.of_classes:
            inside = zip(names, row, strict=True)
            sets.append([name for name, within in inside if within and name is not None])
        else:
            sets.append([[_short(low), _short(high)] for low, high in row])
    return sets
