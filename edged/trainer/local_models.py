"""Models in a device's state directory: those that are there, and candidates that the trainer adds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import MODEL, PROBE_FILES
from edged.domain.protocols import Engine
from edged.domain.training.training_run import Source
from edged.engines.inference import InferenceModel
from edged.engines.model_parameters import WEIGHTS_FILE, parameters_of
from edged.engines.onnx.fields import parameters_in
from edged.errors import CorruptError, EdgedError, StorageError, TrainingError
from edged.mqtt import weight_encoding
from edged.mqtt.weight_encoding import pack
from edged.storage.files import atomic
from edged.storage.files.atomic import read_manifest
from edged.storage.models.bundles import Bundle
from edged.storage.models.records import MODELS
from edged.storage.models.registry import champion_folder, present_reign

Weights = Mapping[str, NDArray[np.float32]]

FOREIGN: Source = "weights"

PROBE_ROWS = 16


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
        return parameters_in(folder / MODEL, (*self._bundle.trainable, *self._bundle.frozen))

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

    def _readable(self, folder: Path) -> dict[str, NDArray[np.float32]] | None:
        try:
            return parameters_of(folder, self._bundle, weight_encoding.unpack)
        except EdgedError:
            return None


class CandidateExporter:
    """Publishes the weights of engines as candidates.

    They wait in `folder` for the gate. With `with_weights` the weights are stored beside each model.
    """

    def __init__(
        self,
        folder: Path,
        *,
        with_weights: bool = False,
    ) -> None:
        self._folder, self._with_weights = folder, with_weights

    def export(
        self,
        run: int,
        engine: Engine,
        probe: NDArray[np.float32],
        weights: bytes | None = None,
    ) -> Path:
        """Publish the engine's present weights; return the candidate's folder.

        `probe` `(n, d)` is stored with the model's outputs for it; `weights` are stored beside the model.
        """
        if weights is None and self._with_weights:
            weights = pack(engine.parameters())
        staging = self._folder / f"{atomic.STAGING}{run}"
        with atomic.disk_errors("writing the candidate", staging):
            for left in self._folder.glob(f"{atomic.STAGING}[0-9]*"):
                atomic.remove(left)  # a run before this one came no further
            staging.mkdir(parents=True, exist_ok=True)
            with atomic.disk_errors_of_others(staging):
                engine.export(staging / MODEL)
            output = InferenceModel(staging / MODEL).predict(probe)
            for file, values in zip(PROBE_FILES, (probe, output), strict=True):
                np.save(staging / file, values)
            if weights is not None:
                (staging / WEIGHTS_FILE).write_bytes(weights)
        final = self._folder / str(run)
        atomic.publish_directory(staging, final, extra={"run": run})
        return final
