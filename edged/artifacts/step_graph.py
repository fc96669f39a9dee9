"""The step graph: a whole training step in standard operators, for any onnxruntime.

Forward and backward pass come from onnxruntime's own gradient builder, lowered node by node. Put around
them: parameters out of the state tensors, a loss in which every row has a weight, the square sum of the
gradients, and the optimizer's update. New state comes out as new tensors, so the caller decides whether
it becomes the state: a step that is not finite changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto, helper

from edged.artifacts.graphs import all_names, shape_of, value_info
from edged.artifacts.losses import OUTPUT
from edged.artifacts.lowering import OPSET, Writer, lower
from edged.artifacts.lowering.writer import attributes_of
from edged.artifacts.templates import IR_VERSION
from edged.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from edged.storage.bundles import Tensor

# A tensor of at least this many elements is a group of its own: joining it with others would copy it
# twice a step, which costs more than the few nodes that joining saves.
ALONE = 16384
WEIGHTS, STEP_SIZE, SQUARES = "step.row_weights", "step.size", "step.squares"

_ACCUMULATOR = "InPlaceAccumulatorV2"
_BUFFER = "_grad.accumulation.buffer"


@dataclass(frozen=True)
class Group:
    """State tensors that are updated together: one large parameter, or many small ones joined.

    `parameters` are names and shapes, in the order in which they are joined.
    """

    name: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the state tensors: the parameter's own, or flat."""
        return self.parameters[0][1] if len(self.parameters) == 1 else (sum(self.sizes),)

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each parameter."""
        return [math.prod(shape) for _, shape in self.parameters]

    def tensor(self, kind: str) -> str:
        """Name of a state tensor of this group, or of its new value."""
        return f"{self.name}.{kind}"


@dataclass(frozen=True)
class Optimizer:
    """What the update does: `adamw` in the form of Hugging Face's, or `sgd` without momentum."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    epsilon: float = 0.0
    correct_bias: bool = True

    @property
    def kinds(self) -> tuple[str, ...]:
        """The state tensors of a group."""
        return ("value", "first", "second") if self.name == "adamw" else ("value",)

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Optimizer:
        """The optimizer that onnxruntime generated; BundleError when it is none that is covered."""
        for item in model.graph.node:
            given = attributes_of(item)
            if item.op_type == "SGDOptimizerV2":
                return cls("sgd")
            if item.op_type == "AdamWOptimizer" and given["adam_mode"] == 1 and given["weight_decay"] == 0:
                bias = bool(given["correct_bias"])
                return cls("adamw", given["alpha"], given["beta"], given["epsilon"], bias)
        raise BundleError("this optimizer is not covered by the portable engine", where="optimizer graph")


@dataclass(frozen=True)
class StepGraph:
    """The graphs of the portable engine and what has to be known to run them.

    `step` updates; `carry` does the same with gradients that earlier steps left, and gives them out;
    `evaluation` computes the loss alone.
    """

    step: onnx.ModelProto
    carry: onnx.ModelProto
    evaluation: onnx.ModelProto
    description: dict[str, Any]


def build_step_graph(
    training: onnx.ModelProto,
    evaluation: onnx.ModelProto,
    optimizer: onnx.ModelProto,
    *,
    data: Tensor,
    label: Tensor,
    frozen: Sequence[str],
) -> StepGraph:
    """The step graph for what onnxruntime's artifact generator made.

    Raises
    ------
    BundleError
        When an operator cannot be lowered, naming its node.
    """
    source = _Source(training, data, label, tuple(frozen))
    rule = Optimizer.of(optimizer)
    return StepGraph(
        step=_step_model(source, rule, carry=False),
        carry=_step_model(source, rule, carry=True),
        evaluation=_evaluation_model(source, evaluation),
        description=_describe(source, rule),
    )


class _Source:
    """The training graph, and what of it becomes what."""

    def __init__(self, model: onnx.ModelProto, data: Tensor, label: Tensor, frozen: tuple[str, ...]) -> None:
        self.graph = model.graph
        self.data, self.label = data, label
        inputs = {str(value.name): value for value in model.graph.input}
        # Names of trainable parameters and of their gradients.
        self.gradients = {
            str(item.input[0]).removesuffix(_BUFFER): str(item.input[1])
            for item in model.graph.node
            if item.op_type == _ACCUMULATOR
        }
        self.frozen = {name: _fixed(inputs[name]) for name in frozen if name in inputs}
        self.groups = _grouped({name: _fixed(inputs[name]) for name in self.gradients})
        self.shapes = _known_shapes(model)

    @property
    def sources(self) -> set[str]:
        return {self.data.name, self.label.name, *self.frozen, *self.gradients}


