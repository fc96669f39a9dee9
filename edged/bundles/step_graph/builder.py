"""The step graph: a whole training step in standard operators, for any onnxruntime.

Forward and backward pass are written by `autodiff`. Put around them: a loss in which every row has a weight,
the square sum of the gradients, and the optimizer's update. New state comes out as new tensors, so the caller
decides whether it becomes the state: a step that is not finite changes nothing.

Small parameters lie one behind the other in a flat state tensor, large ones in their own. The forward pass
reads them one by one as inputs of their own, which the engine lets share the memory of the state: nothing
is split or copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from edged.bundles.autodiff.reverse import write_backward, write_forward
from edged.bundles.autodiff.rules.losses import ROW_MEAN
from edged.bundles.autodiff.tape import NOISE, WEIGHTS, Adjoint, Tape
from edged.bundles.graph.edit import needed_nodes, rename_inputs, value_info
from edged.bundles.graph.templates import IR_VERSION, OPSET
from edged.bundles.losses.named import OUTPUT
from edged.bundles.step_graph import optimizer_updates
from edged.bundles.step_graph.training_graph import LOSS, ParameterGroup, TrainingGraph
from edged.domain.training.optimizers import Optimizer
from edged.errors import BundleError

SQUARES = "step.squares"
PULL = "step.pull"  # λ of the penalty

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class StepGraph:
    """The graphs of the portable engine by name, and inputs and outputs that only some networks need.

    `step` updates; `carry` does the same with gradients that earlier steps left, and gives them out;
    `guided` is `carry` with a penalty for the distance to anchor weights; `evaluation` computes the loss
    alone.
    `noise_width` is how many random numbers a row takes. `remembered` are frozen parameters to which a step
    gives new values, and the outputs that hold them.
    """

    models: dict[str, onnx.ModelProto]
    noise_width: int
    remembered: dict[str, str]


class Differentiated:
    """A network with its loss, and the gradients of its parameters: what all forms of a step have in common.

    Attributes
    ----------
    tape
        Forward and backward pass as they were written.
    loss
        Name of the loss, scaled by the weights of the rows.
    refused
        Why no gradient comes through a node, by the name of the node. Only without any can steps be built.
    """

    def __init__(self, source: TrainingGraph) -> None:
        self.source = source
        self.tape = to = Tape(
            source.info,
            source.names,
            active=source.active,
            trainable=[name for group in source.groups for name, _ in group.parameters],
            loss=LOSS if source.is_mean else "",
        )
        self.refused: dict[str, BundleError] = {}
        write_forward(source.nodes, to, self.refused)
        if source.is_mean:
            self.loss, seed = LOSS, Adjoint(to.number(1), ())
        else:
            self.loss = to.add("Mul", [to.add("Reshape", [LOSS, to.sizes(1, 1)]), to.row_sum])
            seed = Adjoint(to.row_sum, ())
        self._adjoints = write_backward(source.nodes, {LOSS: seed}, to, self.refused)

    def steps(self, evaluation: onnx.ModelProto, optimizer: Optimizer) -> StepGraph:
        """Build the step graphs; `evaluation` is the network with its loss, without dropout."""
        gradients = {group: self._joined(group) for group in self.source.groups}
        forms = {"step": (False, False), "carry": (True, False), "guided": (True, True)}
        models = {
            name: StepWriter(self, gradients, optimizer, carry=carry, guided=guided).model()
            for name, (carry, guided) in forms.items()
        }
        models["evaluation"] = _evaluation_model(self.source, evaluation)
        return StepGraph(models, self.tape.noise_width, self.remembered)

    @property
    def remembered(self) -> dict[str, str]:
        """Frozen parameters that follow the data, running statistics, and the outputs with their new values.

        Raises BundleError when such a parameter is trained.
        """
        for name in self.tape.remembered:
            if name not in self.source.frozen:
                raise BundleError("only a frozen parameter can hold running statistics", where=name)
        return {name: f"step.new.{name}" for name in self.tape.remembered}

    def _joined(self, group: ParameterGroup) -> str:
        """The gradients of a group, one behind the other; they broadcast to the state's shape."""
        flat = [self._flat(name, shape) for name, shape in group.parameters]
        return self.tape.add("Concat", flat, f"{group.name}.joined", axis=0) if group.joined else flat[0]

    def _flat(self, parameter: str, shape: tuple[int, ...]) -> str:
        to, adjoint = self.tape, self._adjoints[parameter]
        gradient = adjoint.name
        if adjoint.dims != shape:
            gradient = to.add("Expand", [gradient, to.sizes(*shape)])
        return gradient if len(shape) == 1 else to.add("Reshape", [gradient, to.sizes(-1)])


