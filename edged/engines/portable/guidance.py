"""What guides the portable engine's steps besides the labels: anchor weights and a teacher."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edged.errors import TrainingError, UnavailableError

if TYPE_CHECKING:
    from edged.domain.protocols import Anchor, Distillation
    from edged.engines.portable.description import Description

Floats = NDArray[np.float32]


class Guide:
    """The tensors and scalars that the guided step takes besides those of a plain one.

    Raises UnavailableError when the bundle has no graph for it.
    """

    def __init__(self, description: Description, where: str) -> None:
        if description.guidance is None or "guided" not in description.models:
            raise UnavailableError(
                "this bundle has no graph for anchor weights and a teacher",
                where=where,
                remedy="build the bundle again with `edged artifacts build`",
            )
        self._description, self._soft = description, description.guidance.soft
        self.teacher = description.guidance.teacher
        self.anchor, self.strength = (
            [np.zeros(group.shape, np.float32) for group in description.groups] for _ in range(2)
        )
        self._scalars = {what: np.zeros((), np.float32) for what in description.guidance.scalars}
        self.named = {name: self._scalars[what] for what, name in description.guidance.scalars.items()}
        self._pull = 0.0
        self._distillation: Distillation | None = None

    @property
    def teaching(self) -> bool:
        """Whether a step needs the outputs of a teacher."""
        return self._distillation is not None

    def set(self, anchor: Anchor | None, distillation: Distillation | None) -> None:
        """Take these from now on; raises TrainingError, before anything is changed, when one does not fit."""
        self._check(anchor, distillation)
        for array in self.strength:
            array.fill(0)
        if anchor is not None:
            self._put(anchor)
        self._pull = anchor.strength if anchor is not None else 0.0
        self._distillation = distillation

    def prepare(self, scale: float) -> None:
        """Set the scalars for a step whose gradient is multiplied with `scale`."""
        given = self._distillation
        temperature = given.temperature if given is not None and self._soft else 1.0
        weight = given.weight if given is not None else 0.0
        self._scalars["pull"][...] = self._pull * scale
        self._scalars["cold"][...] = 1 / temperature
        self._scalars["term"][...] = weight * temperature**2
        self._scalars["slope"][...] = weight * temperature

    def _put(self, anchor: Anchor) -> None:
        for name, value in anchor.values.items():
            place = self._description.places[name]
            place.of(self.anchor)[...] = value
            place.of(self.strength)[...] = 1 if anchor.importance is None else anchor.importance.get(name, 0)

    def _check(self, anchor: Anchor | None, distillation: Distillation | None) -> None:
        if anchor is not None:
            _check_number(anchor.strength, "anchor.strength")
            self._check_values(anchor.values, "anchor.values")
            self._check_values(anchor.importance or {}, "anchor.importance")
        if distillation is not None:
            _check_number(distillation.weight, "distillation.weight")
            _check_number(distillation.temperature, "distillation.temperature", above=True)

    def _check_values(self, values: Mapping[str, Floats], where: str) -> None:
        for name, value in values.items():
            if name not in self._description.places:
                raise TrainingError(f"{name} is no trainable parameter", where=where)
            shape = self._description.places[name].shape
            if np.shape(value) != shape or not np.isfinite(value).all():
                raise TrainingError(f"{name} must be finite and of shape {shape}", where=where)


def _check_number(value: float, where: str, *, above: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (above and value == 0):
        raise TrainingError(f"must be finite and {'above 0' if above else '0 or more'}", where=where)
