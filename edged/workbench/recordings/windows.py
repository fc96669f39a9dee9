"""A recorded stream of readings as a stream of windows, cut as the daemon cuts them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.stream.sample import Reading
from edged.domain.stream.windowing import Windowing
from edged.errors import ConfigError
from edged.storage.recordings import Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from edged.domain.stream.sample import LabelValue
    from edged.domain.stream.windowing import WindowRules


def cut_windows(recorded: Recording, rules: WindowRules) -> tuple[Recording, dict[str, int]]:
    """Windows of a recording in which each row is one reading `(n, c)`, and what was counted on the way.

    In a recording without times the readings of a key are evenly spaced, at the rate where there is one;
    then the windows have no times either.

    Raises
    ------
    ConfigError
        When not one window comes of it.
    """
    channels = recorded.x.shape[1]
    if recorded.t is None and rules.rate is None:
        rules = replace(rules, max_gap=None)
    windowing = Windowing(rules, channels)
    made = [window for reading in _readings(recorded, rules) for window in windowing.accept(reading)]
    counted = {
        "taken": len(recorded),
        "gaps": windowing.gaps,
        "out_of_order": windowing.late,
        "forgotten": windowing.forgotten,
    }
    if not made:
        raise ConfigError(
            f"no window of {rules.size} readings comes of {len(recorded)} ({windowing.gaps} gaps)",
            where="stream.window",
            remedy="lower size, or see whether rate and max_gap fit the times of the data",
        )
    cut = Recording(
        np.array([window.values for window in made], np.float32),
        _labels(recorded, [window.label for window in made]),
        None if recorded.t is None else np.array([window.ts for window in made]),
        None if recorded.key is None else [window.key for window in made],
        classes=recorded.classes,
    )
    return cut, counted


def _readings(recorded: Recording, rules: WindowRules) -> Iterator[Reading]:
    keys = recorded.key or ["stream"] * len(recorded)
    seen: Counter[str] = Counter()
    for i, key in enumerate(keys):
        ts = seen[key] / (rules.rate or 1.0) if recorded.t is None else float(recorded.t[i])
        seen[key] += 1
        yield Reading(key, recorded.x[i], ts, _label(recorded, i))


def _label(recorded: Recording, i: int) -> LabelValue | None:
    if recorded.y is None or not np.isfinite(recorded.y[i]).all():
        return None
    return float(recorded.y[i]) if recorded.y.ndim == 1 else tuple(recorded.y[i].tolist())


def _labels(recorded: Recording, labels: list[LabelValue | None]) -> NDArray[np.float64] | None:
    if recorded.y is None:
        return None
    unknown = np.full(recorded.y.shape[1:], np.nan)
    return np.array([unknown if label is None else label for label in labels], np.float64)
