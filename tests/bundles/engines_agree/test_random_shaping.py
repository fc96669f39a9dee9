"""Random small networks that turn, cut, join, repeat and reduce: both engines come to the same gradients."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from tests.bundles.engines_agree.gradients import assert_equal, both_gradients
from tests.bundles.engines_agree.shaped import Shaped

GRAPHS = int(os.environ.get("EDGED_RANDOM_GRAPHS", "30"))
LARGEST = 48


class Chain:
    """A network that grows at its end, with random choices from one generator."""

    def __init__(self, seed: int, row: tuple[int, ...]) -> None:
        self.net = Shaped(*row, seed=seed)
        self.rng = np.random.default_rng(seed)
        self.end, self.row = "h", row

    def choose(self, low: int, high: int) -> int:
        """From `low` to `high`, both possible."""
        return int(self.rng.integers(low, high + 1))

    def axis(self) -> int:
        return self.choose(1, len(self.row))

    def signed(self, axis: int) -> int:
        """The axis counted from the front or from the end."""
        return axis if self.choose(0, 1) else axis - len(self.row) - 1

    def grow(self, step: Callable[[Chain], None]) -> None:
        """Do a step, or leave no trace of it where it would go too far."""
        before, nodes, tensors = self.end, len(self.net.nodes), len(self.net.tensors)
        step(self)
        if self.end == before:
            del self.net.nodes[nodes:], self.net.tensors[tensors:]

    def put(self, end: str) -> None:
        row = self.net.row(end)
        if row and 0 < np.prod(row) <= LARGEST:
            self.end, self.row = end, row

    # ---- steps -------------------------------------------------------------------------------

    def turn(self) -> None:
        order = 1 + self.rng.permutation(len(self.row))
        self.put(self.net.add("Transpose", self.end, perm=[0, *(int(i) for i in order)]))

    def reshape(self) -> None:
        sizes = [size for size in self.row if size > 1] or [1]
        joined = self.choose(0, 1) and len(sizes) > 1
        sizes = [sizes[0] * sizes[1], *sizes[2:]] if joined else [*sizes, 1]
        self.put(self.net.add("Reshape", self.end, self.net.ints(-1, *sizes)))

    def cut(self) -> None:
        axis = self.axis()
        length = self.row[axis - 1]
        start = self.choose(0, length - 1)
        step = (1, 1, 2, -1, -2)[self.choose(0, 4)]
        end = self.choose(start + 1, length) if step > 0 else self.choose(-length - 3, -length - 1)
        bounds = (start, end, self.signed(axis), step)
        self.put(self.net.add("Slice", self.end, *(self.net.ints(value) for value in bounds)))

    def pad(self) -> None:
        before, after = ([self.choose(0, 2) for _ in self.row] for _ in range(2))
        self.put(self.net.add("Pad", self.end, self.net.ints(0, *before, 0, *after)))

    def split(self) -> None:
        axis = self.axis()
        length = self.row[axis - 1]
        if length < 2:
            return
        first = self.choose(1, length - 1)
        one, other = self.net.split(self.end, first, length - first, axis=self.signed(axis))
        if self.choose(0, 2):
            one = self.net.add("Concat", other, self.net.add("Tanh", one), axis=self.signed(axis))
        self.put(one)

    def repeat(self) -> None:
        axis = self.axis()
        longer = self.net.add("Unsqueeze", self.end, self.net.ints(axis))
        shape = [1] * (len(self.row) + 2)
        shape[axis] = self.choose(1, 3)
        self.put(self.net.add(("Expand", "Tile")[self.choose(0, 1)], longer, self.net.ints(*shape)))

    def reduce(self) -> None:
        axis, keep = self.signed(self.axis()), self.choose(0, 1)
        name = ("Mean", "Sum", "Max", "Min", "L2", "LogSumExp")[self.choose(0, 5)]
        if name == "Sum":
            self.put(self.net.add("ReduceSum", self.end, self.net.ints(axis), keepdims=keep))
        else:
            self.put(self.net.add(f"Reduce{name}", self.end, axes=[axis], keepdims=keep))

    def gather(self) -> None:
        axis = self.axis()
        length = self.row[axis - 1]
        shape = ((), (2,), (2, 2))[self.choose(0, 2)]
        places = self.rng.integers(-length, length, shape)
        self.put(self.net.add("Gather", self.end, self.net.tensor(places), axis=self.signed(axis)))

    def embed(self) -> None:
        if len(self.row) > 2:
            return
        near = self.net.add("Clip", self.net.add("Abs", self.end), self.net.number(0), self.net.number(3))
        places = self.net.add("Cast", near, to=TensorProto.INT64)
        found = self.net.add("Gather", self.net.weight(4, 2), places)
        self.put(self.net.add("Mul", found, self.net.add("Unsqueeze", self.end, self.net.ints(-1))))

    def combine(self) -> None:
        shape = [size if self.choose(0, 1) else 1 for size in self.row][self.choose(0, len(self.row) - 1) :]
        operator = ("Add", "Sub", "Mul", "Div", "Max", "Where")[self.choose(0, 5)]
        other = self.net.weight(*shape)
        if operator == "Div":
            other = self.net.add("Exp", other)
        if operator == "Where":
            positive = self.net.add("Greater", self.end, self.net.number(0))
            self.put(self.net.add("Where", positive, self.end, other))
        else:
            self.put(self.net.add(operator, self.end, other))

    def activate(self) -> None:
        operator = ("Tanh", "Sigmoid", "Softmax", "Exp")[self.choose(0, 3)]
        bounded = self.net.add("Tanh", self.end) if operator == "Exp" else self.end
        if operator == "Softmax":
            self.put(self.net.add(operator, bounded, axis=self.signed(self.axis())))
        else:
            self.put(self.net.add(operator, bounded))


STEPS: list[Callable[[Chain], None]] = [
    Chain.turn, Chain.reshape, Chain.cut, Chain.pad, Chain.split, Chain.repeat, Chain.reduce, Chain.gather,
    Chain.embed, Chain.combine, Chain.activate,
]  # fmt: skip


@pytest.mark.timeout(120 + GRAPHS)
@given(
    steps=st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=6),
    row=st.sampled_from([(4,), (2, 3), (3, 4), (2, 3, 2)]),
    rows=st.integers(1, 9),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=GRAPHS, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_random_networks_of_shapes_have_the_same_gradients(
    steps: list[int], row: tuple[int, ...], rows: int, seed: int
) -> None:
    chain = Chain(seed, row)
    for step in steps:
        chain.grow(STEPS[step])
    with tempfile.TemporaryDirectory() as folder:
        assert_equal(*both_gradients(chain.net.model(chain.end), Path(folder), rows=rows, seed=seed))
