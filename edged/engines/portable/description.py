"""What `bundle.json` says about the step graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import CHECKPOINT_DATA, PARAMETERS, REBUILD
from edged.domain.lean_dataclasses import dataclass
from edged.domain.model_files import FLOAT32
from edged.domain.training.message import Message
from edged.engines.onnx.base_model import BaseModel, Slot
from edged.engines.portable.optimizer import OptimizerInputs
from edged.errors import BundleError, CorruptError, TrainingError, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from edged.domain.bundle_contents import BundleContents

# In the first one scalars had no axis, and a large parameter had no other tensor than the state's. In the
# second all state tensors had the shape of their part.
FORMATS = (1, 2, 3)
# Multiply-adds for one row from which threads share an operator.
SHARED_FROM = 1 << 16
LARGEST = 1 << 31  # elements of a tensor; a file of protobuf holds fewer

Floats = NDArray[np.float32]


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
class Noise(Message):
    """The input that takes uniform random numbers: its name, how many a row, what they are drawn from."""

    name: str
    width: int
    seed: int = 0


@dataclass(frozen=True)
class Guidance(Message):
    """Inputs of the guided step: for the teacher's outputs and scalars; whether there is a temperature."""

    teacher: str
    scalars: Mapping[str, str]
    soft: bool


