"""What a training run hands to the gate: a model, a probe of it, and notes beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.storage.files import publish_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.domain.protocols import Model

MODEL_FILE = "model.onnx"
PROBE_INPUT, PROBE_OUTPUT = "probe_input.npy", "probe_output.npy"


def publish_candidate(
    folder: Path,
    run: int,
    export: Callable[[Path], None],
    load_model: Callable[[Path], Model],
    probe: NDArray[np.float32],
    notes: Mapping[str, bytes],
) -> Path:
    """Publish the candidate of a run as `folder/<run>`; the directory.

    Parameters
    ----------
    folder
        Where candidates wait for the gate.
    run
        The run's number.
    export
        Writes the model to a path.
    load_model
        Loads it again, as serving will.
    probe
        Inputs `(n, d)`: they are kept with the outputs that this process gets for them, so that the daemon
        can see that it gets the same.
    notes
        Further files by name.
    """
    staging = folder / f".staging-{run}"
    staging.mkdir(parents=True, exist_ok=True)
    export(staging / MODEL_FILE)
    output = load_model(staging / MODEL_FILE).predict(probe)
    np.save(staging / PROBE_INPUT, probe)
    np.save(staging / PROBE_OUTPUT, output)
    for name, content in notes.items():
        (staging / name).write_bytes(content)
    final = folder / str(run)
    publish_directory(staging, final, extra={"run": run})
    return final
