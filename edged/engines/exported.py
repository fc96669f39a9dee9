"""The parameters in an exported model, whichever engine wrote it. Needs the package onnx."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.errors import CorruptError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray


def parameters_in(path: Path, names: Iterable[str]) -> dict[str, NDArray[np.float32]]:
    """The named parameters as they are in a model file.

    Raises
    ------
    ModelError
        When one of them is not in it.
    """
    import onnx
    from onnx import numpy_helper

    there = {tensor.name: tensor for tensor in onnx.load(str(path)).graph.initializer}
    missing = [name for name in names if name not in there]
    if missing:
        raise ModelError(f"it has no parameter {missing[0]!r}", where=str(path), remedy="train from: bundle")
    return {name: np.array(numpy_helper.to_array(there[name]), np.float32) for name in names}


def parameters_within(content: bytes, names: Iterable[str]) -> dict[str, NDArray[np.float32]]:
    """Those of the named parameters that a serialised model holds, as float32.

    Raises
    ------
    CorruptError
        When it is no ONNX model, or keeps its weights in another file.
    """
    import onnx
    from onnx import numpy_helper

    wanted = set(names)
    try:
        tensors = onnx.load_model_from_string(content).graph.initializer
        return {
            tensor.name: np.array(numpy_helper.to_array(tensor), np.float32)
            for tensor in tensors
            if tensor.name in wanted
        }
    except Exception as problem:  # noqa: BLE001  protobuf's have no common base, the content may be anything
        told = " ".join(str(problem).split())[:120]
        raise CorruptError(f"is no ONNX model: {told}", where="model") from None
