"""The step graphs as sessions that are bound to memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from edged.domain.bundle_contents import BundleContents
from edged.engines.portable.buffers import StateBuffers
from edged.engines.portable.description import Description
from edged.engines.runtime import ort
from edged.engines.runtime.ort import onnxruntime
from edged.errors import BundleError

Arrays = Mapping[str, np.ndarray]
Sides = list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]


DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
# Batch sizes whose memory is kept: a full batch, the rest at the end of a run, and a few more.
_KEPT = 4


def bind(session: Any, inputs: Arrays, outputs: Arrays, alive: list[Any]) -> Any:
    """Bind a session to these arrays; `alive` gets what must live as long as the binding.

    On the CPU an OrtValue shares the memory of its array, which it takes in the graph's shape.
    """
    binding = session.io_binding()
    shapes = {item.name: item.shape for item in (*session.get_inputs(), *session.get_outputs())}
    for put, arrays in ((binding.bind_ortvalue_input, inputs), (binding.bind_ortvalue_output, outputs)):
        for name, array in arrays.items():
            shaped = array if array.ndim == len(shapes[name]) else array.reshape(shapes[name])
            value = onnxruntime.OrtValue.ortvalue_from_numpy(shaped)
            alive.append((array, value))
            put(name, value)
    return binding


class Program:
    """One session with several bindings of the same names to different memory, its sides.

    `rows` are the inputs that come anew with every run, batch axis first; `weights` is one more, `(n, 1)`, if
    there is one. `sides` are inputs and outputs that stay where they are, side by side; arrays are written in
    place.

    Raises ort.ERRORS when the graph cannot be bound; ValueError when it has other inputs and outputs than
    these.
    """

    def __init__(
        self, session: Any, rows: Sequence[str], sides: Sequence[tuple[Arrays, Arrays]], weights: str = ""
    ) -> None:
        self._session = session
        inputs = {item.name: item for item in session.get_inputs()}
        names = [*rows, weights] if weights else rows
        if missing := [name for name in names if name not in inputs]:
            raise ValueError(f"the graph has no input {missing[0]!r}")
        self._rows = {name: (tuple(inputs[name].shape[1:]), DTYPES[inputs[name].type]) for name in names}
        self._alive: list[Any] = []
        self._sides = [self._bound(*side) for side in sides]
        # Past the runtime's own wrapper: a line of Python costs a small graph 1 % of its time.
        self._runs = [
            partial(session._sess.run_with_iobinding, side._iobinding, None)  # noqa: SLF001
            for side in self._sides
        ]
        self._kept: dict[int, tuple[list[np.ndarray], list[Any]]] = {}
        self._size = -1
        # Before the first run no rows fit.
        self._wanted = [(np.empty(0, np.float32), (-1,), np.dtype(np.float32)) for _ in rows]
        self._weighted, self._weights = bool(weights), np.empty(0, np.float32)

    def _bound(self, inputs: Arrays, outputs: Arrays) -> Any:
        # The runtime notices a wrong name only when it runs.
        given = {*inputs, *self._rows}, set(outputs)
        theirs = self._session.get_inputs(), self._session.get_outputs()
        for names, there in zip(given, theirs, strict=True):
            if different := names.symmetric_difference(item.name for item in there):
                raise ValueError(f"{min(different)!r} is not both in the graph and in its description")
        return bind(self._session, inputs, outputs, self._alive)

    def run(self, side: int, weights: np.ndarray | float, *rows: np.ndarray) -> None:
        """Run on one side with these rows, in the order of the names; a number weighs all of them.

        Behind a run of the graph little of Python is left in the processor's caches: each line here is felt.

        Raises ValueError when a row array has another shape or type than the graph takes; ort.ERRORS when the
        graph fails on them.
        """
        if len(rows[0]) != self._size:
            self._resize(len(rows[0]))
        for (buffer, shape, dtype), values in zip(self._wanted, rows, strict=True):
            if values.shape != shape or values.dtype != dtype:
                raise ValueError(f"expected {dtype}{list(shape)}, got {values.dtype}{list(values.shape)}")
            buffer[...] = values
        if isinstance(weights, np.ndarray) and weights.shape != self._weights.shape:
            raise ValueError(f"expected weights {list(self._weights.shape)}, got {list(weights.shape)}")
        self._weights[...] = weights
        self._runs[side]()

    def run_pair(self, side: int, weight: float, x: np.ndarray, y: np.ndarray) -> None:
        """`run` with two arrays and one weight for all rows, in half the time outside the graph: no loop."""
        (a, a_shape, a_dtype), (b, b_shape, b_dtype) = self._wanted
        if x.shape != a_shape or y.shape != b_shape or x.dtype is not a_dtype or y.dtype is not b_dtype:
            self.run(side, weight, x, y)
            return
        a[...] = x
        b[...] = y
        self._weights.fill(weight)
        self._runs[side]()

    def _resize(self, size: int) -> None:
        if size == 0:
            raise ValueError("the batch is empty")
        if size not in self._kept:
            if len(self._kept) == _KEPT:
                del self._kept[next(iter(self._kept))]
            made = [np.zeros((size, *shape), dtype) for shape, dtype in self._rows.values()]
            self._kept[size] = made, [onnxruntime.OrtValue.ortvalue_from_numpy(each) for each in made]
        buffers, values = self._kept[size]
        for binding in self._sides:
            for name, value in zip(self._rows, values, strict=True):
                binding.bind_ortvalue_input(name, value)
        if self._weighted:
            *buffers, self._weights = buffers
        self._wanted = [(each, each.shape, each.dtype) for each in buffers]
        self._size = size


# numpy raises ValueError for arrays that cannot be brought to the graph's shape.
RUN_ERRORS: tuple[type[Exception], ...] = (*ort.ERRORS, ValueError)


class Graphs:
    """The step in its forms, and the evaluation.

    Raises UnavailableError when this machine cannot use one of the execution providers; BundleError when a
    graph cannot be loaded; for the plain step that is at once, else when it is first used.
    """

    def __init__(
        self,
        bundle: BundleContents,
        description: Description,
        memory: StateBuffers,
        threads: int,
        providers: Sequence[str],
    ) -> None:
        self._folder, self._description, self._memory = bundle.path, description, memory
        self._threads = description.threads(threads)
        self._providers = providers
        self._rows = (description.data, description.label)
        self._inputs = [*self._rows, *([description.noise.name] if description.noise.width else [])]
        self.step = self._program("step", memory.step_sides(), self._inputs, description.weights)

    def path(self, model: str) -> Path:
        """The file of a graph."""
        return self._folder / self._description.models[model]

    def _program(self, model: str, sides: Sides, rows: Sequence[str], weights: str = "") -> Program:
        path = self.path(model)
        try:
            # Of graphs with large operators the runtime's order is the faster one.
            session = ort.session(str(path), self._threads, self._providers, in_order=self._description.small)
            return Program(session, rows, sides, weights)
        except RUN_ERRORS as problem:
            raise BundleError(
                f"the step graph cannot be loaded: {ort.one_line(problem)}",
                where=str(path),
                remedy="check it with `edged artifacts verify`",
            ) from problem

    @cached_property
    def carry(self) -> Program:
        """The step with gradients that earlier ones left."""
        return self._program("carry", self._memory.carry_sides(), self._inputs, self._description.weights)

    @cached_property
    def guided(self) -> Program:
        """The step with gradients that earlier ones left, and anchor weights."""
        sides = self._memory.guided_sides()
        return self._program("guided", sides, self._inputs, self._description.weights)

    @cached_property
    def evaluation(self) -> Program:
        """Build the program that computes the loss alone."""
        return self._program("evaluation", self._memory.evaluation_sides(), self._rows)
