"""What cannot be trained, or would be trained wrongly, found before anything is built.

For the native engine every operator that a gradient must come through is looked at besides: upstream's
builder has none for some, dies of others, or gets them wrong without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from edged.bundles.autodiff.reverse import active_tensors, differentiated
from edged.bundles.autodiff.rules.recurrent import STATES, more_than_plain
from edged.bundles.autodiff.shapes import constants, kinds_of
from edged.bundles.autodiff.tape import BATCH, Dims
from edged.bundles.graph.edit import consumed
from edged.bundles.graph.writer import attributes_of
from edged.bundles.source.trainable import layers
from edged.domain.bundle_contents import Tensor
from edged.domain.training.message import Message
from edged.domain.training.optimizers import Optimizer
from edged.errors import BundleError

_PORTABLE = "build with --engine portable"
_EXPORT = f"{_PORTABLE}, or export the model in evaluation mode, without dropout"
_WHOLE = f"train both weights, or freeze the layer with all before it, or {_PORTABLE}"
# What onnxruntime-training 1.19.2 derives rightly, in any form; a test asks its builder for every entry.
DERIVED = frozenset({
    "Abs", "Add", "Cast", "Clip", "Concat", "Conv", "Cos", "Div", "Erf", "Exp", "Expand", "Flatten", "GRU",
    "Gather", "GatherElements", "GatherND", "Gemm", "GlobalAveragePool", "Identity", "LSTM", "LeakyRelu",
    "Log", "LogSoftmax", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "Pad", "Pow", "Reciprocal",
    "ReduceMean", "ReduceSum", "Relu", "Reshape", "ScatterElements", "ScatterND", "Sigmoid", "Sin", "Slice",
    "Softmax", "SoftmaxCrossEntropyLoss", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "TopK",
    "Transpose", "Trilu", "Unsqueeze",
})  # fmt: skip
# What it builds a training graph with that ends the process, does not run, or learns something else.
_UNSAFE = {
    "AveragePool": "has a gradient that ends the process when the batch is dynamic",
    "BatchNormalization": "would be trained with the statistics of each batch, its running ones left behind",
    "ConvTranspose": "has a gradient that is not implemented",
    "Resize": "has a gradient that is not implemented",
}


@dataclass(frozen=True)
class Obstacle(Message):
    """One thing that stands in the way of training, and what to do.

    Attributes
    ----------
    node, operator
        Where, both empty for what is no node.
    what
        What is wrong.
    remedy
        What to do: freeze it, replace it, build for the other engine.
    """

    node: str
    operator: str
    what: str
    remedy: str

    @classmethod
    def of(cls, problem: BundleError) -> Obstacle:
        """Return what stopped a build as a finding."""
        node = problem.where.removeprefix("node ") if problem.where.startswith("node ") else ""
        what = problem.what if node or not problem.where else f"{problem.where}: {problem.what}"
        return cls(node, "", what, problem.remedy)

    def error(self) -> BundleError:
        """The finding as the error of a build."""
        what = f"operator {self.operator} {self.what}" if self.operator else self.what
        return BundleError(what, where=f"node {self.node}" if self.node else "", remedy=self.remedy)


def obstacles(
    model: onnx.ModelProto, refused: Mapping[str, BundleError], trainable: Sequence[str], engine: str
) -> list[Obstacle]:
    """Return what keeps an engine from training these parameters of a model, by node.

    `refused` is why no gradient comes through a node, by its name, as differentiation found.
    """
    found = _native_obstacles(model, trainable) if engine == "native" else {}
    for node in model.graph.node:
        if problem := refused.get(node.name):
            what = problem.what.removeprefix(f"operator {node.op_type} ")
            without = what.endswith("it has no gradient")
            remedy = _way_round(model, node, trainable) if without else problem.remedy
            found[node.name] = _at(node, what, remedy)
    return [found[node.name] for node in model.graph.node if node.name in found]


def _native_obstacles(model: onnx.ModelProto, trainable: Sequence[str]) -> dict[str, Obstacle]:
    """The nodes that the native engine derives wrongly, or not at all, by name."""
    found = {finding.node: finding for finding in unsafe(model, trainable)}
    for node in _way(model, trainable):
        if not _is_derived(node, model.graph) and node.name not in found:
            found[node.name] = _at(node, "has no gradient, or a wrong one, in the native engine", _PORTABLE)
    return found


def refuse_other_rows(dims: Mapping[str, Dims], outputs: Iterable[Tensor]) -> None:
    """Raise BundleError when an output has another number of rows than the batch."""
    for output in outputs:
        if (rows := dims.get(output.name, ())[:1]) not in ((), (BATCH,)):
            raise BundleError(f"the output has {rows[0]} rows", where=output.name,
                              remedy="export the model with as many as the input has")  # fmt: skip


def _way(model: onnx.ModelProto, trainable: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes through which a gradient must come from the outputs to the trainable parameters."""
    nodes = list(model.graph.node)
    ends = [value.name for value in model.graph.output]
    active = active_tensors(nodes, trainable, ends, kinds_of(model))
    return [node for node in nodes if not active.isdisjoint(node.output)]


