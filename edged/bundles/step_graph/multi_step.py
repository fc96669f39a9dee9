"""Several training steps in one run: the step as the body of a Scan over the batches.

The state goes from iteration to iteration inside the graph; batches, weights of rows and the scalars of the
updates come stacked, losses and square sums go out stacked (ONNX operator specification, Scan).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from edged.bundles.graph.edit import shape_of

if TYPE_CHECKING:
    from edged.bundles.autodiff.tape import Tape
    from edged.bundles.graph.parameter_groups import ParameterGroup

PREFIX, STEPS = "many.", "steps"


def unpack(groups: Sequence[ParameterGroup], to: Tape) -> None:
    """Parameters out of the state tensors, under their own names.

    Between two iterations nothing can be read in place, so here they are split.
    """
    for group in groups:
        state = group.parts[0].tensor("value")
        flat = [f"{name}.flat" for name, _ in group.parameters]
        if group.joined:
            sizes = to.sizes(*group.sizes)
            to.copy(helper.make_node("Split", [state, sizes], flat, name=f"{group.name}.split", axis=-1))
        else:
            flat = [state]
        for (name, shape), part in zip(group.parameters, flat, strict=True):
            to.add("Reshape", [part, to.sizes(*shape)], name)


def scan(step: onnx.GraphProto, state: Mapping[str, str], frozen: Sequence[str]) -> onnx.GraphProto:
    """The graph of many steps, from the graph of one.

    `state` are its inputs that an iteration leaves to the next, and the outputs with their new values;
    `frozen` those that stay the same for all.
    """
    inputs = {str(value.name): value for value in step.input}
    outputs = {str(value.name): value for value in step.output}
    rows = [name for name in inputs if name not in state and name not in frozen]
    told = [name for name in outputs if name not in state.values()]
    body = helper.make_graph(
        list(step.node),
        "step",
        [inputs[name] for name in (*state, *rows)],
        [outputs[name] for name in (*state.values(), *told)],
        list(step.initializer),
    )
    node = helper.make_node(
        "Scan",
        [PREFIX + name for name in (*state, *rows)],
        [PREFIX + name for name in (*state.values(), *told)],
        name="steps",
        body=body,
        num_scan_inputs=len(rows),
    )
    takes = [*(_outer(inputs[name]) for name in state), *(_stacked(inputs[name]) for name in rows)]
    gives = [*(_outer(outputs[name]) for name in state.values()), *(_stacked(outputs[name]) for name in told)]
    return helper.make_graph([node], "steps", [*takes, *(inputs[name] for name in frozen)], gives)


def _outer(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    kind = value.type.tensor_type.elem_type
    return helper.make_tensor_value_info(PREFIX + value.name, kind, shape_of(value))


def _stacked(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    kind = value.type.tensor_type.elem_type
    return helper.make_tensor_value_info(PREFIX + value.name, kind, [STEPS, *shape_of(value)])
