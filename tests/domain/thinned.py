"""Updates as an earlier version could send them: the largest elements of each tensor alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edged.domain.training.weight_deltas import Coded, Coding, Floats, code


def thinned(weights: Mapping[str, Floats], share: float, gaps: Any = np.uint16) -> dict[str, Coded]:
    """Sparse int8 tensors of the largest `share` of the elements; positions as numbers of type `gaps`."""
    found = {}
    for name, value in weights.items():
        flat = value.reshape(-1)
        places = np.sort(np.argsort(-np.abs(flat), kind="stable")[: math.ceil(share * flat.size)])
        part = code({name: flat[places]}, Coding("int8"))[name]
        steps = (np.diff(places, prepend=-1) - 1).astype(gaps)
        found[name] = Coded(part.values, value.shape, part.scale, steps)
    return found
