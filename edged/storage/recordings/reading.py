"""A recorded stream from its file, whatever the format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.errors import ConfigError
from edged.storage.recordings.formats import format_of, open_source, readable
from edged.storage.recordings.npz_file import read_npz
from edged.storage.recordings.recording import Recording, check_rows, classes_of
from edged.storage.recordings.rows import RowBlock, Wanted, find_roles, number, row_blocks, text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.storage.recordings.frame import Frame
    from edged.storage.recordings.rows import Source


def read_stream(
    path: Path | Frame, *, features: Sequence[str] = (), label: str | None = None, key: str = "key"
) -> Recording:
    """Read a recorded stream from its file or from columns in memory; docs/import.md describes the formats.

    An `X` of an npz with more than two dimensions (windows of several channels) is flattened to one row of
    features a sample, last dimension fastest. Without column names `names` is empty.

    In a file of rows the last column named y, label or target is the label, else the only one of text; t,
    time or timestamp is the time (Unix seconds or milliseconds, or ISO 8601, UTC where it has no zone); key
    is the key; all others are features.
    Names are compared without regard to case. With `features` just these columns are read, in this
    order, and whatever else the file holds is passed over; `label` names the label's column. An empty
    cell of a feature or label is NaN: a reading, or a label, that never came. `key` names the array or column
    that holds the keys.

    Raises ConfigError when the file cannot be read or is no such stream, naming the place and what would be
    right; UnavailableError without the package that reads its format.
    """
    with readable(path):
        known = format_of(path)
        if known == "npz" and isinstance(path, Path):
            return read_npz(path, key)
        with open_source(path, known) as source:
            return _read_rows(source, Wanted(tuple((name,) for name in features), label, key))


def _read_rows(source: Source, wanted: Wanted) -> Recording:
    roles = find_roles(source, wanted)
    blocks = list(row_blocks(source, roles))
    check_rows(sum(map(len, blocks)))
    label, times, keys = (name in roles.others for name in ("label", "time", "key"))
    y, classes = _labels(source.unit, blocks, roles.others["label"]) if label else (None, ())
    return Recording(
        np.concatenate([block.x for block in blocks]),
        y,
        np.array([at for block in blocks for at in block.times], np.float64) if times else None,
        [key for block in blocks for key in block.keys] if keys else None,
        roles.features,
        classes,
        source.names,
    )


def _labels(unit: str, blocks: Sequence[RowBlock], name: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    cells: list[Any] = [cell for block in blocks for cell in block.labels]
    numbers = [number(cell) if text(cell) else math.nan for cell in cells]
    known = [found for found in numbers if found is not None]
    if all(math.isnan(found) for found in known):
        return classes_of([text(cell) for cell in cells])
    if len(known) < len(numbers):
        # Neither guess is safe: a slip in one number would make every number a class name.
        place = numbers.index(None)
        rows = [row for block in blocks for row in block.numbers]
        raise ConfigError(
            f"label {text(cells[place])[:40]!r} is not a number, others are",
            where=f"{unit} {rows[place]}, column {name}",
            remedy="make all labels numbers, or all of them names",
        )
    return np.array(known, np.float64), ()
