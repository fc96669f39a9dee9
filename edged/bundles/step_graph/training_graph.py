"""What a step graph is made from: the network with its loss, and what of it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edged.bundles.autodiff.forms import plain_forms
from edged.bundles.autodiff.reverse import active_tensors
from edged.bundles.autodiff.rules.losses import ROW_MEAN, mark
from edged.bundles.autodiff.shapes import examine
from edged.bundles.autodiff.tape import BATCH
from edged.bundles.graph.edit import all_names, rename_reads, rename_writes
from edged.bundles.graph.parameter_groups import grouped
from edged.bundles.losses.named import OUTPUT
from edged.errors import BundleError

if TYPE_CHECKING:
    import onnx

    from edged.storage.models.bundles import Tensor

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
        When the loss does not depend on a trainable parameter, or onnxruntime cannot run the model.
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
        rename_reads(made.graph, OUTPUT, LOSS)
        rename_writes(made.graph, OUTPUT, LOSS)
        for node in made.graph.node:
            node.name = LOSS if node.name == OUTPUT else node.name
        made.graph.output[0].name = LOSS
        self.info = examine(made, [*trainable, *frozen])
        self.nodes = list(made.graph.node)
        mark(self.nodes, BATCH, self.info.dims)
        self.active = active_tensors(self.nodes, trainable, [LOSS], self.info.kinds)
        for name in trainable:
            if name not in self.active:
                raise BundleError(
                    f"the loss does not depend on {name}",
                    where="trainable parameters",
                    remedy="freeze it with --freeze",
                )
        self.names = all_names(made.graph)
        shapes = {str(tensor.name): tuple(tensor.dims) for tensor in made.graph.initializer}
        parameters = {*trainable, *frozen}
        self.constants = [t for t in made.graph.initializer if t.name not in parameters]
        read = {name for node in self.nodes for name in node.input}
        self.frozen = {name: shapes[name] for name in frozen if name in read}
        self.groups = grouped({name: shapes[name] for name in trainable})

    @property
    def is_mean(self) -> bool:
        """Whether the loss is one mean over the rows, and not a sum of several or something else."""
        last = next((node for node in self.nodes if LOSS in node.output), None)
        if last is None:
            raise BundleError("the training graph has no loss", where=OUTPUT)
        return last.op_type in (ROW_MEAN, "SoftmaxCrossEntropyLoss")