def lacking(optimizer: Optimizer, engine: str) -> list[Obstacle]:
    """What an engine has no form of in this optimizer; the portable one has all."""
    lack = optimizer.native_lack
    if engine == "portable" or lack is None:
        return []
    return [Obstacle("", "", f"optimizer: the native engine has no {lack}", _PORTABLE)]


def refusal(found: Sequence[Obstacle]) -> BundleError:
    """The error of a build that these findings stop."""
    error = found[0].error()
    if len(found) == 1:
        return error
    more = f"and {len(found) - 1} more: see `edged artifacts check`"
    return BundleError(error.what, where=error.where, remedy=f"{error.remedy}; {more}")


def _way_round(model: onnx.ModelProto, node: onnx.NodeProto, trainable: Sequence[str]) -> str:
    """What can be done about a node without a gradient: train what is behind it, or replace it."""
    reached = set(differentiated(node))
    for other in reversed(model.graph.node):
        if not reached.isdisjoint(other.output):
            reached.update(differentiated(other))
    stopped = reached.intersection(trainable)
    found = layers(model.graph)
    behind = next((n for n, layer in enumerate(reversed(found)) if stopped.intersection(layer)), 0)
    replace = "express it by other operators"
    if behind and set(trainable) - stopped:
        return f"freeze what is before it: --train last:{behind}; or {replace}"
    return f"freeze what is before it, or {replace}"


def _is_derived(node: onnx.NodeProto, graph: onnx.GraphProto) -> bool:
    """Whether the native engine's builder derives a node rightly in this form."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Split":  # it joins the gradients of the parts that are read alone
        read = consumed(graph) | {value.name for value in graph.output}
        return all(name in read for name in node.output)
    if node.op_type == "Slice" and len(node.input) > 4:
        steps = constants(graph).get(node.input[4])
        return steps is not None and bool((steps > 0).all())
    given = attributes_of(node)
    if node.op_type == "LeakyRelu":  # it takes the sign of the input from that of the output
        return bool(given.get("alpha", 0.01) >= 0)
    if node.op_type in ("Conv", "MaxPool"):
        return not given.get("auto_pad", "NOTSET").startswith("SAME") and not _grouped(node, graph)
    return node.op_type in DERIVED


def _grouped(node: onnx.NodeProto, graph: onnx.GraphProto) -> bool:
    """Tell whether a convolution has groups of several input channels each.

    ConvGrad (1.19.2) leaves the gradients of some groups zero then, depending on sizes, rows and values.
    """
    if attributes_of(node).get("group", 1) == 1:  # so is any pooling's
        return False
    filters = next((tensor for tensor in graph.initializer if tensor.name == node.input[1]), None)
    return filters is None or filters.dims[1] > 1


def unsafe(model: onnx.ModelProto, trainable: Sequence[str]) -> list[Obstacle]:
    """What the native engine must not train although its builder makes a graph of it.

    Operators between a trainable parameter and the output are looked at, dropout and recurrent layers
    wherever they are.
    """
    way = _way(model, trainable)
    names, found = {node.name for node in way}, list[Obstacle]()
    reached = set(trainable).union(*(node.output for node in way))
    for node in model.graph.node:
        if node.op_type in STATES and (reason := more_than_plain(node)):
            found.append(_at(node, f"does not run in training: {reason}", _PORTABLE))
        elif node.op_type == "Dropout":
            found.append(_at(node, "draws numbers that a resumed run would not draw again", _EXPORT))
        elif node.name in names and node.op_type in _UNSAFE:
            found.append(_at(node, _UNSAFE[node.op_type], _PORTABLE))
        elif node.name in names and (fixed := _fixed_weights(node, reached)):
            found.append(_at(node, f"has a gradient that ends the process where {fixed}", _WHOLE))
    return found


def _fixed_weights(node: onnx.NodeProto, reached: Collection[str]) -> str:
    """Which weights, W and R, no gradient goes to; nothing for all but recurrent layers.

    The kernels of LSTMGrad and GRUGrad (1.19.2) write both gradients, wanted or not. Those of the input, the
    bias and the initial states they leave out.
    """
    if node.op_type not in ("GRU", "LSTM"):
        return ""
    weights = zip(("W", "R"), node.input[1:3], strict=True)
    fixed = [f"{place} ({name})" for place, name in weights if name not in reached]
    return f"{' and '.join(fixed)} {'are' if len(fixed) > 1 else 'is'} not trained" if fixed else ""


def _at(node: onnx.NodeProto, what: str, remedy: str) -> Obstacle:
    return Obstacle(str(node.name), str(node.op_type), what, remedy)
