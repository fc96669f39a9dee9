"""Files of a fleet on a device: the updates that it has sent, and the newest received models.

`rounds/<number>/` holds an update as it was sent, what is kept about it, and what its coding has left out:
this survives a power cut, and joins the next update. `fleet/<fingerprint>.bin` are the models as they came.
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
from edged.storage.files.atomic import disk_errors, make_directory, publish_file
from edged.storage.models.checkpoints import Checkpoints

MODELS, ROUNDS = "fleet", "rounds"
MODELS_KEPT, UPDATES_KEPT = 3, 8
_UPDATE, _TRAINED = "update.bin", "trained.safetensors"

log = get_logger("edged.sent")


@dataclass(frozen=True)
class SentUpdate:
    """One update: its description, its bytes, and what its coding has left out."""

    number: int
    about: KeptUpdate
    blob: bytes
    residual: Mapping[str, NDArray[np.float32]]


class SentUpdates:
    """The newest updates of one state directory; one thread adds, any may read."""

    def __init__(self, state: Path) -> None:
        self._stored = Checkpoints(state / ROUNDS, UPDATES_KEPT)

    def newest(self) -> SentUpdate | None:
        """The last one; None before the first, and where none is whole."""
        return next(self.all(), None)

    def get(self, number: int) -> SentUpdate | None:
        """Return one update; None if it is no longer stored, or damaged."""
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
        """Yield the stored, intact updates, newest first."""
        for found in self._stored.whole():
            try:
                about, blob = KeptUpdate.from_json(found.state), (found.path / _UPDATE).read_bytes()
            except (TrainingError, OSError) as problem:
                log.warning("update_unreadable", number=found.number, problem=str(problem))
            else:
                yield SentUpdate(found.number, about, blob, found.arrays)


class FleetModels:
    """The models of one state directory; whose weights they are is checked by who unpacks them."""

    def __init__(self, state: Path) -> None:
        self._folder = state / MODELS

    def path(self, digest: str) -> Path | None:
        """Return the file of a model; None without one."""
        path = self._folder / f"{digest}.bin"
        return path if path.is_file() else None

    def put(self, digest: str, blob: bytes, keep: tuple[str, ...] = ()) -> Path:
        """Keep a model, durably, and remove the oldest that is not among `keep`.

        Raises StorageError when the disk refuses.
        """
        make_directory(self._folder)
        path = self._folder / f"{digest}.bin"
        publish_file(path, blob)
        with disk_errors("removing old models", self._folder):
            there = sorted(self._folder.glob("*.bin"), key=lambda file: file.stat().st_mtime_ns)
            spared = {f"{name}.bin" for name in keep} | {path.name}
            for old in there[: max(0, len(there) - MODELS_KEPT)]:
                if old.name not in spared:
                    old.unlink()
        return path

    @property
    def trained(self) -> Path:
        """File for weights that the trainer writes and `take_trained` reads: at most one at a time."""
        return self._folder / _TRAINED

    def take_trained(self) -> bytes:
        """Read and delete the file `trained`; raise StorageError when that fails."""
        with disk_errors("reading trained weights", self.trained):
            trained = self.trained.read_bytes()
            self.trained.unlink()
        return trained

    def remove(self, digest: str) -> None:
        """Remove a model that is damaged."""
        with disk_errors("removing a model", self._folder):
            (self._folder / f"{digest}.bin").unlink(missing_ok=True)
