"""The training graph that onnxruntime's gradient builder made, read for what a step graph needs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from edged.bundles.graph.edit import shape_of
from edged.bundles.graph.parameter_groups import grouped
from edged.bundles.losses.builtin import OUTPUT
from edged.errors import BundleError

if TYPE_CHECKING:
    from edged.storage.models.bundles import Standardisation, Tensor

ACCUMULATOR = "InPlaceAccumulatorV2"
_BUFFER = "_grad.accumulation.buffer"


class TrainingGraph:
    """Forward and backward pass, and what of it becomes what.

    Parameters
    ----------
    model
        The training graph.
    data, labels
        Its inputs for the rows of a batch.
    loss
        The loss's name.
    output
        The tensor that the loss compares with the label.
    target
        What standardises the label before; None where it is compared as it is.
    frozen
        Names of parameters that are not trained.
    general
        Whether the loss is anything else than one mean over the rows.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        data: Tensor,
        labels: tuple[Tensor, ...],
        loss: str,
        output: Tensor,
        target: Standardisation | None,
        frozen: tuple[str, ...],
        general: bool = False,
    ) -> None:
        self.graph = model.graph
        self.data, self.labels, self.general = data, labels, general
        self.loss, self.output, self.target = loss, output.name, target
        # Sizes of one row of the output.
        self.row = output.row
        inputs = {str(value.name): value for value in model.graph.input}
        # Names of trainable parameters and of their gradients.
        self.gradients = {
            str(item.input[0]).removesuffix(_BUFFER): str(item.input[1])
            for item in model.graph.node
            if item.op_type == ACCUMULATOR
        }
        self.frozen = {name: _fixed(inputs[name]) for name in frozen if name in inputs}
        self.groups = grouped({name: _fixed(inputs[name]) for name in self.gradients})
        self.shapes = known_shapes(model)

    @property
    def small(self) -> bool:
        """Whether the state is small enough to go through a loop, which copies it."""
        return all(len(group.parts) == 1 for group in self.groups)

    @property
    def guidable(self) -> bool:
        """Whether the gradient of the output is there by its name, so that a teacher's can join it."""
        return any(f"{self.output}_grad" in item.output for item in self.graph.node)

    @property
    def each_loss(self) -> str | None:
        """The tensor of which the loss is the mean; None for a loss that is one operator."""
        for item in self.graph.node:
            if OUTPUT in item.output:
                return str(item.input[0]) if item.op_type == "ReduceMean" else None
        raise BundleError("the training graph has no loss", where=OUTPUT)


def _fixed(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(int(size) for size in shape_of(value))


def known_shapes(model: onnx.ModelProto) -> dict[str, tuple[int | None, ...]]:
    """Shapes of the tensors where they are known; None is a size that varies."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    found = {
        str(value.name): tuple(size if isinstance(size, int) else None for size in shape_of(value))
        for value in (*inferred.input, *inferred.output, *inferred.value_info)
        if value.type.tensor_type.HasField("shape")
    }
    return found | {str(tensor.name): tuple(tensor.dims) for tensor in inferred.initializer}
