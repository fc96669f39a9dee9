"""The parameters of stored models and of a bundle's own, read and replaced without any training package.

Tensors keep `raw_data`, little-endian bytes in row-major order; see `onnx.proto`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import MODEL, REBUILD, BundleContents
from edged.engines.onnx.fields import parameters_within, whole_model, write_parameters
from edged.errors import BundleError, CorruptError, StorageError, UnavailableError

Floats = NDArray[np.float32]
WEIGHTS_FILE = "weights.safetensors.zst"


def parameters_of(
    folder: Path,
    bundle: BundleContents,
    unpack: Callable[[bytes], dict[str, Floats]],
) -> dict[str, Floats]:
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


def initial_parameters(bundle: BundleContents) -> dict[str, Floats]:
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
