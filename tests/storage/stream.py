"""Small streams for the sample log's tests: what is in a row follows from its offset."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.stream.sample import Batch, LabelReading
from edged.domain.stream.schema import Schema
from edged.storage.files.database import connect
from edged.storage.samples.log import SampleLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.stream.sample import LabelValue

WIDTH = 3
CLASSIFY = Schema(("a", "b", "c"), WIDTH, "classify", ("ok", "worn"))
REGRESS_TWO = Schema((), WIDTH, "regress", (), 2)
RECONSTRUCT = Schema((), WIDTH, "reconstruct", (), WIDTH)
START = 1_700_000_000.0


def inputs(offsets: NDArray[np.int64], width: int = WIDTH) -> NDArray[np.float32]:
    """What the samples at these offsets hold, `(n, width)`."""
    return (offsets[:, None] + np.arange(width) / 8).astype(np.float32)


def batch(
    first: int,
    n: int,
    *,
    labels: list[LabelValue | None] | None = None,
    labelled: bool = False,
    ids: bool = False,
    packets: bool = False,
    keys: int = 1,
    width: int = WIDTH,
) -> Batch:
    """Samples at the offsets `first` on, one a second; the key is `m<offset % keys>`."""
    offsets = np.arange(first, first + n, dtype=np.int64)
    if labels is None:
        labels = [float(offset % 2) if labelled else None for offset in offsets.tolist()]
    times: NDArray[np.float64] = np.asarray(START + offsets, np.float64)
    return Batch(
        offsets,
        [f"m{offset % keys}" for offset in offsets.tolist()],
        times,
        times + 0.1,
        inputs(offsets, width),
        labels,
        [f"id-{offset}" for offset in offsets.tolist()] if ids else [],
        [(offset % 60_000 + 1, offset * 7) for offset in offsets.tolist()] if packets else [],
    )


def open_log(directory: Path, schema: Schema = CLASSIFY, **options: Any) -> SampleLog:
    """A sample log of its own."""
    return SampleLog.open(directory / "samples.db", schema, **options)


def find(log: SampleLog, **reading: Any) -> int | None:
    """Offset of the stored sample of a label with these fields."""
    return log.find_many([LabelReading(0.0, **reading)])[0]


def stored_inputs(path: Path, width: int) -> NDArray[np.float32]:
    """All inputs that are committed, `(n, width)` float32, oldest first; `path` is that of the database."""
    with closing(connect(path, readonly=True)) as db:
        rows = db.execute("SELECT x FROM samples ORDER BY offset").fetchall()
    return np.frombuffer(b"".join(x for (x,) in rows), "<f4").astype(np.float32).reshape(-1, width)
