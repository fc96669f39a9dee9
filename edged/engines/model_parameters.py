"""The parameters of a stored model, read without any training package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import BundleContents, Slot
from edged.domain.model_files import MODEL
from edged.engines.onnx.base_model import BaseModel
from edged.engines.onnx.fields import parameters_within, raw_offsets, whole_model
from edged.engines.portable.description import Description, base_model, values_beside
from edged.errors import StorageError, UnavailableError

WEIGHTS_FILE = "weights.safetensors.zst"


def parameters_of(
    folder: Path,
    bundle: BundleContents,
    unpack: Callable[[bytes], dict[str, NDArray[np.float32]]],
) -> dict[str, NDArray[np.float32]]:
    """All parameters by name of the model in `folder`.

    They are in a file beside it, or lie in the model itself where the bundle knows the places.

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
    base = _base(bundle)
    found = None if base is None else base.parameters_in(model)
    if found is None:
        raise UnavailableError(
            "the weights of this model cannot be read",
            where=str(folder),
            remedy="set weights.every for the models that are trained from then on",
        )
    return found


def initial_parameters(bundle: BundleContents) -> dict[str, NDArray[np.float32]]:
    """The parameters that a bundle begins with.

    Raises UnavailableError when the bundle does not know where they lie: it is for the native engine alone.
    """
    return base_of(bundle).parameters()


def base_of(bundle: BundleContents) -> BaseModel:
    """The inference model that a bundle begins with, whose parameters can be replaced.

    Raises UnavailableError when the bundle does not know where they lie: it is for the native engine alone.
    """
    return _base(bundle) or base_model(bundle, Description.of(bundle))


def _base(bundle: BundleContents) -> BaseModel | None:
    """The base model; None where it is not known where parameters lie in it."""
    if bundle.portable is None:
        return _located(bundle)
    return base_model(bundle, Description.of(bundle))


def _located(bundle: BundleContents) -> BaseModel | None:
    """The base model of a bundle for the native engine, whose parameters are found in the file itself."""
    path, names = bundle.inference_model, (*bundle.trainable, *bundle.frozen)
    if not path.is_file():
        return None
    content = whole_model(path)
    places, values = dict(raw_offsets(content)), parameters_within(content, names)
    slots = [Slot(name, places[name], values[name].shape) for name in names if name in places]
    return BaseModel(path, bundle.files.get(path.name), slots, names, values_beside(bundle))
