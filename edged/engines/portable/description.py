"""What `bundle.json` says about the step graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import REBUILD, BundleContents
from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message
from edged.domain.training.optimizers import OPTIMIZERS, Optimizer
from edged.errors import CorruptError, TrainingError, UnavailableError

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
    """A tensor of the state, and the parameters that lie in it one behind the other."""

    parameters: tuple[NamedShape, ...]


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
    `data` is the input for the rows, `label` the one for the label.
    `scalars` are the inputs for what changes from update to update, `remembered` frozen parameters which
    a step gives new values and the outputs that hold them.
    `largest_product` are the multiply-adds of the largest operator for one row; None where nobody counted.
    """

    models: Mapping[str, str]
    data: str
    label: str
    loss: str
    squares: str
    weights: str
    scalars: Mapping[str, str]
    optimizer: Optimizer
    groups: tuple[StateGroup, ...]
    frozen: tuple[NamedShape, ...]
    noise: Noise = Noise("", 0)
    remembered: Mapping[str, str] = field(default_factory=dict)
    pull: str = ""
    largest_product: int | None = None

    def to_json(self) -> JsonObject:
        """Return what `bundle.json` says."""
        return self.without("places")

    @classmethod
    def of(cls, bundle: BundleContents) -> Description:
        """Read it from the bundle.

        Raises UnavailableError when the bundle has no step graph; CorruptError when the description is not
        whole.
        """
        where, data = str(bundle.path), bundle.portable
        if data is None:
            raise UnavailableError(
                "this bundle has no step graph for the portable engine",
                where=where,
                remedy="build it with `edged artifacts build --engine portable`",
            )
        try:
            description = cls.from_json(data)
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
    if rule.name not in OPTIMIZERS:
        raise ValueError(f"there is no optimizer {rule.name!r}")
    sizes = [_size(group.shape) for group in description.groups]
    ends = [(place.group, place.start + _size(place.shape)) for place in description.places.values()]
    if any(end > sizes[group] for group, end in ends):
        raise ValueError("a parameter does not lie in its group")
    for parameter in description.frozen:
        _size(parameter.shape)


def _size(shape: tuple[int, ...]) -> int:
    size = math.prod(shape)
    if size >= LARGEST or min(shape, default=0) < 0:
        raise ValueError(f"{shape} is no shape")
    return size
