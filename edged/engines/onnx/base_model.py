"""The inference model of a bundle, its parameters read and replaced without the onnx package.

Tensors keep `raw_data`, little-endian bytes in row-major order; see `onnx.proto`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import REBUILD, BundleContents
from edged.engines.onnx.fields import parameters_within, whole_model, write_parameters
from edged.errors import BundleError, CorruptError

Floats = NDArray[np.float32]


class BaseModel:
    """The model that a bundle begins with.

    Its files must be what the bundle says.
    """

    def __init__(self, bundle: BundleContents) -> None:
        self._bundle, self._where = bundle, str(bundle.inference_model)
        self._names = {*bundle.trainable, *bundle.frozen}

    def parameters(self) -> dict[str, Floats]:
        """Return the initial parameters."""
        values = parameters_within(self._content(), self._names)
        if missing := self._names - values.keys():
            raise CorruptError(f"has no parameter {min(missing)!r}", where=self._where, remedy=REBUILD)
        return values

    def parameters_in(self, model: bytes) -> dict[str, Floats] | None:
        """The parameters of a model that `with_parameters` made; None where it was made otherwise."""
        if len(model) != len(self._content()):
            return None
        try:
            values = parameters_within(model, self._names)
        except CorruptError:
            return None
        return values if values.keys() == self._names and self.with_parameters(values) == model else None

    def with_parameters(self, values: Mapping[str, Floats]) -> bytearray:
        """The model with these parameters in place of the initial ones."""
        content = bytearray(self._content())
        try:
            write_parameters(content, {name: values[name] for name in self._names & values.keys()})
        except CorruptError as problem:
            raise CorruptError(problem.what, where=self._where, remedy=REBUILD) from None
        return content

    def _content(self) -> bytes:
        path = self._bundle.inference_model
        content = self._checked(path)
        if self._bundle.parameters_file is None:
            return content
        self._checked(self._bundle.parameters_file)
        return whole_model(path)

    def _checked(self, path: Path) -> bytes:
        """The content of a file, which must be what the bundle says."""
        entry = self._bundle.files.get(path.name)
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise BundleError(f"cannot be read: {problem.strerror}", where=str(path)) from problem
        if entry is not None and entry.sha256 != hashlib.sha256(content).hexdigest():
            raise CorruptError("the file is not what bundle.json says", where=str(path), remedy=REBUILD)
        return content
