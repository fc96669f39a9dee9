"""How trainable parameters lie together, so that an optimizer updates many of them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

# A tensor of at least this many elements is a group of its own: joining its gradient with others would
# copy it, which costs more than the few nodes that joining saves.
ALONE = 16384
# Parameters whose size is a multiple of this come first, so that as many as possible begin aligned.
_VECTOR = 16
# Elements that are updated at once: what the update of a part reads and writes stays in the cache.
PART = 32768


@dataclass(frozen=True)
class Part:
    """State tensors of one kind each that one run of the optimizer's nodes updates."""

    name: str
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the state tensors: one row."""
        return (1, self.size)

    def tensor(self, kind: str) -> str:
        """Name of a state tensor, or of its new value."""
        return f"{self.name}.{kind}"


@dataclass(frozen=True)
class ParameterGroup:
    """State tensors that are updated together: one large parameter, or many small ones joined.

    `parameters` are names and shapes, in the order in which they are joined.
    """

    name: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def joined(self) -> bool:
        """Whether several parameters lie one behind the other."""
        return len(self.parameters) > 1

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the state tensors, all parts together."""
        return (1, sum(self.sizes))

    @property
    def parts(self) -> list[Part]:
        """The group itself, or pieces of it, of nearly `PART` elements, where it is much larger."""
        total = sum(self.sizes)
        if total < 2 * PART:
            return [Part(self.name, total)]
        starts = range(0, total, PART)
        return [Part(f"{self.name}.part{i}", min(PART, total - at)) for i, at in enumerate(starts)]

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each parameter."""
        return [math.prod(shape) for _, shape in self.parameters]


def grouped(shapes: Mapping[str, tuple[int, ...]]) -> list[ParameterGroup]:
    """Small parameters in one group, every large one in its own."""
    alone = [(name, shape) for name, shape in shapes.items() if math.prod(shape) >= ALONE]
    small = [(name, shape) for name, shape in shapes.items() if math.prod(shape) < ALONE]
    small.sort(key=lambda item: math.prod(item[1]) % _VECTOR != 0)
    parts = [*([tuple(small)] if small else []), *((item,) for item in alone)]
    return [ParameterGroup(f"step.state{i}", part) for i, part in enumerate(parts)]
