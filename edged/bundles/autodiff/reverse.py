"""The walk: a forward pass that keeps what gradients need, and the backward pass behind it.

Reverse-mode differentiation by source transformation (Griewank and Walther 2008, "Evaluating derivatives",
chapter 6): nodes are visited from the loss back, and every rule turns the adjoints of a node's outputs into
those of its inputs. A tensor with several readers gets the sum of what they return.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import TensorProto

from edged.bundles.autodiff import rules  # noqa: F401  it registers them
from edged.bundles.autodiff.tape import BACKWARD, FORWARD, STOPS, ZERO, Adjoint, Tape, broadcast
from edged.bundles.graph.edit import CONTRIB_DOMAIN, reads
from edged.bundles.graph.writer import untrainable
from edged.errors import BundleError

Refused = dict[str, BundleError]

# Why an operator with bodies or sequences has no gradient, and what to do.
_LAYER = "export the layer as LSTM, GRU or RNN, or freeze it and what is before it: docs/operators.md"
_CONTROL = {
    "If": ("its condition is computed", "export the branch that is to be trained alone"),
    **dict.fromkeys(("Loop", "Scan"), ("it repeats a body", _LAYER)),
}
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def active_tensors(
    nodes: Sequence[onnx.NodeProto], trainable: Iterable[str], ends: Iterable[str], kinds: Mapping[str, int]
) -> set[str]:
    """Tensors that depend on a trainable parameter and on which one of the `ends` depends, both smoothly."""
    reached = set(trainable)
    for node in nodes:
        if not reached.isdisjoint(differentiated(node)):
            reached.update(name for name in node.output if name and kinds.get(name, _FLOATS[0]) in _FLOATS)
    wanted = set(ends)
    for node in reversed(nodes):
        if any(name in wanted and kinds.get(name, _FLOATS[0]) in _FLOATS for name in node.output):
            wanted.update(differentiated(node))
    return reached & wanted


def differentiated(node: onnx.NodeProto) -> list[str]:
    """Tensors that a gradient of a node may go to: inputs, and what its inner graphs alone read."""
    if node.op_type in ZERO:
        return []
    stops = STOPS.get(node.op_type, ())
    inputs = [name for place, name in enumerate(node.input) if name and place not in stops]
    return [*inputs, *sorted(reads(node).difference(node.input))]


def write_forward(nodes: Iterable[onnx.NodeProto], tape: Tape, refused: Refused | None = None) -> None:
    """Write the forward pass, with what gradients need kept on the tape; `refused` as in `write_backward`."""
    for node in nodes:
        try:
            FORWARD.get(node.op_type, _copy)(node, tape)
        except BundleError as problem:
            if refused is None:
                raise
            refused[node.name] = problem


def _copy(node: onnx.NodeProto, tape: Tape) -> None:
    tape.copy(node)


def write_backward(
    nodes: Sequence[onnx.NodeProto],
    seeds: Mapping[str, Adjoint],
    tape: Tape,
    refused: Refused | None = None,
) -> dict[str, Adjoint]:
    """Write the backward pass; the adjoints of the tensors that no node computes, such as parameters.

    Parameters
    ----------
    nodes
        The nodes of the forward graph, in order.
    seeds
        Adjoints to begin with: of the loss, and of what else pulls on a tensor.
    tape
        Where the forward pass was written.
    refused
        For a trial: takes, by the name of its node, why no gradient comes through, instead of an error. What
        was written then is no graph that can run.

    Raises
    ------
    BundleError
        When an operator has no rule, or the rule does not cover its form, naming the node.
    """
    parts = {name: [seed] for name, seed in seeds.items()}
    for node in reversed(nodes):
        if tape.active.isdisjoint(node.output):
            continue
        gradients = [_total(parts.pop(name, []), tape) for name in node.output]
        if all(gradient is None for gradient in gradients):
            continue
        for name, gradient in zip(node.input, _derived(node, gradients, tape, refused), strict=False):
            if gradient is not None and name in tape.active:
                parts.setdefault(name, []).append(gradient)
    return {name: total for name, found in parts.items() if (total := _total(found, tape)) is not None}


def _derived(
    node: onnx.NodeProto, gradients: Sequence[Adjoint | None], tape: Tape, refused: Refused | None
) -> Sequence[Adjoint | None]:
    try:
        if refused is None or node.name not in refused:
            rule = None if node.domain == CONTRIB_DOMAIN else BACKWARD.get(node.op_type)
            if rule is None:
                raise _no_rule(node)
            return rule(node, gradients, tape)
    except BundleError as problem:
        if refused is None:
            raise
        refused[node.name] = problem
    # So that the walk of a trial goes on to the nodes before.
    return [tape.trial(name) if name else None for name in node.input]


def _no_rule(node: onnx.NodeProto) -> BundleError:
    if node.domain == CONTRIB_DOMAIN:
        remedy = "freeze what is before it, or give the model as it was before onnxruntime optimised it"
        return untrainable(node, "it is onnxruntime's own", remedy)
    if "Sequence" in node.op_type:
        return untrainable(node, "it has a sequence of tensors", _LAYER)
    return untrainable(node, *_CONTROL.get(node.op_type, ("it has no gradient",)))


def _total(parts: Sequence[Adjoint], tape: Tape) -> Adjoint | None:
    """The sum of adjoints of one tensor, two at a time: the runtime then reuses their memory."""
    if not parts:
        return None
    total = parts[0]
    for part in parts[1:]:
        dims = broadcast(total.dims, part.dims)
        total = Adjoint(tape.add("Add", [total.name, part.name]), dims)
    return total
