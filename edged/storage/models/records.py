"""What the registry knows of a model and of its time as champion."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

from edged.storage.files.database import named

Status = Literal["candidate", "champion", "good", "retired", "rejected", "rolled_back"]
BAD: tuple[Status, ...] = ("rejected", "rolled_back")
COLUMNS = "version, parent, created, source, run, generation, data, metrics, verdict, status, proven, pinned"


@dataclass(frozen=True)
class ModelRecord:
    """What the registry knows of one model.

    `source` is `bundle`, `training` or another word; `data` holds `first_offset`, `last_offset`
    and `samples` of the training window; `proven` says that it passed its probation; a `good`
    model was champion and proven, a `retired` one was champion without having been proven.
    """

    version: int
    parent: int | None
    created: float
    source: str
    run: int | None
    generation: int | None
    data: dict[str, Any]
    metrics: dict[str, Any]
    verdict: dict[str, Any] | None
    status: Status
    proven: bool = False
    pinned: bool = False

    def superseded(self, outgoing: Status | None) -> ModelRecord:
        """The record of a champion whose place another has taken."""
        status = outgoing or ("good" if self.proven else "retired")
        return replace(self, status=status, proven=self.proven and status not in BAD)


@dataclass(frozen=True)
class Reign:
    """A model became champion: when (Unix seconds), in whose place and why.

    `outgoing` is the status that the one before was to get; it stands in the pointer, so that a
    crash between pointer and rows does not lose it.
    """

    ts: float
    version: int
    previous: int | None
    reason: str
    outgoing: Status | None = None


def to_row(record: ModelRecord) -> tuple[Any, ...]:
    """The record as a row of table `models`, in the order of `COLUMNS`."""
    return tuple(json.dumps(value) if isinstance(value, dict) else value for value in astuple(record))


def from_row(*row: Any) -> ModelRecord:
    """The record from such a row."""
    values = named(COLUMNS, row, "data", "metrics", "verdict")
    return ModelRecord(**values | {name: bool(values[name]) for name in ("proven", "pinned")})
