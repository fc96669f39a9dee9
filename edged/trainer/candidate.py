"""Candidates: models that the trainer exports for the daemon's gate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.model_files import file_name
from edged.engines.inference import InferenceModel
from edged.engines.model_parameters import WEIGHTS_FILE
from edged.mqtt.weight_encoding import pack
from edged.storage.files import atomic
from edged.storage.models.candidates import PROBE_FILES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.protocols import Engine
    from edged.storage.models.bundles import Bundle

PROBE_ROWS = 16


class CandidateExporter:
    """Publishes the weights of engines as candidates.

    They wait in `folder` for the gate. With `device`, its id, the weights are stored beside each model, with
    the note that they are of this device.
    """

    def __init__(
        self,
        folder: Path,
        bundle: Bundle,
        *,
        device: str | None = None,
    ) -> None:
        self._folder, self._suffix, self._device = folder, bundle.inference_model.suffix, device

    def export(
        self,
        run: int,
        engine: Engine,
        probe: NDArray[np.float32],
        weights: bytes | None = None,
    ) -> Path:
        """Publish the engine's present weights; return the candidate's folder.

        `probe` `(n, d)` is stored with the model's outputs for it; `weights` is what to store beside the
        model instead of the note.
        """
        if weights is None and self._device is not None:
            weights = pack(engine.parameters(), {"device": self._device})
        staging, model = self._folder / f"{atomic.STAGING}{run}", file_name(self._suffix)
        with atomic.disk_errors("writing the candidate", staging):
            for left in self._folder.glob(f"{atomic.STAGING}[0-9]*"):
                atomic.remove(left)  # a run before this one came no further
            staging.mkdir(parents=True, exist_ok=True)
            with atomic.disk_errors_of_others(staging):
                engine.export(staging / model)
            output = InferenceModel(staging / model).predict(probe)
            for file, values in zip(PROBE_FILES, (probe, output), strict=True):
                np.save(staging / file, values)
            if weights is not None:
                (staging / WEIGHTS_FILE).write_bytes(weights)
        final = self._folder / str(run)
        atomic.publish_directory(staging, final, extra={"run": run})
        return final
