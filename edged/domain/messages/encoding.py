"""JSON as the standard knows it: no NaN and no infinity."""

from __future__ import annotations

import math
from typing import Any


def json_ready(values: Any) -> Any:
    """The same with null for numbers that JSON does not have.

    >>> json_ready({"mae": float("nan"), "rows": (1, 2.5)})
    {'mae': None, 'rows': [1, 2.5]}
    """
    if isinstance(values, float) and not math.isfinite(values):
        return None
    if isinstance(values, dict):
        return {key: json_ready(value) for key, value in values.items()}
    return [json_ready(value) for value in values] if isinstance(values, list | tuple) else values
