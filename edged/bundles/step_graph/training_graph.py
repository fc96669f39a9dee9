"""What a step graph is made from: the network with its loss, and groups of its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

from edged.bundles.autodiff.forms import plain_forms
from edged.bundles.autodiff.reverse import active_tensors
from edged.bundles.autodiff.rules.losses import ROW_MEAN, mark
from edged.bundles.autodiff.shapes import examine
from edged.bundles.autodiff.tape import BATCH
from edged.bundles.graph.edit import all_names, reads, rename
from edged.bundles.losses.named import OUTPUT
from edged.domain.bundle_contents import Tensor
from edged.errors import BundleError

# A tensor of at least this many elements is a group of its own: joining its gradient with others would
# copy it, which costs more than the few nodes that joining saves.
ALONE = 16384
# Parameters whose size is a multiple of this come first, so that as many as possible begin aligned.
_VECTOR = 16


@dataclass(frozen=True)
class ParameterGroup:
    """State tensors that are updated together: one large parameter, or many small ones joined.

    `parameters` are names and shapes, in the order in which they are joined.
    """

    name: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def joined(self) -> bool:
        """Whether several parameters lie one behind the other."""
        return len(self.parameters) > 1

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the state tensors: one row."""
        return (1, sum(self.sizes))

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each parameter."""
        return [math.prod(shape) for _, shape in self.parameters]

    def tensor(self, kind: str) -> str:
        """Name of a state tensor, or of its new value."""
        return f"{self.name}.{kind}"


def grouped(shapes: Mapping[str, tuple[int, ...]]) -> list[ParameterGroup]:
    """Small parameters in one group, every large one in its own."""
    alone = [(name, shape) for name, shape in shapes.items() if math.prod(shape) >= ALONE]
    small = [(name, shape) for name, shape in shapes.items() if math.prod(shape) < ALONE]
    small.sort(key=lambda item: math.prod(item[1]) % _VECTOR != 0)
    parts = [*([tuple(small)] if small else []), *((item,) for item in alone)]
    return [ParameterGroup(f"step.state{i}", part) for i, part in enumerate(parts)]


# The loss of the network; the step's own may have more terms.
LOSS = "step.loss"


class TrainingGraph:
    """A network with its loss, ready to be differentiated.

    Parameters
    ----------
    model
        The network with the label as a further input and the mean loss as its only output, named `loss`; with
        the values of its parameters. It is not changed.
    trainable, frozen
        Names of parameters.
    data, label
        The inputs for the rows of a batch.

    Raises
    ------
    BundleError
        When onnxruntime cannot run the model.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        trainable: Sequence[str],
        frozen: Sequence[str],
        data: Tensor,
        label: Tensor,
    ) -> None:
        self.data, self.label = data, label
        made = plain_forms(model)
        rename(made.graph, OUTPUT, LOSS)
        for node in made.graph.node:
            node.name = LOSS if node.name == OUTPUT else node.name
        made.graph.output[0].name = LOSS
        self.info = examine(made, [*trainable, *frozen])
        self.nodes = self.computed(made.graph.node)
        mark(self.nodes, BATCH, self.info.dims)
        self.active = active_tensors(self.nodes, trainable, [LOSS], self.info.kinds)
        self.names = all_names(made.graph)
        shapes = {str(tensor.name): tuple(tensor.dims) for tensor in made.graph.initializer}
        parameters = {*trainable, *frozen}
        self.constants = [t for t in made.graph.initializer if t.name not in parameters]
        held = {tensor.name for tensor in made.graph.initializer}
        self.constants += [
            numpy_helper.from_array(value, name)
            for name, value in self.info.values.items()
            if name not in held
        ]
        read = {name for node in self.nodes for name in reads(node)}
        self.frozen = {name: shapes[name] for name in frozen if name in read}
        self.groups = grouped({name: shapes[name] for name in trainable})

    def refuse_idle(self) -> None:
        """Raise BundleError when the loss does not depend on a trainable parameter."""
        for name in (name for group in self.groups for name, _ in group.parameters):
            if name not in self.active:
                raise BundleError(
                    f"the loss does not depend on {name}",
                    where="trainable parameters",
                    remedy="freeze it with --freeze",
                )

    def computed(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes but for those whose results are among the constants: shapes, axes and the like."""
        known = self.info.values.keys()
        return [node for node in nodes if not known >= set(filter(None, node.output))]

    @property
    def is_mean(self) -> bool:
        """Whether the loss is one mean over the rows, and not a sum of several or something else."""
        last = next((node for node in self.nodes if LOSS in node.output), None)
        if last is None:
            raise BundleError("the training graph has no loss", where=OUTPUT)
        return last.op_type in (ROW_MEAN, "SoftmaxCrossEntropyLoss")
