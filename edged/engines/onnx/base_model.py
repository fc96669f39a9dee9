"""The inference model as bytes, in which parameters lie at known places.

So they can be read and replaced without the onnx package, in either format: the tensors of both
keep `raw_data`, little-endian bytes in row-major order; see `onnx.proto` and onnxruntime's `ort.fbs`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import REBUILD
from edged.domain.lean_dataclasses import dataclass
from edged.errors import BundleError, CorruptError

if TYPE_CHECKING:
    from edged.domain.bundle_contents import BundleContents, FileEntry
    from edged.domain.model_files import Form

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Slot:
    """Where a parameter lies in the file, and as what.

    `offset` is the first byte of its values, `scale` that of its scales, float32, one for each slice along
    `axis`; None where it is float32 itself. `zero` is the byte that stands for 0: 0 for signed integers, 128
    for unsigned ones. `transposed` says that the integers lie there with the axes the other way round.
    """

    name: str
    offset: int
    shape: tuple[int, ...]
    scale: int | None = None
    axis: int = 0
    zero: int = 0
    transposed: bool = False

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Slot:
        """Read it from a description; KeyError, TypeError or ValueError where that is not whole."""
        scale = data.get("scale")
        slot = cls(
            str(data["name"]), int(data["offset"]), tuple(int(size) for size in data["shape"]),
            None if scale is None else int(scale), int(data.get("axis", 0)), int(data.get("zero", 0)),
            bool(data.get("transposed", False)),
        )  # fmt: skip
        if min(slot.shape, default=1) < 1 or (scale is not None and not 0 <= slot.axis < len(slot.shape)):
            raise ValueError(slot.name)
        return slot

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First byte and number of bytes of all that it occupies."""
        size = math.prod(self.shape)
        if self.scale is None:
            return [(self.offset, 4 * size)]
        return [(self.offset, size), (self.scale, 4 * self.shape[self.axis])]

    def write(self, content: bytearray, value: Floats) -> None:
        """Put another value in its place."""
        if self.scale is None:
            _put(content, self.offset, value.astype("<f4").tobytes())
            return
        from edged.domain.judging.quantised import quantise

        whole, scale = quantise(value.reshape(self.shape), self.axis)
        _put(content, self.scale, scale.astype("<f4").tobytes())
        laid = whole.T if self.transposed else whole
        _put(content, self.offset, (laid.astype(np.int16) + self.zero).astype(np.uint8).tobytes())


def _put(content: bytearray, offset: int, data: bytes) -> None:
    content[offset : offset + len(data)] = data


class BaseModel:
    """One form of the base model and the slots of the parameters in it.

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

    @classmethod
    def of_form(cls, bundle: BundleContents, form: Form) -> BaseModel | None:
        """The base model in this form; None where the bundle says nothing of it.

        Raises CorruptError when what the bundle says is not whole.
        """
        described = (bundle.forms or {}).get(form)
        if described is None:
            return None
        try:
            name, slots = str(described["file"]), [Slot.of(item) for item in described["slots"]]
            entry = bundle.files[name]
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise CorruptError(
                f"the description of the form {form} is not whole", where=str(bundle.path), remedy=REBUILD
            ) from problem
        return cls(bundle.path / name, entry, slots, (*bundle.trainable, *bundle.frozen))

    @property
    def suffix(self) -> str:
        """Suffix of the model file: `.onnx` or `.ort`."""
        return self.path.suffix

    def parameters(self) -> dict[str, Floats]:
        """The initial parameters, of those that lie there as float32."""
        return self._read(self._content())

    def _read(self, content: bytes) -> dict[str, Floats]:
        return {
            slot.name: np.frombuffer(content, "<f4", math.prod(slot.shape), slot.offset)
            .astype(np.float32)
            .reshape(slot.shape)
            for slot in self._slots
            if slot.scale is None
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
            from edged.engines.onnx.single_file import whole_model

            self._checked(*self._apart)
            content = whole_model(self.path)
        for slot in self._slots:
            if any(not 0 <= start <= len(content) - size for start, size in slot.spans):
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
