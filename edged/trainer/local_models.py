"""Models and weights in a device's state directory, for a process that must not open the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edged.domain.model_files import model_in
from edged.domain.training.update_manifest import UpdateDescription
from edged.domain.training.weight_deltas import fingerprint
from edged.engines.model_parameters import initial_parameters, parameters_of
from edged.engines.onnx import exported
from edged.engines.runtime.ort import in_ort_format
from edged.errors import CorruptError, EdgedError, StorageError, TrainingError
from edged.mqtt import weight_encoding
from edged.storage.files.atomic import read_manifest
from edged.storage.models.registry import MODELS, champion_folder, present_reign
from edged.storage.models.sent_updates import SentUpdates

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.domain.training.training_run import Source
    from edged.storage.models.bundles import Bundle

    Weights = Mapping[str, NDArray[np.float32]]

FOREIGN: Source = "weights"


class LocalModels:
    """Reads the champion's weights and others that are known on this device.

    All of them were trained from the bundle.
    """

    def __init__(self, state: Path, bundle: Bundle) -> None:
        self._state, self._bundle = state, bundle

    def champion(self) -> Path | None:
        """Return the folder of the current model; None without one."""
        return champion_folder(self._state)

    def champion_parameters(self) -> dict[str, NDArray[np.float32]] | None:
        """Return the champion's weights; None without a champion, and where they cannot be read."""
        folder = self.champion()
        return None if folder is None else self._readable(folder)

    def exported_parameters(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights in the champion's model file.

        Raises TrainingError when no model is served.
        """
        folder = self.champion()
        if folder is None:
            raise TrainingError("no model serves yet", where="from: champion")
        path = model_in(folder)
        if in_ort_format(path):
            return parameters_of(folder, self._bundle, lambda blob: weight_encoding.unpack(blob)[0])
        return exported.parameters_in(path, (*self._bundle.trainable, *self._bundle.frozen))

    def find(self, wanted: str) -> Weights | None:
        """Return the weights with this fingerprint, which an update may be a difference to."""
        return next((values for values in self._known() if fingerprint(values) == wanted), None)

    def to_follow(self, followed: int) -> tuple[int, dict[str, NDArray[np.float32]]] | None:
        """Return version and weights that training continues from instead of its own; None for its own.

        Those are a champion's that came from elsewhere after version `followed`, and where that one was
        rolled back, those of the model that is served in its place.
        """
        reign = present_reign(self._state)
        if reign is None or reign.version == followed:
            return None
        folder = self._state / MODELS / str(reign.version)
        try:
            source = read_manifest(folder).extra["model"]["source"]
        except (StorageError, CorruptError, KeyError, TypeError):
            return None
        # Below 0 stands for a learner that starts again, though another bundle was learned from before.
        arrived = (source == FOREIGN and reign.version > followed) or followed < 0
        undone = followed > 0 and reign.previous == followed and reign.outgoing == "rolled_back"
        found = self._readable(folder) if arrived or undone else None
        return None if found is None else (reign.version, found)

    def _known(self) -> Iterator[Weights]:
        """Yield models of this device, what it has sent, and the bundle's own weights."""
        champion = self.champion()
        folders = sorted((self._state / MODELS).iterdir(), key=lambda path: path != champion)
        for folder in folders:
            if folder.name.isdigit() and (found := self._readable(folder)) is not None:
                yield found
        for sent in SentUpdates(self._state, UpdateDescription).all():
            yield sent.held()
        if self._bundle.portable is not None:
            yield initial_parameters(self._bundle)

    def _readable(self, folder: Path) -> dict[str, NDArray[np.float32]] | None:
        try:
            return parameters_of(folder, self._bundle, lambda blob: weight_encoding.unpack(blob)[0])
        except EdgedError:
            return None
