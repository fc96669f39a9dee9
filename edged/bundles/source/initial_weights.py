"""Trained weights put into a model, so that what is built from it begins with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import numpy_helper

from edged.bundles.source.normalise import conform, read_model
from edged.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import onnx
    from numpy.typing import NDArray


def with_weights(model: onnx.ModelProto | Path, values: Mapping[str, NDArray[np.float32]]) -> onnx.ModelProto:
    """The model in the form that is built from, its parameters overwritten by those of the same name.

    Raises
    ------
    BundleError
        When the model has no such parameter, or one of another shape.
    """
    made = conform(read_model(model))
    places = {tensor.name: tensor for tensor in made.graph.initializer}
    for name, value in values.items():
        if name not in places or tuple(places[name].dims) != value.shape:
            raise BundleError("the model has no such parameter of this shape", where=name)
        places[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))
    return made
