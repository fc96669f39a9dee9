"""Candidates: models that the trainer exports for the daemon's gate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.model_files import INT8, file_name
from edged.engines.inference import InferenceModel
from edged.engines.model_parameters import WEIGHTS_FILE
from edged.engines.onnx.base_model import BaseModel
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
    the note that they are of this device; with `quantise` its int8 form, too, where the bundle has one.
    """

    def __init__(
        self,
        folder: Path,
        bundle: Bundle,
        *,
        device: str | None = None,
        quantise: bool = False,
    ) -> None:
        self._folder, self._suffix, self._device = folder, bundle.inference_model.suffix, device
        self._int8 = BaseModel.of_form(bundle, INT8) if quantise else None

    def export(
        self,
        run: int,
        engine: Engine,
        probe: NDArray[np.float32],
        files: Mapping[str, bytes],
        name: str = "",
    ) -> Path:
        """Publish the engine's present weights, with further files beside them; the candidate's folder.

        `probe` `(n, d)` is stored with the model's outputs for it; `name` tells a second candidate of a run.
        """
        parameters, beside = engine.parameters(), dict[str, bytes]()
        if self._int8 is not None:
            beside[file_name(self._int8.suffix, INT8)] = bytes(self._int8.with_parameters(parameters))
        if self._device is not None and WEIGHTS_FILE not in files:
            beside[WEIGHTS_FILE] = pack(parameters, {"device": self._device})
        beside |= files
        staging, model = self._folder / f"{atomic.STAGING}{run}{name}", file_name(self._suffix)
        with atomic.disk_errors("writing the candidate", staging):
            for left in self._folder.glob(f"{atomic.STAGING}[0-9]*"):
                atomic.remove(left)  # a run before this one came no further
            staging.mkdir(parents=True, exist_ok=True)
            with atomic.disk_errors_of_others(staging):
                engine.export(staging / model)
            output = InferenceModel(staging / model).predict(probe)
            for file, values in zip(PROBE_FILES, (probe, output), strict=True):
                np.save(staging / file, values)
            for file, content in beside.items():
                (staging / file).write_bytes(content)
        final = self._folder / f"{run}{name}"
        atomic.publish_directory(staging, final, extra={"run": run})
        return final