class StepWriter:
    """One form of a training step, written behind the gradients.

    With `carry` gradients that earlier steps left come in, and the sum goes out. With `guided` anchor weights
    pull besides the labels.
    """

    def __init__(
        self,
        network: Differentiated,
        gradients: Mapping[ParameterGroup, str],
        optimizer: Optimizer,
        *,
        carry: bool,
        guided: bool,
    ) -> None:
        self.source, self.optimizer, self.carry, self.guided = network.source, optimizer, carry, guided
        self.to = network.tape.fork()
        self.outputs: Shapes = {OUTPUT: (1, 1), SQUARES: ()}
        self._losses = [network.loss]
        self._update({group: self._complete(group, gradient) for group, gradient in gradients.items()})
        for name, output in network.remembered.items():
            self.to.add("Identity", [self.to.remembered[name]], output)
            self.outputs[output] = self.source.frozen[name]
        self.to.add("Sum" if len(self._losses) > 1 else "Identity", self._losses, OUTPUT)

    def model(self) -> onnx.ModelProto:
        """Return the finished step graph."""
        batch = self.source.data.shape[0]
        inputs = [_float(WEIGHTS, [batch, 1])]
        if self.to.noise_width:
            inputs.append(_float(NOISE, [batch, self.to.noise_width]))
        inputs += [_float(name, [1]) for name in optimizer_updates.scalars(self.optimizer).values()]
        kinds = (*self.optimizer.kinds, "carry") if self.carry else self.optimizer.kinds
        if self.guided:
            inputs.append(_float(PULL, []))
            kinds = (*kinds, "anchor", "strength")
        inputs += self._states(kinds)
        inputs += parameters(self.source.groups)
        return finish(self.to, self.source, inputs, self.outputs, self.source.constants)

    def _complete(self, group: ParameterGroup, gradient: str) -> str:
        """Add to the gradient of a group what a penalty and earlier steps give."""
        if self.guided:
            penalty, gradient = _penalty(group, gradient, self.to)
            self._losses.append(penalty)
        if self.carry:
            gradient = self.to.add("Add", [gradient, group.tensor("carry")], group.tensor("carried"))
            self.outputs[gradient] = group.shape
        return gradient

    def _update(self, gradients: dict[ParameterGroup, str]) -> None:
        to = self.to
        squares = [to.add("ReduceSumSquare", [gradient], keepdims=0) for gradient in gradients.values()]
        to.add("Sum" if len(squares) > 1 else "Identity", squares, SQUARES)
        if self.optimizer.clip_norm:
            clipped = optimizer_updates.clipped(list(gradients.values()), SQUARES, to)
            gradients = dict(zip(gradients, clipped, strict=True))
        for group, gradient in gradients.items():
            optimizer_updates.update(group, gradient, self.optimizer, to)
            for kind in self.optimizer.kinds:
                self.outputs[group.tensor(f"new_{kind}")] = optimizer_updates.shape(
                    group, kind, self.optimizer
                )

    def _states(self, kinds: Iterable[str]) -> list[onnx.ValueInfoProto]:
        groups, shape = self.source.groups, optimizer_updates.shape
        return [_float(group.tensor(k), shape(group, k, self.optimizer)) for group in groups for k in kinds]


