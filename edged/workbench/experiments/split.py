"""A recorded stream in three parts, in the order of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.workbench.experiments.config import RecipeFile, SplitConfig
    from edged.workbench.recordings.stream import Stream

FEWEST = 10


@dataclass(frozen=True)
class Split:
    """Row numbers of the parts, rising; the test part may be empty. `gap` samples lie between two parts."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    gap: int

    def counts(self) -> dict[str, int]:
        """How many samples each part has."""
        return {name: len(getattr(self, name)) for name in ("train", "validation", "test")}


def split_rows(rows: NDArray[np.int64], shares: SplitConfig, gap: int) -> Split:
    """Cut rows `(n,)`, which are in the order of time, at the shares; `gap` rows before a cut are left out.

    Raises
    ------
    ConfigError
        When a part would have too few samples.
    """
    n = len(rows)
    first = round(n * shares.train)
    second = min(n, first + round(n * shares.validation))
    third = min(n, second + round(n * shares.test))
    parts = Split(
        rows[: max(0, first - gap)],
        rows[first : max(first, second - (gap if third > second else 0))],
        rows[second:third],
        gap,
    )
    for name, count in parts.counts().items():
        if count < FEWEST and not (name == "test" and shares.test == 0):
            raise ConfigError(
                f"the {name} part has {count} samples, at least {FEWEST} are needed",
                where=f"split.{name}",
                remedy="raise its share, lower split.gap, or take a longer recording",
            )
    return parts


def gap_of(file: RecipeFile, stream: Stream) -> int:
    """Samples between two parts so that none of one holds readings, or a target, of the next."""
    if file.split.gap is not None:
        return file.split.gap
    config = file.stream
    reach = config.horizon if config.resolved_task == "forecast" else 0
    if config.window is not None:
        rules = config.window.rules()
        reach += -(-rules.size // rules.stride) - 1
    return reach * len(set(stream.keys))
