"""The inference model as bytes, in which parameters lie at known places.

So they can be read and replaced without the onnx package: tensors keep `raw_data`, little-endian bytes in
row-major order; see `onnx.proto`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import REBUILD, FileEntry, Slot
from edged.errors import BundleError, CorruptError

Floats = NDArray[np.float32]


class BaseModel:
    """The base model and the slots of the parameters in it.

    `entry` is what the file must be, None where that is not known. `names` are all parameters of the model:
    `whole` says whether each has a slot. `apart` is the file beside it that holds its values, where it holds
    none, and what that must be.
    """

    def __init__(
        self,
        path: Path,
        entry: FileEntry | None,
        slots: Iterable[Slot],
        names: Iterable[str],
        apart: tuple[Path, FileEntry] | None = None,
    ) -> None:
        self.path = path
        self._apart = apart
        self._entry = entry
        self._slots = tuple(slots)
        self.whole = {slot.name for slot in self._slots} == set(names)

    def parameters(self) -> dict[str, Floats]:
        """Return the initial parameters."""
        return self._read(self._content())

    def _read(self, content: bytes) -> dict[str, Floats]:
        return {
            slot.name: np.frombuffer(content, "<f4", math.prod(slot.shape), slot.offset)
            .astype(np.float32)
            .reshape(slot.shape)
            for slot in self._slots
        }

    def parameters_in(self, model: bytes) -> dict[str, Floats] | None:
        """The parameters of a model that `with_parameters` made; None where it was made otherwise."""
        if len(model) != len(self._content()) or not self.whole:
            return None
        values = self._read(model)
        return values if self.with_parameters(values) == model else None

    def with_parameters(self, values: Mapping[str, Floats]) -> bytearray:
        """The model with these parameters in place of the initial ones."""
        content = bytearray(self._content())
        for slot in self._slots:
            slot.write(content, values[slot.name])
        return content

    def _content(self) -> bytes:
        content = self._checked(self.path, self._entry)
        if self._apart is not None:
            from edged.engines.onnx.fields import whole_model

            self._checked(*self._apart)
            content = whole_model(self.path)
        for slot in self._slots:
            if not 0 <= slot.offset <= len(content) - slot.size:
                what = f"{slot.name} lies outside of the file"
                raise CorruptError(what, where=str(self.path), remedy=REBUILD)
        return content

    def _checked(self, path: Path, entry: FileEntry | None) -> bytes:
        """The content of a file, which must be what the bundle says."""
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise BundleError(f"cannot be read: {problem.strerror}", where=str(path)) from problem
        if entry is not None and not self._is_whole(content, entry):
            raise CorruptError("the file is not what bundle.json says", where=str(path), remedy=REBUILD)
        return content

    @staticmethod
    def _is_whole(content: bytes, entry: FileEntry) -> bool:
        return len(content) == entry.bytes and hashlib.sha256(content).hexdigest() == entry.sha256
