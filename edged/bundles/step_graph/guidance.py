"""What may pull a training step besides the labels: anchor weights, and the outputs of a teacher."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx

from edged.bundles.autodiff.tape import WEIGHTS
from edged.bundles.source.standardise import standard_target
from edged.engines.portable.description import Guidance
from edged.storage.models.bundles import CLASSIFYING

if TYPE_CHECKING:
    from edged.bundles.autodiff.tape import Tape
    from edged.bundles.graph.parameter_groups import Part
    from edged.bundles.step_graph.training_graph import TrainingGraph
    from edged.storage.models.bundles import Standardisation

# Raw outputs of the teacher, a row for every sample.
TEACHER = "step.teacher"
# Scalars: λ of the penalty; 1/T; what the term's loss and its gradient are multiplied with.
PULL, COLD, TERM, SLOPE = "step.pull", "step.cold", "step.term", "step.slope"
SCALARS = {"pull": PULL, "cold": COLD, "term": TERM, "slope": SLOPE}


def describe(loss: str) -> Guidance:
    """The inputs of the guided step with this loss."""
    return Guidance(TEACHER, SCALARS, soft=loss in CLASSIFYING)


def penalty(part: Part, gradient: str, to: Tape) -> tuple[str, str]:
    """½·λ·Σ F·(θ − θ*)² and the gradient with λ·F·(θ − θ*) added; F and θ* are inputs.

    Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks" (EWC), where F is the
    diagonal of the Fisher information; with F = 1 it is Li et al. 2018, "Explicit inductive bias" (L2-SP).
    """
    away = to.add("Sub", [part.tensor("value"), part.tensor("anchor")])
    pull = to.add("Mul", [to.add("Mul", [part.tensor("strength"), away]), PULL])
    loss = to.add("ReduceSum", [to.add("Mul", [pull, away])], keepdims=0)
    row = to.add("Reshape", [pull, to.sizes(*part.shape)])
    return to.add("Mul", [loss, to.number(0.5)]), to.add("Add", [gradient, row])


def distillation(source: TrainingGraph, to: Tape) -> tuple[str, str]:
    """The weighted distillation term and its gradient with respect to the network's output.

    Hinton et al. 2015, "Distilling the knowledge in a neural network": the cross-entropy between what the
    teacher and the network say at temperature T, times T². Where the output is a value rather than a
    logit, it is the square error to the teacher's.
    """
    teacher = TEACHER if source.target is None else _standard(source.target, to)
    if source.loss == "cross_entropy":
        return _soft_classes(source.output, teacher, to)
    row = source.row
    each, slope = (_soft_labels if source.loss == "bce_with_logits" else _squares)(source.output, teacher, to)
    axes = list(range(1, len(row) + 1))
    rows = to.add("ReduceMean", [each], axes=axes, keepdims=0)
    weights = WEIGHTS if len(row) == 1 else to.add("Reshape", [WEIGHTS, to.sizes(-1, *([1] * len(row)))])
    share = to.number(1 / math.prod(row))
    return _term(rows, to), _gradient(to.add("Mul", [slope, share]), weights, to)


def _standard(target: Standardisation, to: Tape) -> str:
    graph = onnx.GraphProto()
    result = standard_target(graph, TEACHER, target)
    names = {name: f"teacher.{name}" for node in graph.node for name in node.output}
    for node in graph.node:
        to.copy(_renamed(node, names))
    return names[result]


def _renamed(node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
    node.name = names[node.output[0]]
    for values in (node.input, node.output):
        for i, name in enumerate(values):
            values[i] = names.get(name, name)
    return node


def _soft_classes(output: str, teacher: str, to: Tape) -> tuple[str, str]:
    """−Σ q·log p over the classes; p − q."""
    cold = to.add("Mul", [output, COLD])
    wanted = to.add("Softmax", [to.add("Mul", [teacher, COLD])], axis=-1)
    said = to.add("LogSoftmax", [cold], axis=-1)
    surprise = to.add("Neg", [to.add("Mul", [wanted, said])])
    rows = to.add("ReduceSum", [surprise, to.sizes(1)], keepdims=0)
    excess = to.add("Sub", [to.add("Exp", [said]), wanted])
    return _term(rows, to), _gradient(excess, WEIGHTS, to)


def _soft_labels(output: str, teacher: str, to: Tape) -> tuple[str, str]:
    """log(1 + eᶻ) − z·q for every label; p − q."""
    cold = to.add("Mul", [output, COLD])
    wanted = to.add("Sigmoid", [to.add("Mul", [teacher, COLD])])
    each = to.add("Sub", [to.add("Softplus", [cold]), to.add("Mul", [cold, wanted])])
    return each, to.add("Sub", [to.add("Sigmoid", [cold]), wanted])


def _squares(output: str, teacher: str, to: Tape) -> tuple[str, str]:
    """(z − t)² for every value; 2(z − t)."""
    away = to.add("Sub", [output, teacher])
    return to.add("Mul", [away, away]), to.add("Add", [away, away])


def _term(rows: str, to: Tape) -> str:
    return to.add("Mul", [to.add("MatMul", [rows, WEIGHTS]), TERM])


def _gradient(slope: str, weights: str, to: Tape) -> str:
    return to.add("Mul", [to.add("Mul", [slope, weights]), SLOPE])
