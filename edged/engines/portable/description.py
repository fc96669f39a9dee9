"""What `bundle.json` says about the step graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import CHECKPOINT_DATA, PARAMETERS, REBUILD, Slot
from edged.domain.model_files import FLOAT32
from edged.domain.training.message import Message
from edged.engines.onnx.base_model import BaseModel
from edged.engines.portable.optimizer import OptimizerInputs
from edged.errors import BundleError, CorruptError, TrainingError, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from edged.domain.bundle_contents import BundleContents
    from edged.domain.json_fields import JsonObject

# In the first one scalars had no axis, and a large parameter had no other tensor than the state's. In the
# second all state tensors had the shape of their part.
FORMATS = (1, 2, 3)
# Multiply-adds for one row from which threads share an operator.
SHARED_FROM = 1 << 16
LARGEST = 1 << 31  # elements of a tensor; a file of protobuf holds fewer

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class NamedShape(Message):
    """A parameter, or a tensor of the graphs: its name and its shape."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StateGroup(NamedShape):
    """A tensor of the state, and the parameters that lie in it one behind the other.

    `parts` are the tensors of the graphs that it consists of; empty where it is one of them itself.
    """

    parameters: tuple[NamedShape, ...]
    parts: tuple[NamedShape, ...] = ()

    @property
    def tensors(self) -> tuple[NamedShape, ...]:
        """The tensors of the graphs that it consists of."""
        return self.parts or (self,)


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
    """The input that takes uniform random numbers: its name, how many a row, what they are drawn from.

    Graphs that take none have no such input: 0 a row.
    """

    name: str
    width: int
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Description(Message):
    """The step graph: names of its tensors, layout of the state, constants of the optimizer.

    `models` are the files of the graphs: `step`, `carry`, `evaluation`, and `guided`, whose scalar input
    `pull` is the strength of an anchor.
    `data` is the input for the rows, `label` the one for the label, `labels` those for all labels of a model
    that has several.
    `scalars` are the inputs for what changes from update to update, `remembered` frozen parameters which
    a step gives new values and the outputs that hold them.
    `offsets` are the first bytes of the parameters in the inference model.
    `direct` is for format 1 alone: whether joined parameters are inputs of their own besides the state that
    holds them. In later formats all parameters are.
    `largest_product` are the multiply-adds of the largest operator for one row; None where nobody counted.
    """

    format: int
    models: Mapping[str, str]
    data: str
    label: str
    labels: tuple[str, ...] = ()
    loss: str
    squares: str
    weights: str
    scalars: Mapping[str, str]
    optimizer: OptimizerInputs
    groups: tuple[StateGroup, ...]
    frozen: tuple[NamedShape, ...]
    offsets: Mapping[str, int]
    noise: Noise = Noise("", 0)
    remembered: Mapping[str, str] = field(default_factory=dict)
    direct: bool = False
    pull: str = ""
    largest_product: int | None = None

    def to_json(self) -> JsonObject:
        """Return what `bundle.json` says, in the newest format."""
        return self.without("places", "direct", *(() if self.labels else ("labels",)))

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
            # Descriptions written when the step size was the only scalar name it alone.
            named = {} if "scalars" in data else {"scalars": {"size": data["step_size"]}}
            description = cls.from_json({**data, **named})
            _fits_itself(description)
        except (KeyError, ValueError, ArithmeticError, TrainingError) as problem:
            raise CorruptError(
                "the description of the step graph is not whole", where=where, remedy=REBUILD
            ) from problem
        return description

    @cached_property
    def places(self) -> dict[str, Place]:
        """Where the trainable parameters lie."""
        places = {}
        for i, group in enumerate(self.groups):
            start = 0
            for parameter in group.parameters:
                places[parameter.name] = Place(i, start, parameter.shape)
                start += math.prod(parameter.shape)
        return places

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
        if self.format > 1:
            return set(range(len(self.groups)))
        groups = enumerate(self.groups if self.direct else ())
        return {i for i, group in groups if len(group.parameters) > 1 or len(group.tensors) > 1}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, trainable and frozen."""
        trained = {name: place.shape for name, place in self.places.items()}
        return trained | {parameter.name: parameter.shape for parameter in self.frozen}


def _fits_itself(description: Description) -> None:
    """Raise KeyError where a name is missing, ValueError where a tensor cannot have its shape or place."""
    rule = description.optimizer
    missing = description.scalars.keys() - rule.scalars(np.ones(1), np.ones(1)).keys()
    missing |= {"step", "carry", "evaluation"} - description.models.keys()
    missing |= description.remembered.keys() - {parameter.name for parameter in description.frozen}
    if missing:
        raise KeyError(min(missing))
    if rule.kinds[:1] != ("value",) or len(rule.kinds) != 1 + len(rule.factors(1)):
        raise ValueError(f"{rule.kinds} are not the tensors of {rule.name}")
    sizes = [_size(group.shape) for group in description.groups]
    ends = [(place.group, place.start + _size(place.shape)) for place in description.places.values()]
    ends += [(i, sum(_size(t.shape) for t in group.tensors)) for i, group in enumerate(description.groups)]
    if any(end > sizes[group] for group, end in ends):
        raise ValueError("a parameter does not lie in its group")
    for parameter in description.frozen:
        _size(parameter.shape)


def _size(shape: tuple[int, ...]) -> int:
    size = math.prod(shape)
    if size >= LARGEST or min(shape, default=0) < 0:
        raise ValueError(f"{shape} is no shape")
    return size


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