@dataclass(frozen=True)
class Description:
    """The step graph: names of its tensors, layout of the state, constants of the optimizer.

    `scalars` are the inputs for what changes from update to update, `remembered` frozen parameters which
    a step gives new values and the outputs that hold them.
    `direct` says that parameters are inputs of their own besides the state that holds them: none, joined
    ones, or all.
    `parts` are, for every group, names and shapes of the tensors in the graph that together are its own.
    `largest_product` are the multiply-adds of the largest operator for one row; None where nobody counted.
    """

    models: dict[str, str]
    loss: str
    squares: str
    weights: str
    scalars: dict[str, str]
    rule: OptimizerInputs
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    places: dict[str, Place]
    frozen: dict[str, tuple[int, ...]]
    offsets: dict[str, int]
    noise: Noise | None = None
    remembered: dict[str, str] = field(default_factory=dict)
    direct: Literal["none", "joined", "all"] = "none"
    guidance: Guidance | None = None
    parts: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...] = ()
    largest_product: int | None = None

    @classmethod
    def of(cls, bundle: BundleContents) -> Description:
        """Read it from the bundle.

        Raises UnavailableError when the bundle has no step graph; BundleError when it has one of another
        format; CorruptError when the description is not whole.
        """
        where, data = str(bundle.path), bundle.portable
        if data is None:
            raise UnavailableError(
                "this bundle has no step graph for the portable engine",
                where=where,
                remedy="build it with `edged artifacts build --engine both`",
            )
        if data.get("format") not in FORMATS:
            what = f"its step graph has format {data.get('format')!r}, this version reads 1 to {FORMATS[-1]}"
            raise BundleError(what, where=where, remedy=REBUILD)
        try:
            description = _parse(data)
            _fits_itself(description, data)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, TrainingError) as problem:
            raise CorruptError(
                "the description of the step graph is not whole", where=where, remedy=REBUILD
            ) from problem
        return description

    def threads(self, given: int) -> int:
        """How many of the threads that are `given` a step uses: one where its operators are small.

        To hand out a share of a small product and wait for it takes longer than to compute it. Measured on
        batches of 1 to 256 rows (`benchmarks/engines.py`, docs/portable.md).
        """
        return 1 if self.small else given

    @property
    def small(self) -> bool:
        """Whether all operators are known to be small."""
        return self.largest_product is not None and self.largest_product < SHARED_FROM

    @property
    def joined(self) -> set[int]:
        """Groups whose parameters are inputs of their own."""
        if self.direct == "none":
            return set()
        if self.direct == "all":
            return set(range(len(self.groups)))
        counts = Counter(place.group for place in self.places.values())
        return {group for group, parts in enumerate(self.parts) if counts[group] > 1 or len(parts) > 1}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, trainable and frozen."""
        return {name: place.shape for name, place in self.places.items()} | self.frozen


def _fits_itself(description: Description, data: Mapping[str, Any]) -> None:
    """Raise KeyError where a name is missing, ValueError where a tensor cannot have its shape or place."""
    known = description.rule.scalars(np.ones(1), np.ones(1))
    missing = ({"data", "label"} - data.keys()) | (description.scalars.keys() - known.keys())
    missing |= {"step", "carry", "evaluation"} - description.models.keys()
    missing |= description.remembered.keys() - description.frozen.keys()
    if missing:
        raise KeyError(min(missing))
    kinds = description.rule.kinds
    if kinds[:1] != ("value",) or len(kinds) != 1 + len(description.rule.factors(1)):
        raise ValueError(f"{kinds} are not the tensors of {description.rule.name}")
    sizes = [_size(shape) for _, shape in description.groups]
    ends = [(place.group, place.start + _size(place.shape)) for place in description.places.values()]
    ends += [(i, sum(_size(shape) for _, shape in parts)) for i, parts in enumerate(description.parts)]
    if any(end > sizes[group] for group, end in ends):
        raise ValueError("a parameter does not lie in its group")
    for shape in description.frozen.values():
        _size(shape)


def _size(shape: tuple[int, ...]) -> int:
    size = math.prod(shape)
    if size >= LARGEST or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"{shape} is no shape")
    return size


def _parse(data: Mapping[str, Any]) -> Description:
    places: dict[str, Place] = {}
    for i, group in enumerate(data["groups"]):
        start = 0
        for item in group["parameters"]:
            places[str(item["name"])] = Place(i, start, tuple(item["shape"]))
            start += math.prod(item["shape"])
    return Description(
        models={str(key): str(name) for key, name in data["models"].items()},
        **{key: str(data[key]) for key in ("loss", "squares", "weights")},
        scalars=_scalars(data),
        rule=OptimizerInputs.from_json(data["optimizer"]),
        groups=tuple((str(group["name"]), tuple(group["shape"])) for group in data["groups"]),
        places=places,
        frozen={str(item["name"]): tuple(item["shape"]) for item in data["frozen"]},
        offsets={str(name): int(offset) for name, offset in data["offsets"].items()},
        noise=_noise(data.get("noise")),
        remembered={str(name): str(output) for name, output in data.get("remembered", {}).items()},
        direct="all" if data["format"] > 1 else "joined" if data.get("direct", False) else "none",
        guidance=None if data.get("guidance") is None else Guidance.from_json(data["guidance"]),
        parts=tuple(_parts(group) for group in data["groups"]),
        largest_product=None if data.get("largest_product") is None else int(data["largest_product"]),
    )


def _parts(group: Mapping[str, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    # In descriptions written before there were parts a group is one.
    parts = group.get("parts", [group])
    return tuple((str(part["name"]), tuple(part["shape"])) for part in parts)


def _scalars(data: Mapping[str, Any]) -> dict[str, str]:
    # Descriptions written when the step size was the only one have no such entry.
    named = data["scalars"] if "scalars" in data else {"size": data["step_size"]}
    return {str(what): str(name) for what, name in named.items()}


def _noise(data: Mapping[str, Any] | None) -> Noise | None:
    # Descriptions written before there was noise have no such entry.
    return Noise.from_json(data) if data is not None and data["width"] else None


def base_model(bundle: BundleContents, description: Description) -> BaseModel:
    """The inference model as it is served, and where its parameters lie."""
    served = BaseModel.of_form(bundle, FLOAT32)
    if served is not None:
        return served
    return stored_model(bundle, description, bundle.inference_model)


def stored_model(bundle: BundleContents, description: Description, path: Path) -> BaseModel:
    """The inference model in this file of the bundle, whose parameters lie where the description says."""
    shapes, offsets = description.shapes, description.offsets
    slots = [Slot(name, offsets[name], shape) for name, shape in shapes.items() if name in offsets]
    # The file beside it that holds its values, where it holds none.
    beside = (name for name in (PARAMETERS, CHECKPOINT_DATA) if name in bundle.files)
    apart = next(((bundle.path / name, bundle.files[name]) for name in beside), None)
    return BaseModel(path, bundle.files.get(path.name), slots, shapes, apart)
