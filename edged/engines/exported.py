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
    wanted = tuple(names)
    found = parameters_within(path.read_bytes(), wanted)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ModelError(f"it has no parameter {missing[0]!r}", where=str(path), remedy="train from: bundle")
    return found


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
