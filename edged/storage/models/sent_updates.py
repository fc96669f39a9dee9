"""Updates of a fleet's rounds that were sent, and what goes into the next one.

`rounds/<number>/` holds the update as it was sent, what is kept about it, and what its coding has left out:
this survives a power cut, and joins the next update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.federated.round_orders import KeptUpdate
from edged.errors import TrainingError
from edged.logs import get_logger
from edged.storage.files.atomic import disk_errors
from edged.storage.models.checkpoints import Checkpoints

ROUNDS = "rounds"
KEPT = 8
_UPDATE = "update.bin"

log = get_logger("edged.sent")


@dataclass(frozen=True)
class SentUpdate:
    """One update: what is kept about it, its bytes, and what its coding has left out."""

    number: int
    about: KeptUpdate
    blob: bytes
    residual: Mapping[str, NDArray[np.float32]]


class SentUpdates:
    """The newest updates of one state directory; one thread adds, any may read."""

    def __init__(self, state: Path) -> None:
        self._stored = Checkpoints(state / ROUNDS, KEPT)

    def newest(self) -> SentUpdate | None:
        """The last one; None before the first, and where none is whole."""
        return next(self.all(), None)

    def get(self, number: int) -> SentUpdate | None:
        """One of them; None where it is no longer kept, or not whole."""
        return next((sent for sent in self.all() if sent.number == number), None)

    def add(self, about: KeptUpdate, blob: bytes, residual: Mapping[str, NDArray[np.float32]]) -> SentUpdate:
        """Keep an update, durably, and remove the oldest.

        Raises StorageError when the disk refuses; then nothing may be sent.
        """
        staging = self._stored.stage()
        with disk_errors("keeping the update", staging):
            (staging / _UPDATE).write_bytes(blob)
        return SentUpdate(self._stored.publish(staging, about.to_json(), residual), about, blob, residual)

    def all(self) -> Iterator[SentUpdate]:
        """Those that are kept and whole, newest first."""
        for found in self._stored.whole():
            try:
                about, blob = KeptUpdate.from_json(found.state), (found.path / _UPDATE).read_bytes()
            except (TrainingError, OSError) as problem:
                log.warning("update_unreadable", number=found.number, problem=str(problem))
            else:
                yield SentUpdate(found.number, about, blob, found.arrays)
