"""Backpropagation through time (Werbos 1990): the loop from the last step to the first, in two forms.

Batches of a few rows: what the gradient is multiplied with is computed for all steps before the loop, and
gradients of weights after it, in one product over all steps. Larger ones: both within the step, gradients of
weights added up from step to step. Nothing is then held for all steps but what the forward pass has kept, and
ḡ·W where the gradient of the input is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import numpy_helper

from edged.bundles.autodiff.rules.recurrent import MANY, are_fewer, product, summed
from edged.bundles.autodiff.tape import Adjoint
from edged.bundles.graph.writer import NodeWriter, ScanState, write_choice, write_scan

if TYPE_CHECKING:
    import onnx

    from edged.bundles.autodiff.registry import Adjoints
    from edged.bundles.autodiff.rules.recurrent import RecurrentLayer
    from edged.bundles.autodiff.tape import Tape

    # Names of tensors that there are once the loop is written.
    Result = Callable[[], str]
    # Makes tensors from others: those of one step `(N, ...)`, or of all `(T, N, ...)`.
    Make = Callable[[Sequence[str], NodeWriter], list[str]]


class Loop:
    """What the loop of a layer reads, carries and leaves; `step` is what one round does.

    `within` says that everything is computed within the step, `of_x` that the input's gradient is wanted.
    """

    def __init__(self, layer: RecurrentLayer, to: NodeWriter, *, within: bool, of_x: bool) -> None:
        self.layer, self.to, self.step = layer, to, to.body()
        self._within, self._of_x = within, of_x
        self._sequences: dict[str, str] = {}
        self._collected: dict[str, str] = {}
        self._sums: list[ScanState] = []
        self._last: list[str] = []
        self._ones = ""

    def of(self, sequence: str) -> str:
        """What the step reads of a sequence `(T, N, ...)`."""
        return self._sequences.setdefault(sequence, self.step.name("of"))

    def prepared(self, sequences: Sequence[str], make: Make) -> list[str]:
        """What `make` makes of sequences, for the step to read."""
        if self._within:
            return make([self.of(name) for name in sequences], self.step)
        return [self.of(name) for name in make(sequences, self.to)]

    def reaching(self, before: str, of_states: str) -> str:
        """All that reaches a state: `before` from the next step, and from its readers, if there are any."""
        if not of_states:
            return before
        states = self.to.add("Squeeze", [of_states, self.to.sizes(1)])
        return self.step.add("Add", [before, self.of(states)])

    def product(self, gradient: str, values: str, shape: Sequence[int]) -> Result:
        """ḡᵀ·values over all steps, of this shape; `gradient` is of the step, `values` a sequence."""
        if not self._within:
            every = self._collect(gradient)
            return lambda: product(every, values, self.to)
        before = self.step.name("sum")
        after = self.step.add("Gemm", [gradient, self.of(values), before], transA=1)
        return self._added_up(before, after, shape)

    def total(self, gradient: str, width: int) -> Result:
        """Σḡ over all steps and rows, `(width,)`; `gradient` is of the step."""
        if not self._within:
            every = self._collect(gradient)
            return lambda: summed(every, self.to)
        before = self.step.name("sum")
        after = self.step.add("Gemm", [self._every_row(), gradient, before])
        total = self._added_up(before, after, (1, width))
        return lambda: self.to.add("Squeeze", [total(), self.to.sizes(0)])

    def _every_row(self) -> str:
        """Ones `(1, N)`: a product with them adds up rows, faster than a sum does."""
        if not self._ones:
            rows = self.to.add("Shape", [self.layer.x], start=1, end=2)
            size = self.to.add("Concat", [self.to.sizes(1), rows], axis=0)
            one = numpy_helper.from_array(np.ones(1, np.float32))
            self._ones = self.to.add("ConstantOfShape", [size], value=one)
        return self._ones

    def of_inputs(self, parts: Sequence[str], joined: Callable[[Sequence[str], NodeWriter], str]) -> Result:
        """ḡ·W of all steps, `(T, N, I)`, where ḡ is what `joined` makes of tensors of the step."""
        if not self._within:
            every = [self._collect(part) for part in parts]
            return lambda: self.to.add("MatMul", [joined(every, self.to), self.layer.weight])
        if not self._of_x:
            return lambda: ""
        each = self.step.add("MatMul", [joined(parts, self.step), self.layer.weight])
        collected = self._collect(each)
        return lambda: collected

    def _collect(self, name: str) -> str:
        return self._collected.setdefault(name, self.to.name("collected"))

    def _added_up(self, before: str, after: str, shape: Sequence[int]) -> Result:
        zeros, place = self.to.add("ConstantOfShape", [self.to.sizes(*shape)]), len(self._sums)
        self._sums.append(ScanState(zeros, before, after))
        return lambda: self._last[place]

    def write(self, states: Sequence[ScanState]) -> list[str]:
        """Write the loop, which carries these; their values after the last round."""
        self._last = write_scan(
            self.step,
            self.to,
            states=[*self._sums, *states],
            sequences={name: sequence for sequence, name in self._sequences.items()},
            collected=self._collected,
            backwards=True,
        )
        return self._last[len(self._sums) :]


def write_gradients(
    node: onnx.NodeProto, layer: RecurrentLayer, to: Tape, back: Callable[[Loop], Sequence[Result]]
) -> Adjoints:
    """Write the gradients of x, W, R, biases and initial states that are wanted.

    `back` writes a loop and gives all of them, in this order.
    """
    places = [0, 1, 2, 3, *range(5, 5 + len(layer.first))]
    wanted = [i for i, place in enumerate(places) if to.wants(node, place)]
    few, many = to.body(), to.body()
    loops = [Loop(layer, body, within=body is many, of_x=0 in wanted) for body in (few, many)]
    made = [back(loop) for loop in loops]
    results = [[result[i]() for i in wanted] for result in made]
    outputs = [to.name("gradient") for _ in wanted]
    write_choice(are_fewer(MANY, layer, to), (few, many), (results[0], results[1]), outputs, to)
    found: Adjoints = [None] * (places[-1] + 1)
    for i, value in zip(wanted, outputs, strict=True):
        name = value if i == 0 else to.add("Unsqueeze", [value, to.sizes(0)])
        found[places[i]] = Adjoint(name, to.dims(node.input[places[i]], node))
    return found
