"""What is minimised: the loss behind the output of a model, as it is named, given or written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from edged.bundles.graph.edit import refuse_taken
from edged.bundles.losses.function import FunctionLoss
from edged.bundles.losses.named import (
    OUTPUT,
    CrossEntropy,
    ExpertsCrossEntropy,
    check_loss,
    value_loss_nodes,
)
from edged.domain.bundle_contents import LossOptions, Tensor
from edged.errors import ConfigError

if TYPE_CHECKING:
    import onnx

Given: TypeAlias = str | CrossEntropy | FunctionLoss
"""A loss by its name, with options, or as a function."""

_CLASSES = "cross_entropy"


@dataclass(frozen=True)
class Objective:
    """A loss that is ready: `write` makes its nodes, given the tensor that is read for the label.

    `outputs` are those of the model, the main one first; `options` are for people alone.
    """

    name: str
    outputs: tuple[Tensor, ...]
    label: Tensor
    write: Callable[[str], list[onnx.NodeProto]]
    options: LossOptions = field(default_factory=LossOptions)

    def add_to(self, graph: onnx.GraphProto, read: str) -> str:
        """Add the nodes, which read the tensor `read` for the label; the name of the loss.

        Raises BundleError when the model uses a name that is needed.
        """
        refuse_taken(graph, [OUTPUT])
        graph.node.extend(self.write(read))
        return OUTPUT


def keeps_all_outputs(loss: Given) -> bool:
    """Whether the model keeps all of its outputs for this loss; else it must have one."""
    return isinstance(loss, (FunctionLoss, ExpertsCrossEntropy))


def objective(
    model: onnx.ModelProto, outputs: Sequence[Tensor], compared: Sequence[str], loss: Given
) -> Objective:
    """The loss that is asked for, behind these outputs of the model.

    `compared` are the tensors that the loss sees in place of them.

    Raises ConfigError when there is no such loss; BundleError when it does not fit its output.
    """
    if isinstance(loss, FunctionLoss):
        built = loss.build(model, compared)
        return Objective(loss.name, tuple(outputs), built.label, built.nodes)
    seen = replace(outputs[0], name=compared[0])
    if loss == _CLASSES:
        loss = CrossEntropy()
    if isinstance(loss, CrossEntropy):
        return Objective(
            loss.name, tuple(outputs), loss.label(outputs[0]), partial(loss.nodes, seen), loss.options
        )
    check_loss(loss)
    label = Tensor("target", outputs[0].shape, "float32")
    return Objective(loss, tuple(outputs), label, partial(value_loss_nodes, loss, seen.name))


def parse(
    text: str, class_weights: str | None = None, ignore_index: int | None = None, label_smoothing: float = 0.0
) -> Given:
    """The loss that `--loss` names: `mse`; or `losses.py:huber`, `package.module:huber`.

    `class_weights` such as `1,2,0.5`, `ignore_index` and `label_smoothing` are for cross_entropy.

    Raises ConfigError when the text is no loss, or one without classes to weigh; UnavailableError for a block
    of onnxruntime-training, where that is not installed.
    """
    if class_weights is None and ignore_index is None and not label_smoothing:
        return FunctionLoss(text) if ":" in text else text
    if text != _CLASSES:
        raise ConfigError(f"loss {text} has no classes to weigh or to smooth", where="--loss",
                          remedy=f"use {_CLASSES}")  # fmt: skip
    try:
        found = None if class_weights is None else tuple(float(part) for part in class_weights.split(","))
    except ValueError:
        raise ConfigError(f"{class_weights!r} is no list of numbers", where="--class-weights",
                          remedy="such as 1,2,0.5") from None  # fmt: skip
    return CrossEntropy(found, ignore_index, label_smoothing)
