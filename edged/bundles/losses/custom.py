"""A loss of one's own, as an ONNX model of standard operators.

It has two inputs, what the network says `(batch, ...)` float32 and the label (`(batch, ...)` float32, or
`(batch,)` int64 for classes), and one output, the loss of every row `(batch,)` float32. Each row's loss
must depend on that row alone. The mean over the batch is taken here, so rows can be weighted.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto

from edged.bundles.graph.edit import node, shape_of, subgraphs
from edged.bundles.losses.builtin import copied
from edged.bundles.source.normalise import read_model, standard_opset
from edged.errors import BundleError
from edged.storage.models.bundles import CUSTOM, Tensor

_LABELS = {TensorProto.FLOAT: ("target", "float32"), TensorProto.INT64: ("labels", "int64")}


class CustomLoss:
    """The loss in a model or in the file `source`.

    Raises BundleError when it cannot be read, or has other inputs and outputs than it must have.
    """

    name = CUSTOM

    def __init__(self, source: onnx.ModelProto | Path) -> None:
        self._where = "custom loss" if isinstance(source, onnx.ModelProto) else str(source)
        model = standard_opset(read_model(source))
        self._graph = model.graph
        constants = {tensor.name for tensor in self._graph.initializer}
        self._inputs = [value for value in self._graph.input if value.name not in constants]
        self._check()

    def _check(self) -> None:
        if len(self._inputs) != 2 or len(self._graph.output) != 1:
            raise self._refusal("must have two inputs, prediction and label, and one output")
        prediction, label = (value.type.tensor_type for value in self._inputs)
        if prediction.elem_type != TensorProto.FLOAT or label.elem_type not in _LABELS:
            raise self._refusal("must take a float32 prediction and a float32 or int64 label")
        if label.elem_type == TensorProto.INT64 and len(label.shape.dim) != 1:
            raise self._refusal("must take classes as (batch,)")
        if len(shape_of(self._graph.output[0])) != 1:
            raise self._refusal("must give the loss of every row, (batch,)")
        if any(True for item in self._graph.node for _ in subgraphs(item)):
            raise self._refusal("must do without If, Loop and Scan")

    def _refusal(self, what: str) -> BundleError:
        return BundleError(f"the loss {what}", where=self._where, remedy="see docs/losses.md")

    def label(self, output: Tensor) -> Tensor:
        """The label for a model output."""
        name, dtype = _LABELS[self._inputs[1].type.tensor_type.elem_type]
        row = [size for size in shape_of(self._inputs[1])[1:] if isinstance(size, int)]
        if len(row) != len(shape_of(self._inputs[1])) - 1:
            raise self._refusal("must have a label of fixed sizes but for the batch")
        return Tensor(name, (output.shape[0], *row), dtype)

    def nodes(self, prediction: Tensor, label: str, output: str) -> list[onnx.NodeProto]:
        """Its nodes between these tensors; `output` is the mean over the rows."""
        read = {self._inputs[0].name: prediction.name, self._inputs[1].name: label}
        made, names = copied(self._graph.node, self._graph.initializer, read)
        return [*made, node("ReduceMean", [names[self._graph.output[0].name]], output, keepdims=0)]