def _fixed(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(int(size) for size in shape_of(value))


def _grouped(shapes: dict[str, tuple[int, ...]]) -> list[Group]:
    alone = [(name, shape) for name, shape in shapes.items() if math.prod(shape) >= ALONE]
    joined = tuple((name, shape) for name, shape in shapes.items() if math.prod(shape) < ALONE)
    parts = [*([joined] if joined else []), *((item,) for item in alone)]
    return [Group(f"step.state{i}", part) for i, part in enumerate(parts)]


def _known_shapes(model: onnx.ModelProto) -> dict[str, tuple[int | None, ...]]:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = [*inferred.input, *inferred.output, *inferred.value_info]
    known = {
        str(value.name): tuple(size if isinstance(size, int) else None for size in shape_of(value))
        for value in values
        if value.type.tensor_type.HasField("shape")
    }
    return known | {str(tensor.name): tuple(tensor.dims) for tensor in inferred.initializer}


# ---- the training step ------------------------------------------------------------------------


def _step_model(source: _Source, optimizer: Optimizer, *, carry: bool) -> onnx.ModelProto:
    # The loss is always named the same and its own gradient is a constant 1.
    to = Writer(source.shapes, all_names(source.graph), row_weights=WEIGHTS, loss_gradient=f"{OUTPUT}_grad")
    _unpack(source.groups, to)
    _rewrite(source, to)
    wanted: dict[str, tuple[int, ...]] = {OUTPUT: (1,), SQUARES: ()}
    for group in source.groups:
        gradient = _joined_gradient(group, source, to)
        if carry:
            gradient = to.add("Add", [gradient, group.tensor("carry")], group.tensor("carried"))
            wanted[gradient] = group.shape
        wanted |= dict.fromkeys(_update(group, gradient, optimizer, to), group.shape)
        to.add("ReduceSumSquare", [gradient], f"{group.name}.squares", keepdims=0)
    squares = [f"{group.name}.squares" for group in source.groups]
    to.add("Sum" if len(squares) > 1 else "Identity", squares, SQUARES)
    kinds = (*optimizer.kinds, "carry") if carry else optimizer.kinds
    states = [
        helper.make_tensor_value_info(group.tensor(kind), TensorProto.FLOAT, group.shape)
        for group in source.groups
        for kind in kinds
    ]
    extra = [
        helper.make_tensor_value_info(WEIGHTS, TensorProto.FLOAT, [source.data.shape[0], 1]),
        helper.make_tensor_value_info(STEP_SIZE, TensorProto.FLOAT, []),
    ]
    return _model(to, source, [*extra, *states], wanted, source.graph.initializer)


def _unpack(groups: Iterable[Group], to: Writer) -> None:
    """Parameters out of the state tensors, under their own names."""
    for group in groups:
        state = group.tensor("value")
        if len(group.parameters) == 1:
            to.add("Identity", [state], group.parameters[0][0])
            continue
        flat = [name if len(shape) == 1 else f"{name}.flat" for name, shape in group.parameters]
        to.keep(helper.make_node("Split", [state, to.sizes(*group.sizes)], flat, name=f"{group.name}.split"))
        for (name, shape), part in zip(group.parameters, flat, strict=True):
            if part != name:
                to.add("Reshape", [part, to.sizes(*shape)], name)


def _rewrite(source: _Source, to: Writer) -> None:
    """The nodes of the training graph, with the loss weighted row by row."""
    each = _each_loss(source)
    for item in source.graph.node:
        if item.op_type == _ACCUMULATOR:
            continue
        if OUTPUT in item.output:
            _weighted_loss(item, to)
        elif each is not None and f"{each}_grad" in item.output:
            _row_gradient(each, source, to)
        else:
            lower(item, to)


def _each_loss(source: _Source) -> str | None:
    """The tensor of which the loss is the mean; None for a loss that is one operator."""
    for item in source.graph.node:
        if OUTPUT in item.output:
            return str(item.input[0]) if item.op_type == "ReduceMean" else None
    raise BundleError("the training graph has no loss", where=OUTPUT)


def _weighted_loss(item: onnx.NodeProto, to: Writer) -> None:
    """Σ wᵢ·lossᵢ, where lossᵢ is the mean over the outputs of row i and the weights add up to 1."""
    if item.op_type == "SoftmaxCrossEntropyLoss":
        rows = to.name("rows")
        outputs = [rows, *item.output[1:]]
        to.keep(helper.make_node(item.op_type, list(item.input), outputs, name=rows, reduction="none"))
    else:
        rank = len(to.shape(item.input[0], item))
        rows = to.add("ReduceMean", [item.input[0]], axes=list(range(1, rank)), keepdims=0)
    to.add("MatMul", [rows, WEIGHTS], OUTPUT)


def _row_gradient(each: str, source: _Source, to: Writer) -> None:
    """wᵢ/k for every one of the k outputs of row i; broadcasting repeats it where it is used."""
    row = source.label.row
    weights = WEIGHTS if len(row) < 2 else to.add("Reshape", [WEIGHTS, to.sizes(-1, *([1] * len(row)))])
    width = math.prod(row)
    operator, inputs = ("Identity", [weights]) if width == 1 else ("Mul", [weights, to.number(1 / width)])
    to.add(operator, inputs, f"{each}_grad")


def _joined_gradient(group: Group, source: _Source, to: Writer) -> str:
    names = [source.gradients[name] for name, _ in group.parameters]
    if len(names) == 1:
        return names[0]
    flat = [
        name if len(shape) == 1 else to.add("Reshape", [name, to.sizes(-1)])
        for name, (_, shape) in zip(names, group.parameters, strict=True)
    ]
    return to.add("Concat", flat, group.tensor("gradient"), axis=0)


def _update(group: Group, gradient: str, optimizer: Optimizer, to: Writer) -> list[str]:
    """Write the update of a group; the names of its new state tensors."""
    new = [group.tensor(f"new_{kind}") for kind in optimizer.kinds]
    if optimizer.name == "sgd":
        _sgd(group, gradient, new[0], to)
    else:
        _adamw(group, gradient, new, optimizer, to)
    return new


def _sgd(group: Group, gradient: str, new: str, to: Writer) -> None:
    """θ − a·g, as onnxruntime's SGDOptimizerV2 without momentum."""
    to.add("Sub", [group.tensor("value"), to.add("Mul", [gradient, STEP_SIZE])], new)


def _adamw(group: Group, gradient: str, new: list[str], optimizer: Optimizer, to: Writer) -> None:
    """AdamW as onnxruntime's AdamWOptimizer with adam_mode 1 (Hugging Face's form), without decay.

    Loshchilov and Hutter 2019, algorithm 2, with ε added to √v before the bias correction. The moments
    are kept as M = m/(1 − β₁) and V = v/(1 − β₂), which saves a pass over each:
    M' = β₁M + g, V' = β₂V + g², θ' = θ − a·M'/(√V' + ε/√(1 − β₂)), where the step size a holds the
    learning rate, the bias corrections and (1 − β₁)/√(1 − β₂).
    """
    value, first, second = (group.tensor(kind) for kind in optimizer.kinds)
    epsilon = optimizer.epsilon / math.sqrt(1 - optimizer.beta)
    to.add("Add", [to.add("Mul", [first, to.number(optimizer.alpha)]), gradient], new[1])
    square = to.add("Mul", [gradient, gradient])
    to.add("Add", [to.add("Mul", [second, to.number(optimizer.beta)]), square], new[2])
    root = to.add("Add", [to.add("Sqrt", [new[2]]), to.number(epsilon)])
    move = to.add("Mul", [to.add("Div", [new[1], root]), STEP_SIZE])
    to.add("Sub", [value, move], new[0])


# ---- evaluation -------------------------------------------------------------------------------


def _evaluation_model(source: _Source, evaluation: onnx.ModelProto) -> onnx.ModelProto:
    graph = evaluation.graph
    to = Writer(_known_shapes(evaluation), all_names(graph))
    _unpack(source.groups, to)
    for item in graph.node:
        lower(item, to)
    states = [
        helper.make_tensor_value_info(group.tensor("value"), TensorProto.FLOAT, group.shape)
        for group in source.groups
    ]
    return _model(to, source, states, {OUTPUT: ()}, graph.initializer)


# ---- putting it together ----------------------------------------------------------------------


def _model(
    to: Writer,
    source: _Source,
    inputs: list[onnx.ValueInfoProto],
    wanted: Mapping[str, tuple[int, ...]],
    initializers: Iterable[onnx.TensorProto],
) -> onnx.ModelProto:
    nodes = _needed(_without_identities(to.nodes, wanted), wanted)
    read = {name for item in nodes for name in item.input}
    frozen = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in source.frozen.items()
    ]
    tensors = [tensor for tensor in (*initializers, *to.constants) if tensor.name in read]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, wanted[name]) for name in wanted]
    takes = [value_info(source.data), value_info(source.label), *inputs, *frozen]
    graph = helper.make_graph(nodes, "step", takes, outputs, tensors)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="edged",
    )


