"""Many updates made one: by the mean, or by statistics that a share of bad devices cannot move far.

McMahan et al. (2017) weigh by samples. Median and trimmed mean follow Yin et al., "Byzantine-robust
distributed learning: towards optimal statistical rates" (2018); they do not weigh devices by their samples,
which a bad one would state too high.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edged.domain.arrays import Floats
from edged.errors import NoDataError
from edged.fleet.config import ReduceSection
from edged.fleet.rules.layout import Doubles, EncodedUpdate, Layout

BLOCK_NUMBERS = 4 * 1024**2
"""Numbers of all updates that a statistic takes at once, which bounds the memory."""


@dataclass(frozen=True)
class RoundUpdate:
    """The admitted update of one device, whose row lies in a file.

    `factor` clips its norm. `read` returns so many bytes of the row (see `EncodedUpdate.to_bytes`) from a
    position on.
    """

    samples: int
    factor: float
    read: Callable[[int, int], bytes]

    def row(self, layout: Layout) -> EncodedUpdate:
        """Read the whole row."""
        return layout.from_bytes(self.read(0, layout.row_bytes))

    def scales(self, layout: Layout) -> Floats:
        """Read the `(rows,)` float32 scales, with the factor in them."""
        scales = np.frombuffer(self.read(layout.size, 4 * layout.rows), "<f4")
        return np.asarray(scales * np.float32(self.factor))


def aggregate(rule: ReduceSection, updates: Sequence[RoundUpdate], layout: Layout) -> Doubles:
    """Return the `(size,)` float64 change that the updates make together; NoDataError without updates."""
    if not updates:
        raise NoDataError("no update to aggregate")
    if rule.how == "mean":
        return _mean(updates, layout)
    return _by_column(updates, layout, _median if rule.how == "median" else _trimmed_mean(rule.trim))


def _mean(updates: Sequence[RoundUpdate], layout: Layout) -> Doubles:
    """Return the mean weighed by samples; the same memory for any number of devices."""
    total, samples = np.zeros(layout.size, np.float64), 0
    for update in updates:
        change = layout.change(update.row(layout))
        total += np.multiply(change, update.samples * update.factor, dtype=np.float64)
        samples += update.samples
    return total / samples


def _by_column(
    updates: Sequence[RoundUpdate], layout: Layout, statistic: Callable[[Floats], Doubles]
) -> Doubles:
    """Return a statistic of each column over the devices.

    `statistic` makes `(columns,)` of `(columns, devices)` float32, each row in ascending order.
    """
    scales = np.stack([update.scales(layout) for update in updates], axis=1)
    width = min(layout.size, max(1, BLOCK_NUMBERS // len(updates)))
    values, out = np.empty((len(updates), width), np.int8), np.empty(layout.size, np.float64)
    for start in range(0, layout.size, width):
        count = min(width, layout.size - start)
        for at, update in enumerate(updates):
            values[at, :count] = np.frombuffer(update.read(start, count), np.int8)
        block = scales[layout.row_of_each[start : start + count]]
        block *= values[:, :count].T
        block.sort(axis=1)
        out[start : start + count] = statistic(block)
    return out


def _trimmed_mean(share: float) -> Callable[[Floats], Doubles]:
    """Return the mean without the largest and the smallest: `share` of the devices at either end."""

    def statistic(block: Floats) -> Doubles:
        count = block.shape[1]
        cut = int(share * count)
        return np.asarray(block[:, cut : count - cut].mean(axis=1, dtype=np.float64))

    return statistic


def _median(block: Floats) -> Doubles:
    """Return the median; of an even number the mean of the two in the middle."""
    count = block.shape[1]
    return np.asarray(block[:, (count - 1) // 2 : count // 2 + 1].mean(axis=1, dtype=np.float64))
