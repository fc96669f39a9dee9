"""Updates of a fleet's rounds that were sent, and what goes into the next one.

`rounds/<number>/` holds the update as it was sent, what is kept about it, and what its coding has left out:
this survives a power cut, and joins the next update.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.federated.round_orders import KeptUpdate
from edged.errors import CorruptError, StorageError, TrainingError
from edged.logs import get_logger
from edged.storage.files import atomic
from edged.storage.models.checkpoints import pack_arrays, unpack_arrays

ROUNDS = "rounds"
KEPT = 8
_UPDATE, _RESIDUAL, _ABOUT = "update.bin", "residual.npz", "about.json"

log = get_logger("edged.sent")


@dataclass(frozen=True)
class SentUpdate:
    """One update: what is kept about it, and its bytes."""

    number: int
    about: KeptUpdate
    blob: bytes
    folder: Path

    def residual(self) -> dict[str, NDArray[np.float32]]:
        """Return what its coding has left out; it joins the next update."""
        return unpack_arrays((self.folder / _RESIDUAL).read_bytes())


class SentUpdates:
    """The newest updates of one state directory; one thread adds, any may read."""

    def __init__(self, state: Path) -> None:
        self._folder = state / ROUNDS

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
        atomic.make_directory(self._folder)
        atomic.sweep(self._folder)
        number = max(self._numbers(), default=0) + 1
        staging, final = atomic.staging_path(self._folder, str(number)), self._folder / str(number)
        with atomic.disk_errors("keeping the update", final):
            staging.mkdir()
            (staging / _UPDATE).write_bytes(blob)
            (staging / _RESIDUAL).write_bytes(pack_arrays(residual))
            (staging / _ABOUT).write_text(json.dumps(about.to_json()), encoding="utf-8")
        atomic.publish_directory(staging, final)
        for old in self._numbers()[KEPT:]:
            atomic.remove(self._folder / str(old))
        return SentUpdate(number, about, blob, final)

    def _numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return sorted(
            (int(path.name) for path in self._folder.iterdir() if path.name.isdigit()), reverse=True
        )

    def all(self) -> Iterator[SentUpdate]:
        """Those that are kept and whole, newest first."""
        for number in self._numbers():
            folder = self._folder / str(number)
            try:
                atomic.verify_directory(folder)
                about = KeptUpdate.from_json(json.loads((folder / _ABOUT).read_text(encoding="utf-8")))
                blob = (folder / _UPDATE).read_bytes()
            except (CorruptError, StorageError, TrainingError, OSError) as problem:
                log.warning("update_unreadable", number=number, problem=str(problem))
                continue
            yield SentUpdate(number, about, blob, folder)
