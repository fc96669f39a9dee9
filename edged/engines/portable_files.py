"""What `bundle.json` says about the step graph, and the base model into which weights are written."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edged.errors import BundleError, CorruptError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
_REBUILD = "build the bundle again with `edged artifacts build`"

Floats = NDArray[np.float32]


class FileEntry(Protocol):
    """SHA-256 in hexadecimal and size of a file."""

    @property
    def sha256(self) -> str:
        """The hash."""

    @property
    def bytes(self) -> int:
        """The size."""


class PortableFiles(Protocol):
    """What the portable engine needs to know of a bundle; a Bundle is one."""

    @property
    def path(self) -> Path:
        """The bundle's directory."""

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines the bundle was built for."""

    @property
    def inference_model(self) -> Path:
        """Base inference model with the initial parameters."""

    @property
    def input_row(self) -> tuple[int, ...]:
        """Sizes of one input row inside the graphs."""

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """Hashes of the files."""

    @property
    def portable(self) -> Mapping[str, Any] | None:
        """The description of the step graph; None when the bundle has none."""


@dataclass(frozen=True)
class Place:
    """Where a trainable parameter lies in the state: its group, its first element there, its shape."""

    group: int
    start: int
    shape: tuple[int, ...]

    def of(self, states: list[Floats]) -> Floats:
        """The parameter as a view into the group's tensor of one kind."""
        flat = states[self.group].reshape(-1)
        return flat[self.start : self.start + math.prod(self.shape)].reshape(self.shape)


@dataclass(frozen=True)
class Rule:
    """The optimizer: what it keeps of a group, and its constants."""

    name: str
    kinds: tuple[str, ...]
    alpha: float
    beta: float
    correct_bias: bool

    def step_size(self, rate: float, update: int) -> float:
        """What the graph multiplies an update with, `update` counted from 1.

        For AdamW it holds the bias corrections, and (1 − β₁)/√(1 − β₂) because the graph keeps the
        moments without these factors.
        """
        if self.name != "adamw":
            return rate
        size = rate * (1 - self.alpha) / math.sqrt(1 - self.beta)
        if self.correct_bias:
            size *= math.sqrt(1 - self.beta**update) / (1 - self.alpha**update)
        return size

    def factors(self) -> tuple[float, ...]:
        """What the kept moments must be multiplied with to be the usual ones."""
        return (1 - self.alpha, 1 - self.beta)[: len(self.kinds) - 1]


@dataclass(frozen=True)
class Description:
    """The step graph: names of its tensors, layout of the state, constants of the optimizer."""

    models: dict[str, str]
    loss: str
    squares: str
    weights: str
    step_size: str
    rule: Rule
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    places: dict[str, Place]
    frozen: dict[str, tuple[int, ...]]
    offsets: dict[str, int]

    @classmethod
    def of(cls, files: PortableFiles) -> Description:
        """Read it from the bundle.

        Raises
        ------
        UnavailableError
            When the bundle has no step graph.
        BundleError
            When it has one of another format.
        CorruptError
            When the description is not whole.
        """
        where, data = str(files.path), files.portable
        if data is None:
            raise UnavailableError(
                "this bundle has no step graph for the portable engine",
                where=where,
                remedy="build it with `edged artifacts build --engine both`",
            )
        if data.get("format") != FORMAT:
            what = f"its step graph has format {data.get('format')!r}, this version reads format {FORMAT}"
            raise BundleError(what, where=where, remedy=_REBUILD)
        try:
            return _parse(data)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise CorruptError(
                "the description of the step graph is not whole", where=where, remedy=_REBUILD
            ) from problem

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, trainable and frozen."""
        return {name: place.shape for name, place in self.places.items()} | self.frozen


def _parse(data: Mapping[str, Any]) -> Description:
    places: dict[str, Place] = {}
    for i, group in enumerate(data["groups"]):
        start = 0
        for item in group["parameters"]:
            places[item["name"]] = Place(i, start, tuple(item["shape"]))
            start += math.prod(item["shape"])
    optimizer = data["optimizer"]
    return Description(
        models={key: str(data["models"][key]) for key in ("step", "carry", "evaluation")},
        **{key: str(data[key]) for key in ("loss", "squares", "weights", "step_size")},
        rule=Rule(
            optimizer["name"],
            tuple(optimizer["kinds"]),
            float(optimizer["alpha"]),
            float(optimizer["beta"]),
            bool(optimizer["correct_bias"]),
        ),
        groups=tuple((group["name"], tuple(group["shape"])) for group in data["groups"]),
        places=places,
        frozen={item["name"]: tuple(item["shape"]) for item in data["frozen"]},
        offsets={str(name): int(offset) for name, offset in data["offsets"].items()},
    )


class BaseModel:
    """The inference model as bytes: parameters lie in it at known places, raw and of fixed length.

    So they can be read and replaced without the onnx package. ONNX's TensorProto keeps `raw_data` as
    little-endian bytes in row-major order; see `onnx.proto`.
    """

    def __init__(self, files: PortableFiles, description: Description) -> None:
        self._path = files.inference_model
        self._entry = files.files.get(self._path.name)
        self._places = {
            name: (description.offsets[name], shape)
            for name, shape in description.shapes.items()
            if name in description.offsets
        }

    def parameters(self) -> dict[str, Floats]:
        """The initial parameters."""
        content = self._content()
        return {
            name: np.frombuffer(content, "<f4", math.prod(shape), offset).astype(np.float32).reshape(shape)
            for name, (offset, shape) in self._places.items()
        }

    def with_parameters(self, values: Mapping[str, Floats]) -> bytearray:
        """The model with these parameters in place of the initial ones."""
        content = bytearray(self._content())
        for name, (offset, shape) in self._places.items():
            content[offset : offset + 4 * math.prod(shape)] = values[name].astype("<f4").tobytes()
        return content

    def _content(self) -> bytes:
        try:
            content = self._path.read_bytes()
        except OSError as problem:
            raise BundleError(f"cannot be read: {problem.strerror}", where=str(self._path)) from problem
        if self._entry is not None and not self._is_whole(content, self._entry):
            raise CorruptError(
                "the file is not what bundle.json says", where=str(self._path), remedy=_REBUILD
            )
        for name, (offset, shape) in self._places.items():
            if not 0 <= offset <= len(content) - 4 * math.prod(shape):
                raise CorruptError(f"{name} lies outside of the file", where=str(self._path), remedy=_REBUILD)
        return content

    @staticmethod
    def _is_whole(content: bytes, entry: FileEntry) -> bool:
        return len(content) == entry.bytes and hashlib.sha256(content).hexdigest() == entry.sha256
