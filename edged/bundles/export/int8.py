"""A network whose layers multiply 8-bit integers: dynamic quantisation in standard operators.

Weights are integers with a scale for each output; the inputs of a layer are made integers when they come, by
their own range in the batch (DynamicQuantizeLinear). Sums are exact 32-bit integers. What comes between the
layers stays float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.edit import consumed, reads
from edged.bundles.graph.writer import NodeWriter
from edged.errors import BundleError

# Convolutions of onnxruntime's CPU take unsigned weights alone. In products x86 without VNNI adds pairs of
# unsigned times signed integers in 16 bits, which overflow: the result was off by a quarter of the largest.
UNSIGNED = 128
# Tensors that are added: no exporter gives such names.
_ADDED = "int8/{}/{}"
LARGEST = 127
# A smaller step could not be divided by.
TINY = np.finfo(np.float32).tiny


def whole_name(name: str) -> str:
    """What the integers of a parameter are called in the quantised graph."""
    return _added(name, "whole")


def scale_name(name: str) -> str:
    """Return the name of the tensor that holds the scales of a layer."""
    return _added(name, "scale")


def _added(name: str, what: str) -> str:
    return _ADDED.format(name, what)


@dataclass(frozen=True)
class QuantisedWeights:
    """How the weights of a layer lie in a quantised graph; the fields are those of `Slot`."""

    axis: int
    transposed: bool
    zero: int = UNSIGNED


class Quantiser:
    """Rewrites one graph; `layers` are the weights that it has quantised, by parameter."""

    def __init__(self, model: onnx.ModelProto, names: Iterable[str]) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self._graph = self.model.graph
        wanted = set(names)
        self._weights = {
            str(tensor.name): numpy_helper.to_array(tensor)
            for tensor in self._graph.initializer
            if tensor.name in wanted and tensor.data_type == TensorProto.FLOAT
        }
        self._to = NodeWriter()
        self._inputs: dict[str, list[str]] = {}
        self.layers: dict[str, QuantisedWeights] = {}

    def run(self) -> onnx.ModelProto:
        """The quantised model; BundleError where it has no layer of a kind that can be."""
        for each in self._graph.node:
            rule = _RULES.get(each.op_type)
            if rule is None or not rule(self, each):
                self._to.copy(each)
        if not self.layers:
            raise BundleError(
                f"has no layer that could be quantised: {', '.join(_RULES)} with weights of their own are",
                where=str(self._graph.name),
                remedy="leave out int8",
            )
        del self._graph.node[:]
        self._graph.node.extend(self._to.nodes)
        self._drop_unread()
        return self.model

    def _drop_unread(self) -> None:
        read = consumed(self._graph)
        kept = [tensor for tensor in self._graph.initializer if tensor.name in read]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)

    # ---- layers ----------------------------------------------------------------------------

    def gemm(self, each: onnx.NodeProto) -> bool:
        """A fully connected layer as PyTorch exports it."""
        given = {item.name: helper.get_attribute_value(item) for item in each.attribute}
        plain = not given.get("transA") and given.get("alpha", 1.0) == 1.0 and given.get("beta", 1.0) == 1.0
        if not plain or each.input[1] not in self._weights:
            return False
        turned = bool(given.get("transB"))
        bias = each.input[2] if len(each.input) > 2 else ""
        self._matrix(each, bias, axis=0 if turned else 1, transposed=turned)
        return True

    def matmul(self, each: onnx.NodeProto) -> bool:
        """A product with a matrix of weights."""
        weight = self._weights.get(each.input[1])
        if weight is None or weight.ndim != 2:
            return False
        self._matrix(each, "", axis=1, transposed=False)
        return True

    def conv(self, each: onnx.NodeProto) -> bool:
        """A convolution with a scale for each filter."""
        if each.input[1] not in self._weights:
            return False
        name, filters = str(each.input[1]), self._weights[each.input[1]]
        axes = [1] * (filters.ndim - 2)
        weight, scale = self._weight(name, axis=0, scale_shape=(len(filters), *axes))
        zero = self._constant(_added("weights", "zero"), np.array(UNSIGNED, np.uint8))
        values, step, offset = self._input(str(each.input[0]))
        out = str(each.output[0])
        self._add("ConvInteger", [values, weight, offset, zero], _added(out, "int32"))
        self._to.nodes[-1].attribute.extend(each.attribute)
        if len(each.input) > 2 and each.input[2]:
            shape = self._constant(_added(name, "bias_shape"), np.array([1, -1, *axes], np.int64))
            self._scaled(out, step, scale, _added(out, "scaled"))
            self._add("Reshape", [str(each.input[2]), shape], _added(out, "bias"))
            self._add("Add", [_added(out, "scaled"), _added(out, "bias")], out)
        else:
            self._scaled(out, step, scale, out)
        return True

    def _matrix(self, each: onnx.NodeProto, bias: str, *, axis: int, transposed: bool) -> None:
        weight, scale = self._weight(str(each.input[1]), axis=axis, transposed=transposed)
        zero = self._constant(_added("weights", "zero"), np.array(UNSIGNED, np.uint8))
        values, step, offset = self._input(str(each.input[0]))
        out = str(each.output[0])
        self._add("MatMulInteger", [values, weight, offset, zero], _added(out, "int32"))
        self._scaled(out, step, scale, _added(out, "scaled") if bias else out)
        if bias:
            self._add("Add", [_added(out, "scaled"), bias], out)

    def _scaled(self, out: str, step: str, scale: str, result: str) -> None:
        self._to.add("Cast", [_added(out, "int32")], _added(out, "float"), to=TensorProto.FLOAT)
        self._add("Mul", [step, scale], _added(out, "step"))
        self._add("Mul", [_added(out, "float"), _added(out, "step")], result)

    def _add(self, operator: str, inputs: list[str], output: str) -> None:
        self._to.add(operator, inputs, output)

    # ---- tensors ---------------------------------------------------------------------------

    def _input(self, name: str) -> list[str]:
        """Names of a tensor's integers, their step and their zero; made once for all that read it."""
        if name not in self._inputs:
            outputs = [_added(name, "uint8"), _added(name, "uint8_step"), _added(name, "uint8_zero")]
            self._to.operator("DynamicQuantizeLinear", [name], outputs)
            self._inputs[name] = outputs
        return self._inputs[name]

    def _weight(
        self,
        name: str,
        *,
        axis: int,
        transposed: bool = False,
        scale_shape: tuple[int, ...] = (-1,),
    ) -> tuple[str, str]:
        """Names of the integers of a parameter and of their scales."""
        whole, scale = quantise(self._weights[name], axis)
        laid = whole.T if transposed else whole
        self._constant(whole_name(name), (laid.astype(np.int16) + UNSIGNED).astype(np.uint8))
        self._constant(scale_name(name), scale.reshape(scale_shape))
        layer = QuantisedWeights(axis, transposed)
        if self.layers.setdefault(name, layer) != layer:
            raise BundleError(
                "its weights are used in two different ways", where=name, remedy="leave out int8"
            )
        return whole_name(name), scale_name(name)

    def _constant(self, name: str, value: np.ndarray[Any, np.dtype[Any]]) -> str:
        if all(tensor.name != name for tensor in self._graph.initializer):
            self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name


_RULES: dict[str, Callable[[Quantiser, onnx.NodeProto], bool]] = {
    "Gemm": Quantiser.gemm,
    "MatMul": Quantiser.matmul,
    "Conv": Quantiser.conv,
}


def left_in_float32(model: onnx.ModelProto, names: Iterable[str]) -> list[str]:
    """Nodes of a quantised model that still read float32 matrices of these names, with their kind."""
    weights = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) > 1} & set(names)
    return [f"{each.name} ({each.op_type})" for each in model.graph.node if weights & reads(each)]


def quantise(values: NDArray[np.float32], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers of the same shape as `values`, and the scale `(k,)` of each slice along `axis`.

    >>> quantise(np.array([[1.0, -2.0], [0.0, 0.0]], np.float32), axis=0)[0].tolist()
    [[64, -127], [0, 0]]
    """
    others = tuple(i for i in range(values.ndim) if i != axis)
    largest = np.abs(values).max(axis=others, keepdims=True)
    scale = np.maximum(largest / np.float32(LARGEST), TINY)
    whole = np.clip(np.rint(values / scale), -LARGEST, LARGEST)
    return whole.astype(np.int8), scale.reshape(-1)