def _penalty(group: ParameterGroup, gradient: str, to: Tape) -> tuple[str, str]:
    """Return ½·λ·Σ s·(θ − θ*)² and the gradient with λ·s·(θ − θ*) added.

    Li et al. 2018, "Explicit inductive bias" (L2-SP). θ* and s are inputs; s is 0 for free weights.
    """
    away = to.add("Sub", [group.tensor("value"), group.tensor("anchor")])
    pull = to.add("Mul", [to.add("Mul", [group.tensor("strength"), away]), PULL])
    loss = to.add("ReduceSum", [to.add("Mul", [pull, away])], keepdims=0)
    row = to.add("Reshape", [pull, to.sizes(*group.shape)])
    return to.add("Mul", [loss, to.number(0.5)]), to.add("Add", [gradient, row])


def _evaluation_model(source: TrainingGraph, evaluation: onnx.ModelProto) -> onnx.ModelProto:
    """The loss alone, a mean over the rows, in standard operators."""
    to = Tape(source.info, source.names, active=set())
    losses = (ROW_MEAN, "SoftmaxCrossEntropyLoss")
    for node in source.computed(evaluation.graph.node):
        if node.op_type in losses:
            to.copy(node)
        else:
            write_forward([node], to)
    return finish(to, source, parameters(source.groups), {OUTPUT: ()}, source.constants)


# ---- putting it together ----------------------------------------------------------------------


def _float(name: str, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def parameters(groups: Iterable[ParameterGroup]) -> list[onnx.ValueInfoProto]:
    """Inputs for the parameters one by one, which lie in the memory of the state tensors."""
    return [_float(name, shape) for group in groups for name, shape in group.parameters]


def finish(
    to: Tape,
    source: TrainingGraph,
    inputs: Sequence[onnx.ValueInfoProto],
    wanted: Mapping[str, tuple[int, ...]],
    initializers: Iterable[onnx.TensorProto],
) -> onnx.ModelProto:
    """A model of what was written, as far as the wanted outputs depend on it."""
    needed, read = needed_nodes(to.nodes, wanted)
    nodes, names = _without_identities(needed, wanted)
    frozen = [_float(name, shape) for name, shape in source.frozen.items()]
    tensors = [tensor for tensor in (*initializers, *to.constants) if tensor.name in read]
    outputs = [_float(name, shape) for name, shape in wanted.items()]
    all_inputs = [value_info(source.data), value_info(source.label), *inputs, *frozen]
    graph = helper.make_graph(nodes, "step", all_inputs, outputs, tensors)  # with copies of the nodes
    for item in graph.node:
        rename_inputs(item, names)
        item.output[:] = [names.get(name, name) for name in item.output]
    return as_model(graph)


def as_model(graph: onnx.GraphProto) -> onnx.ModelProto:
    """The graph as a model of the opset and version that all runtimes covered can read."""
    foreign = sorted({node.domain for node in graph.node} - {""})
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET), *(helper.make_opsetid(name, 1) for name in foreign)],
        ir_version=IR_VERSION,
        producer_name="edged",
    )


def _without_identities(
    nodes: Sequence[onnx.NodeProto], wanted: Collection[str]
) -> tuple[list[onnx.NodeProto], dict[str, str]]:
    """Return the nodes without those that only give a tensor a second name, and the new names of tensors.

    Each costs a step its share of time. What only an Identity gives a wanted name has that name itself.
    """
    free = {name for item in nodes for name in item.output}.difference(wanted)
    kept, new = [], dict[str, str]()
    for item in nodes:
        if item.op_type != "Identity":
            kept.append(item)
            continue
        (name,), read = item.output, new.get(item.input[0], item.input[0])
        if name not in wanted:
            new[name] = read
        elif read in free:
            free.remove(read)
            new = {old: name if now == read else now for old, now in new.items()} | {read: name}
        else:
            kept.append(item)
    return kept, new
