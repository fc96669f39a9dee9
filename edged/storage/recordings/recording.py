"""A recorded stream in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edged.errors import ConfigError
from edged.storage.recordings.rows import LeftOut

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Recording:
    """A recorded stream of `n` samples, in stream order.

    `x` `(n, d)` float32, contiguous, in the file's own units; NaN and infinity are kept, for the
    loop to refuse. `y` `(n,)` or `(n, k)` float64, class indices where the labels were text, None
    without labels. `t` `(n,)` float64 Unix seconds, finite, or None. `key` one text a sample or
    None. `names` the `d` feature names, empty where the file has none. `classes` the text labels in
    sorted order, empty where labels are numbers: `classes[int(y[i])]` is the label of sample i.
    `columns` are all names in the file, also of what was passed over; of an npz its arrays.
    `omitted` says which rows of the file are not even here, and why.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float64] | None = None
    t: NDArray[np.float64] | None = None
    key: list[str] | None = None
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    omitted: str = ""

    def __len__(self) -> int:
        return len(self.x)

    def finite(self) -> Recording:
        """Return the rows that can be samples: a reading with a NaN never becomes one."""
        keep = np.asarray(np.isfinite(self.x).all(axis=1))
        if keep.all():
            return self
        return replace(
            self,
            x=self.x[keep],
            y=None if self.y is None else self.y[keep],
            t=None if self.t is None else self.t[keep],
            key=None if self.key is None else [k for k, kept in zip(self.key, keep, strict=True) if kept],
        )

    def left_out(self) -> str | None:
        """Return how many rows can be no samples, and why; None when all can."""
        counted = LeftOut(total=len(self))
        counted.check(self.x, range(len(self)))
        return "; ".join(filter(None, (self.omitted, counted.line()))) or None


def check_rows(n: int) -> None:
    """Raise ConfigError for a file without rows."""
    if n == 0:
        raise ConfigError("holds no samples", remedy="a stream needs at least one row")


def classes_of(labels: Sequence[str]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Positions `(n,)` of text labels among the sorted classes, NaN for an empty one, and the classes."""
    classes = tuple(sorted(set(labels) - {""}))
    index = {name: float(i) for i, name in enumerate(classes)} | {"": float("nan")}
    return np.array([index[label] for label in labels], np.float64), classes