def _without_identities(nodes: list[onnx.NodeProto], wanted: Iterable[str]) -> list[onnx.NodeProto]:
    kept, same = [], dict[str, str]()
    for item in nodes:
        if item.op_type == "Identity" and item.output[0] not in wanted:
            same[item.output[0]] = same.get(item.input[0], item.input[0])
            continue
        renamed = onnx.NodeProto()
        renamed.CopyFrom(item)
        for i, name in enumerate(item.input):
            renamed.input[i] = same.get(name, name)
        kept.append(renamed)
    return kept


def _needed(nodes: list[onnx.NodeProto], wanted: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes on which the wanted tensors depend, in their order."""
    read, kept = set(wanted), []
    for item in reversed(nodes):
        if not read.isdisjoint(item.output):
            read.update(item.input)
            kept.append(item)
    return kept[::-1]


def _describe(source: _Source, optimizer: Optimizer) -> dict[str, Any]:
    return {
        "loss": OUTPUT,
        "squares": SQUARES,
        "weights": WEIGHTS,
        "step_size": STEP_SIZE,
        "optimizer": {**vars(optimizer), "kinds": list(optimizer.kinds)},
        "groups": [
            {
                "name": group.name,
                "shape": list(group.shape),
                "parameters": [{"name": name, "shape": list(shape)} for name, shape in group.parameters],
            }
            for group in source.groups
        ],
        "frozen": [{"name": name, "shape": list(shape)} for name, shape in source.frozen.items()],
    }
