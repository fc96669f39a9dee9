"""Giving a nominal checkpoint the parameters that were delivered apart from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from edged.engines.onnx.fields import input_names
from edged.engines.runtime.ort import onnxruntime
from edged.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path


def fill(module: Any, training_model: Path, file: Path) -> None:
    """Copy the parameters in `file` into a `Module` of onnxruntime's whose state is nominal.

    It takes them as one vector, in the order in which the training graph does.

    Raises
    ------
    BundleError
        When the file is missing or damaged, or is not for this model.
    """
    try:
        held = load_file(file)
        names = input_names(training_model.read_bytes())
    except (OSError, SafetensorError, ValueError, IndexError) as problem:
        raise BundleError(
            "the parameters of this nominal bundle cannot be read",
            where=str(file),
            remedy="put the file that it was built with beside it",
        ) from problem
    flat = [held[name].reshape(-1) for name in names if name in held]
    buffer = np.concatenate(flat, dtype=np.float32) if flat else np.empty(0, np.float32)
    if len(buffer) != module.get_parameters_size(False):
        raise BundleError("holds the parameters of another model", where=str(file))
    value = onnxruntime.OrtValue.ortvalue_from_numpy(buffer)
    # Upstream's own type hint says OrtValue, and its binding takes what is inside.
    module.copy_buffer_to_parameters(value._ortvalue, trainable_only=False)  # noqa: SLF001
