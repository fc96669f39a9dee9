"""The parameters of a stored model, read without any training package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import REBUILD, BundleContents
from edged.domain.model_files import MODEL
from edged.engines.onnx.base_model import BaseModel
from edged.errors import StorageError, UnavailableError

WEIGHTS_FILE = "weights.safetensors.zst"


def parameters_of(
    folder: Path,
    bundle: BundleContents,
    unpack: Callable[[bytes], dict[str, NDArray[np.float32]]],
) -> dict[str, NDArray[np.float32]]:
    """All parameters by name of the model in `folder`.

    They are in a file beside it, or lie in the model itself.

    `folder` is a directory of the registry, or of a candidate that was trained from the bundle; `unpack`
    reads the file beside the model.

    Raises UnavailableError when there is neither; StorageError when a file cannot be read.
    """
    try:
        if (folder / WEIGHTS_FILE).exists():
            return unpack((folder / WEIGHTS_FILE).read_bytes())
        model = (folder / MODEL).read_bytes()
    except OSError as problem:
        raise StorageError(f"cannot be read: {problem.strerror}", where=str(folder)) from problem
    found = base_of(bundle).parameters_in(model)
    if found is None:
        raise UnavailableError(
            "the weights of this model cannot be read",
            where=str(folder),
            remedy="set weights.every for the models that are trained from then on",
        )
    return found


def initial_parameters(bundle: BundleContents) -> dict[str, NDArray[np.float32]]:
    """The parameters that a bundle begins with.

    Raises UnavailableError when it has no inference model.
    """
    return base_of(bundle).parameters()


def base_of(bundle: BundleContents) -> BaseModel:
    """The inference model that a bundle begins with, whose parameters can be replaced.

    Raises UnavailableError when the bundle has none: artifacts made by upstream alone have not.
    """
    if not bundle.inference_model.is_file():
        raise UnavailableError("this bundle has no inference model", where=str(bundle.path), remedy=REBUILD)
    return BaseModel(bundle)
