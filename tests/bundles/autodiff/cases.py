"""Small graphs whose gradients are judged, written in ONNX's text form."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.edit import subgraphs

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH = "b"
OPSET = 17


@dataclass(frozen=True)
class Drawn:
    """Random numbers of this shape: normal, uniform between `low` and `high`, or one of so many classes."""

    dims: tuple[int | str, ...]
    low: float | None = None
    high: float = 1.0
    classes: int = 0

    def draw(self, rows: int, rng: np.random.Generator) -> NDArray[Any]:
        """The numbers, with so many rows for the batch."""
        shape = [rows if size == BATCH else int(size) for size in self.dims]
        if self.classes:
            return np.asarray(rng.integers(0, self.classes, shape), np.int64)
        if self.low is None:
            return np.asarray(rng.standard_normal(shape), np.float32)
        return np.asarray(rng.uniform(self.low, self.high, shape), np.float32)


def of(*dims: int | str) -> Drawn:
    """Normally distributed numbers; a size `b` is the batch."""
    return Drawn(dims)


def within(low: float, high: float, *dims: int | str) -> Drawn:
    """Uniform numbers between two bounds."""
    return Drawn(dims, low, high)


def labels(classes: int, *dims: int | str) -> Drawn:
    """Whole numbers from 0 to less than `classes`."""
    return Drawn(dims, classes=classes)


def number(value: Any) -> NDArray[np.float32]:
    """Float32 numbers: a scalar, or an array of this shape."""
    return np.array(value, np.float32)


def ints(*values: int) -> NDArray[np.int64]:
    """An int64 vector: axes, shapes and the like."""
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """A graph, what goes into it, and what its gradients are taken of.

    Attributes
    ----------
    body
        Nodes in ONNX's text form; the output is `y`.
    tensors
        For every name a random tensor, or its value. What has the batch among its sizes is an input of the
        graph, all else an initialiser.
    fixed
        Names of float tensors that gradients are not taken of.
    rows
        Sizes of the batch to judge.
    ends
        Tensors that gradients come from.
    expected
        Gradients for a seed of ones where differences do not tell them: on an edge, several are right.
    opset
        Version of the standard operators.
    tolerance
        By how much gradients may be further apart than usual.
    reference
        The same function in other operators, where the body means another one outside of training.
    loss
        The end that is the loss of a step: the sum of the rows' losses by their `weights`, not their mean.
    """

    body: str
    tensors: Mapping[str, Any]
    fixed: tuple[str, ...] = ()
    rows: tuple[int, ...] = (5, 1)
    ends: tuple[str, ...] = ("y",)
    expected: Mapping[str, Any] | None = field(default=None, hash=False)
    opset: int = OPSET
    tolerance: float = 1.0
    reference: str = ""
    loss: str = ""

    def __str__(self) -> str:
        shapes = [
            "x".join(map(str, value.dims if isinstance(value, Drawn) else value.shape))
            for value in self.tensors.values()
        ]
        return f"{' '.join(self.body.split())}[{','.join(shapes)}]"

    @property
    def inputs(self) -> dict[str, tuple[int | str, ...]]:
        """Names and sizes of what has the batch in its shape."""
        return {
            name: value.dims
            for name, value in self.tensors.items()
            if isinstance(value, Drawn) and BATCH in value.dims
        }

    def values(self, rows: int) -> dict[str, NDArray[Any]]:
        """The value of every tensor; the same ones every time."""
        rng = np.random.default_rng(zlib.crc32(f"{self} {rows}".encode()))
        return {
            name: value.draw(rows, rng) if isinstance(value, Drawn) else value
            for name, value in self.tensors.items()
        }

    @property
    def wanted(self) -> list[str]:
        """Names of the tensors that gradients are taken of."""
        return [
            name
            for name, value in self.values(1).items()
            if value.dtype == np.float32 and name not in self.fixed
        ]

    @property
    def frozen(self) -> list[str]:
        """Names of parameters that are not trained: random tensors that are fixed."""
        return [
            name for name in self.fixed if isinstance(self.tensors[name], Drawn) and name not in self.inputs
        ]

    def model(self, rows: int = 2) -> onnx.ModelProto:
        """The graph as a model; initialisers have their values."""
        return self._as_model(self.body, rows)

    def judged_model(self, rows: int) -> onnx.ModelProto:
        """The graph that the judges take, which is the case's own unless it has a reference."""
        return self._as_model(self.reference or self.body, rows)

    def _as_model(self, body: str, rows: int) -> onnx.ModelProto:
        graph = onnx.parser.parse_graph(f"g (float[1] unused) => (float[1] y) {{ {body} }}")
        del graph.input[:], graph.output[:]
        kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
        values = self.values(rows)
        graph.input.extend(
            helper.make_tensor_value_info(name, kinds[values[name].dtype], dims)
            for name, dims in self.inputs.items()
        )
        graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.ends
        )
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in values.items()
            if name not in self.inputs
        )
        for number, node in enumerate(graph.node):
            node.name = node.name or f"{node.op_type}.{number}"
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    @property
    def operators(self) -> set[str]:
        """Operators of the graph, those of inner graphs included."""
        return {node.op_type for node in _nodes(self.model().graph)}


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from _nodes(body)
