"""Several steps of the portable engine in one run of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.protocols import labels_of
from edged.engines.portable.bound_graph import DTYPES, bind
from edged.engines.portable.buffers import noise_of
from edged.engines.runtime import ort

if TYPE_CHECKING:
    from edged.domain.protocols import Labels
    from edged.engines.portable.description import Description

    Arrays = Mapping[str, np.ndarray]

# Numbers of steps and rows whose memory is kept.
_KEPT = 3


class ManySteps:
    """A graph whose rows have two axes that vary, steps and batch, and whose outputs are stacked too.

    `rows` are the names of the step's inputs for data and labels, `sides` the inputs and outputs that stay
    where they are, side by side.
    """

    def __init__(
        self,
        session: Any,
        told: Description,
        rows: Sequence[str],
        sides: Sequence[tuple[Arrays, Arrays]],
    ) -> None:
        self._session, self._told, self._sides = session, told, sides
        self._prefix = told.many or ""
        self._rows = [self._prefix + name for name in rows]
        self._kept: dict[tuple[int, int], StepBuffers] = {}

    def run(
        self,
        side: int,
        batches: Sequence[tuple[np.ndarray, Labels]],
        scales: Sequence[float],
        scalars: np.ndarray,
        updates: int,
    ) -> list[float] | None:
        """Losses of steps after so many updates; None when a loss or square sum is not finite.

        `scales` and `scalars`, one row a step, are what their gradients are multiplied with and what
        changes from update to update.

        None too, and nothing was changed, when the batches do not fit the graph or it fails on them: one
        step alone says why.
        """
        x, y = batches[0]
        if len(x) == 0:
            return None
        bound = self._bound(len(batches), len(x))
        data, *wanted = (bound.arrays[name] for name in self._rows)
        first = [(label.shape, label.dtype) for label in labels_of(y)]
        if (x.size, x.dtype) != (data[0].size, data.dtype) or first != [
            (stack[0].shape, stack.dtype) for stack in wanted
        ]:
            return None
        for i, (rows, labels) in enumerate(batches):
            data[i] = rows.reshape(data.shape[1:])
            for stack, label in zip(wanted, labels_of(labels), strict=True):
                stack[i] = label
        self._fill(bound.arrays, scales, scalars, updates, len(x))
        try:
            bound.run(side)
        except ort.ERRORS:
            # Numbers that are not finite can end a run: the largest of nothing but NaN is nowhere.
            return None
        losses, squares = (
            bound.arrays[self._prefix + name] for name in (self._told.loss, self._told.squares)
        )
        if not (np.isfinite(losses).all() and np.isfinite(squares).all()):
            return None
        return [float(loss) / scale for loss, scale in zip(losses.reshape(-1), scales, strict=True)]

    def _fill(
        self, arrays: Arrays, scales: Sequence[float], scalars: np.ndarray, updates: int, rows: int
    ) -> None:
        """Write weights, noise and scalars of all steps."""
        told, prefix = self._told, self._prefix
        for name, values in zip(told.scalars.values(), scalars.T, strict=True):
            arrays[prefix + name].reshape(-1)[...] = values
        arrays[prefix + told.weights][...] = np.reshape(scales, (-1, 1, 1)) / rows
        if told.noise is not None:
            for i, noise in enumerate(arrays[prefix + told.noise.name]):
                noise[...] = noise_of(told.noise, rows, updates + i, 0)

    def _bound(self, steps: int, batch: int) -> StepBuffers:
        """The graph bound to memory for so many steps of so many rows."""
        key = steps, batch
        if key not in self._kept:
            if len(self._kept) == _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = StepBuffers(self._session, self._sides, steps, batch)
        return self._kept[key]


class StepBuffers:
    """Memory of one size: `arrays` are the stacked inputs and outputs by name."""

    def __init__(self, session: Any, sides: Sequence[tuple[Arrays, Arrays]], steps: int, batch: int) -> None:
        self._session = session
        self._alive: list[Any] = []
        takes, gives = session.get_inputs(), session.get_outputs()
        self.arrays = {
            item.name: np.zeros(_shape(item.shape, steps, batch), DTYPES[item.type])
            for item, fixed in [*((i, sides[0][0]) for i in takes), *((o, sides[0][1]) for o in gives)]
            if item.name not in fixed
        }
        self._bindings = [
            bind(
                session,
                {item.name: {**self.arrays, **inputs}[item.name] for item in takes},
                {item.name: {**self.arrays, **outputs}[item.name] for item in gives},
                self._alive,
            )
            for inputs, outputs in sides
        ]

    def run(self, side: int) -> None:
        """Run on one side with what is in the arrays; raises one of ort.ERRORS."""
        self._session.run_with_iobinding(self._bindings[side])


def _shape(shape: Sequence[int | str], steps: int, batch: int) -> list[int]:
    # The first axis that varies is the steps', the second the batch's.
    sizes = iter((steps, batch))
    return [size if isinstance(size, int) else next(sizes) for size in shape]
