"""Choices that are made before training: an If with a constant condition is replaced by its branch."""

from __future__ import annotations

import onnx

from edged.bundles.autodiff.shapes import fixed_values
from edged.bundles.graph.edit import AddNote, all_names, rename_inputs, shortened
from edged.bundles.graph.writer import NodeWriter, attributes_of
from edged.bundles.source.inputs import every_node
from edged.errors import BundleError


def fold_choices(model: onnx.ModelProto, add_note: AddNote) -> None:
    """Replace every If with a constant condition by its branch, in place; the others stay as they are.

    A condition is constant when it follows from constants and from sizes that do not vary with the batch.
    """
    chosen: list[str] = []
    while any(node.op_type == "If" for node in model.graph.node):
        try:
            known = fixed_values(model, [node.input[0] for node in model.graph.node if node.op_type == "If"])
        except BundleError:  # it cannot be run here, which whatever runs it next says with its reason
            break
        if not known:
            break
        folder = _Folder(model.graph)
        for node in model.graph.node:
            if node.op_type == "If" and node.input[0] in known:
                folder.write_branch(node, "then_branch" if known[node.input[0]].all() else "else_branch")
                chosen.append(str(node.name))
            else:
                folder.copy(node)
        del model.graph.node[:], model.graph.value_info[:]
        model.graph.node.extend(folder.nodes)
        model.graph.initializer.extend(folder.tensors)
    if chosen:
        add_note(f"choices with a constant condition replaced by their branch: {shortened(chosen)}")


class _Folder(NodeWriter):
    """Writes the nodes of a graph; `tensors` are the initialisers that came out of branches."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        inner = {name for node in every_node(graph) for name in (node.name, *node.input, *node.output)}
        super().__init__(all_names(graph) | inner)
        self.tensors: list[onnx.TensorProto] = []

    def write_branch(self, node: onnx.NodeProto, branch: str) -> None:
        """Write the nodes of a branch under names that the graph does not have, then its outputs."""
        body = attributes_of(node)[branch]
        scope: dict[str, str] = {}
        for tensor in body.initializer:
            scope[tensor.name] = tensor.name = self._free(tensor.name)
            self.tensors.append(tensor)
        for inner in body.node:
            rename_inputs(inner, scope)
            scope.update({name: self._free(name) for name in inner.output if name})
            inner.output[:] = [scope.get(name, "") for name in inner.output]
            inner.name = self._free(inner.name or inner.op_type)
            self.copy(inner)
        for value, name in zip(body.output, node.output, strict=True):
            self.add("Identity", [scope.get(value.name, value.name)], name)

    def _free(self, name: str) -> str:
        made, number = name, 0
        while made in self._taken:
            made, number = f"{name}.{number}", number + 1
        self._taken.add(made)
        return made
