"""The portable engine's memory: every tensor that outlives a step, under the names of the step graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edged.domain.protocols import Anchor
from edged.engines.portable.description import Description, Noise
from edged.errors import TrainingError

# Less than this is 0 in a swept moment: no weight moves by it, and more is still normal at the next sweep.
NOTHING = 1e-30

Floats = NDArray[np.float32]
Arrays = dict[str, Floats]


class StateBuffers:
    """State on two sides: a step reads one and writes the other, and they change places when it was good.

    State are parameters, the optimizer's moments, and running statistics: frozen parameters to which a
    step gives new values. Gradients that wait for the next step lie beside it, on no side.
    """

    def __init__(self, description: Description) -> None:
        self._description = description
        self.side = 0
        self.states = [{kind: self._groups() for kind in description.optimizer.kinds} for _ in range(2)]
        frozen = {one.name: one.shape for one in description.frozen}
        self.statistics = [
            {name: np.zeros(frozen[name], np.float32) for name in description.remembered} for _ in range(2)
        ]
        self.fixed = {
            name: np.zeros(shape, np.float32)
            for name, shape in frozen.items()
            if name not in description.remembered
        }
        self.carry, self._carried = self._groups(), self._groups()
        # Loss and square sum of the gradients of the last step, one behind the other: both are read at once.
        self.step_results = np.zeros(2, np.float32)
        self.judged = np.zeros((), np.float32)
        # The scalars of the next update in the order of the description, so that all are set at once.
        self.prepared = np.zeros(len(description.scalars), np.float32)
        self._before: Arrays | None = None

    def _groups(self) -> list[Floats]:
        return [np.zeros(group.shape, np.float32) for group in self._description.groups]

    @cached_property
    def anchor(self) -> AnchorBuffers:
        """The memory for anchor weights."""
        return AnchorBuffers(self._description, self._groups(), self._groups())

    # ---- what the graphs are bound to --------------------------------------------------------

    def step_sides(self) -> list[tuple[Arrays, Arrays]]:
        """Inputs and outputs of a step on each side."""
        description = self._description
        return [
            (
                {
                    **{name: self.prepared[i : i + 1] for i, name in enumerate(description.scalars.values())},
                    **self._frozen(side),
                    **self._parameters(side),
                    **self._named(self.states[side]),
                },
                {
                    description.loss: self.step_results[:1],
                    description.squares: self.step_results[1:],
                    **self._new(side),
                },
            )
            for side in range(2)
        ]

    def carry_sides(self) -> list[tuple[Arrays, Arrays]]:
        """The same with gradients that earlier steps left."""
        carry, carried = self._named({"carry": self.carry}), self._named({"carried": self._carried})
        return [({**inputs, **carry}, {**outputs, **carried}) for inputs, outputs in self.step_sides()]

    def guided_sides(self) -> list[tuple[Arrays, Arrays]]:
        """The same with the anchor that pulls the step."""
        anchor = self.anchor
        more = self._named({"anchor": anchor.values, "strength": anchor.strengths})
        more[self._description.pull] = anchor.pull
        return [({**inputs, **more}, outputs) for inputs, outputs in self.carry_sides()]

    def evaluation_sides(self) -> list[tuple[Arrays, Arrays]]:
        """Inputs and outputs of the evaluation graph on each side."""
        outputs = {self._description.loss: self.judged}
        return [({**self._frozen(side), **self._parameters(side)}, outputs) for side in range(2)]

    def _parameters(self, side: int) -> Arrays:
        """Trainable parameters one by one, in the memory of the flat tensors."""
        values = self.states[side]["value"]
        return {name: place.of(values) for name, place in self._description.places.items()}

    def _new(self, side: int) -> Arrays:
        """What a step on this side writes to the other one."""
        statistics = self.statistics[1 - side]
        new = {self._description.remembered[name]: value for name, value in statistics.items()}
        return {**self._named(self.states[1 - side], "new_"), **new}

    def _frozen(self, side: int) -> Arrays:
        return {**self.fixed, **self.statistics[side]}

    def _named(self, state: Mapping[str, list[Floats]], prefix: str = "") -> Arrays:
        return {
            f"{group.name}.{prefix}{kind}": array
            for kind, arrays in state.items()
            for group, array in zip(self._description.groups, arrays, strict=True)
        }

    # ---- what a step leaves ------------------------------------------------------------------

    def accept(self) -> None:
        """Let what the last step wrote become the state."""
        self.side = 1 - self.side
        self._before = None

    def keep_gradients(self) -> None:
        """Let the next step add to the gradients of this one; running statistics count every batch."""
        for mine, new in zip(self.carry, self._carried, strict=True):
            mine[...] = new
        now = self.statistics[self.side]
        if self._before is None:
            self._before = {name: value.copy() for name, value in now.items()}
        _copy(self.statistics[1 - self.side], now)

    def forget_gradients(self) -> None:
        """Drop kept gradients, and what the batches they came from did to the running statistics."""
        for gradient in self.carry:
            gradient.fill(0)
        if self._before is not None:
            _copy(self._before, self.statistics[self.side])
            self._before = None

    def tend(self, updates: int) -> None:
        """Bring the moments back to their true scale when it is time; sweep what is left of old gradients.

        A moment whose gradient stays 0 would shrink to subnormal numbers: most processors are slow with them.
        """
        rule, state = self._description.optimizer, self.states[self.side]
        factors = rule.renewal(updates)
        for kind, factor in zip(rule.kinds[1:], factors, strict=True) if factors else ():
            for moment in state[kind]:
                np.multiply(moment, np.float32(factor), out=moment)
        for kind in rule.kinds[1:2]:
            # What the next step overwrites serves as scratch.
            for moment, spare in zip(state[kind], self.states[1 - self.side][kind], strict=True):
                moment[np.abs(moment, out=spare) < NOTHING] = 0

    # ---- parameters --------------------------------------------------------------------------

    def view(self, name: str, kind: str = "value") -> Floats:
        """The present parameter, or a moment of it, to read or to overwrite."""
        if name in self.fixed:
            return self.fixed[name]
        if name in self._description.remembered:
            return self.statistics[self.side][name]
        return self._description.places[name].of(self.states[self.side][kind])

    def are_finite(self) -> bool:
        """Whether all parameters are, trainable and frozen."""
        values = [*self.states[self.side]["value"], *self._frozen(self.side).values()]
        return all(np.isfinite(value).all() for value in values)


def _copy(source: Arrays, target: Arrays) -> None:
    for name, value in source.items():
        target[name][...] = value


def noise_of(noise: Noise, rows: int, update: int, part: int) -> Floats:
    """Uniform numbers in [0, 1), `(rows, width)`, for part `part` of the batch of an update.

    The generator counts instead of remembering (Philox; Salmon et al. 2011, "Parallel random numbers: as
    easy as 1, 2, 3"), so a resumed run has the noise that it would have had.
    """
    counter = np.array([0, 0, part, update], np.uint64)
    generator = np.random.Generator(np.random.Philox(key=noise.seed, counter=counter))
    return generator.random((rows, noise.width), dtype=np.float32)


class AnchorBuffers:
    """Anchor weights as the guided step takes them: `values`, `strengths` (1 or 0), and the scalar `pull`."""

    def __init__(self, description: Description, values: list[Floats], strengths: list[Floats]) -> None:
        self._description, self.values, self.strengths = description, values, strengths
        self.pull = np.zeros((), np.float32)
        self._strength = 0.0

    def set(self, anchor: Anchor) -> None:
        """Take these weights from now on.

        Raises TrainingError, before anything is changed, when they do not fit.
        """
        self._check(anchor)
        for array in self.strengths:
            array.fill(0)
        for name, value in anchor.values.items():
            place = self._description.places[name]
            place.of(self.values)[...] = value
            place.of(self.strengths)[...] = 1
        self._strength = anchor.strength

    def prepare(self, scale: float) -> None:
        """Set the strength for a step whose gradient is multiplied with `scale`."""
        self.pull[...] = self._strength * scale

    def _check(self, anchor: Anchor) -> None:
        if not math.isfinite(anchor.strength) or anchor.strength < 0:
            raise TrainingError("must be finite and 0 or more", where="anchor.strength")
        for name, value in anchor.values.items():
            if name not in self._description.places:
                raise TrainingError(f"{name} is no trainable parameter", where="anchor.values")
            shape = self._description.places[name].shape
            if np.shape(value) != shape or not np.isfinite(value).all():
                raise TrainingError(f"{name} must be finite and of shape {shape}", where="anchor.values")
