"""Which rows of a recording belong to which virtual device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edged.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.int64]

LEAST = 40  # rows with which a device can learn, choose and be tested
BLOCK = 8
_PARTS = 5  # of which one is for the report alone


def by_key(keys: Sequence[str]) -> dict[str, Index]:
    """A device for each key, in the order in which they appear; ConfigError when a key has too few rows."""
    codes = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    of_row = np.array([codes[key] for key in keys], np.int64)
    found = {key: np.flatnonzero(of_row == number) for key, number in codes.items()}
    poor = [key for key, rows in found.items() if len(rows) < LEAST]
    if poor:
        raise ConfigError(
            f"key {poor[0]} has {len(found[poor[0]])} rows, at least {LEAST} are needed", where="--key"
        )
    return found


def dirichlet(y: NDArray[np.int64], devices: int, alpha: float, seed: int) -> dict[str, Index]:
    """Devices with skewed classes: of each class they get shares drawn from a Dirichlet distribution.

    With a small `alpha` most devices hold few classes (Hsu, Qi and Brown, "Measuring the effects of
    non-identical data distribution", 2019). Drawn anew until each has enough rows.

    Raises ConfigError when there are too many devices for these rows.
    """
    if len(y) < 2 * LEAST * devices:
        raise ConfigError(
            f"{len(y)} rows are too few for {devices} devices", where="--devices", remedy="fewer devices"
        )
    rng = np.random.default_rng(seed)
    for _ in range(200):
        parts: list[list[Index]] = [[] for _ in range(devices)]
        for kind in np.unique(y):
            rows = np.flatnonzero(y == kind)
            cuts = (np.cumsum(rng.dirichlet(np.full(devices, alpha)))[:-1] * len(rows)).astype(np.int64)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        made = [np.sort(np.concatenate(part)) for part in parts]
        if min(map(len, made)) >= LEAST:
            return {f"d{number:03}": rows for number, rows in enumerate(made)}
    raise ConfigError("some device always has too few rows", where="--alpha", remedy="a larger alpha")


def own_and_kept(rows: Index) -> tuple[Index, Index]:
    """Rows that a device learns from and judges by, and those for the report: four fifths and one.

    They alternate in blocks: neighbouring rows are alike, and what is learned from must not be asked for.

    >>> [len(part) for part in own_and_kept(np.arange(400))]
    [320, 80]
    """
    kept = (np.arange(len(rows)) // BLOCK) % _PARTS == _PARTS - 1
    return rows[~kept], rows[kept]
