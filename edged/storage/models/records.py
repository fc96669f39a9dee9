"""Records of the registry: one for each model, and one for each change of champion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from typing_extensions import Self

from edged.domain.json_fields import JsonObject
from edged.domain.judging.verdict import Verdict
from edged.domain.training.message import Message
from edged.domain.training.training_run import ModelData
from edged.errors import StorageError, TrainingError
from edged.storage.files.atomic import read_manifest

MODELS = "models"
Status = Literal["candidate", "champion", "good", "retired", "rejected", "rolled_back"]
BAD: tuple[Status, ...] = ("rejected", "rolled_back")


@dataclass(frozen=True)
class ModelFigures(Message):
    """What was measured of a model before it was stored; its JSON has all on one level.

    `loss_last` is the loss at the end of its training, `numbers` are those of its first verdict, `scale`
    weighs the errors of its outputs. None: not known, or all outputs count the same.
    """

    loss_last: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    scale: tuple[float, ...] | None = None

    def reported(self) -> Mapping[str, float | None]:
        """Return the figures that reports have: all but `scale`."""
        measured = self.numbers or self.loss_last is not None
        return {"loss_last": self.loss_last, **self.numbers} if measured else {}

    def to_json(self) -> JsonObject:
        """Return the figures as the registry holds them."""
        return {**self.reported(), **({} if self.scale is None else {"scale": list(self.scale)})}


@dataclass(frozen=True)
class ModelRecord(Message):
    """The record of one model in the registry.

    `source` is `bundle`, `training` or another word. `created` is Unix seconds. `verdict` is None for a model
    that was not judged. `proven` says that it passed its probation; a `good` model was champion and proven, a
    `retired` one was champion without having been proven.
    """

    version: int
    parent: int | None
    created: float
    source: str
    run: int | None
    generation: int | None
    data: ModelData
    metrics: ModelFigures
    verdict: Verdict | None
    status: Status
    proven: bool = False
    pinned: bool = False

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Read the record in a manifest, or a row; TrainingError when it is none."""
        given = dict(values["metrics"])
        first = {name: given.pop(name, None) for name in ("loss_last", "scale")}
        return super().from_json({**values, "metrics": {**first, "numbers": given}})

    def superseded(self, outgoing: Status | None) -> ModelRecord:
        """The record of a champion whose place another has taken."""
        status = outgoing or ("good" if self.proven else "retired")
        return replace(self, status=status, proven=self.proven and status not in BAD)


@dataclass(frozen=True)
class Reign(Message):
    """A model became champion: when (Unix seconds), in whose place and why.

    `outgoing` is the status that the one before was to get; it stands in the pointer, so that a
    crash between pointer and rows does not lose it.
    """

    ts: float
    version: int
    previous: int | None
    reason: str
    outgoing: Status | None = None


def stored_record(folder: Path) -> ModelRecord | None:
    """Read the record in the directory of a stored model; None for any other directory."""
    try:
        return ModelRecord.from_json(read_manifest(folder).extra["model"])
    except (StorageError, KeyError, TrainingError, TypeError):
        return None
