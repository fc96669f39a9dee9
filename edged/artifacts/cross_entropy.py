"""Cross-entropy in which classes count differently, or one of them not at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper, numpy_helper

from edged.artifacts.losses import label_of
from edged.errors import ConfigError

if TYPE_CHECKING:
    import onnx

    from edged.artifacts.lowering import Writer
    from edged.storage.bundles import Tensor

WEIGHTS = "loss.class_weights"
LEAST = 1e-30  # a batch in which no row counts is divided by this, and changes nothing


@dataclass(frozen=True)
class CrossEntropy:
    """Σ w·loss / Σ w over the rows, w the weight of a row's class; rows of class `ignored` do not count.

    As `SoftmaxCrossEntropyLoss` of the ONNX operator specification with `weights` and `ignore_index`.

    Parameters
    ----------
    weights
        One positive number for each class; None for equal ones.
    ignored
        Index of a class, None for no class.

    Raises
    ------
    ConfigError
        When a weight is not positive or the index negative.
    """

    weights: tuple[float, ...] | None = None
    ignored: int | None = None
    name = "cross_entropy"

    def __post_init__(self) -> None:
        if self.weights is not None and not all(0 < weight < math.inf for weight in self.weights):
            raise ConfigError("weights of classes must be positive", where="class weights")
        if self.ignored is not None and self.ignored < 0:
            raise ConfigError(f"{self.ignored} is no class", where="ignore index", remedy="0 for the first")

    def label(self, output: Tensor) -> Tensor:
        """The label for a model output.

        Raises
        ------
        BundleError
            When the output is not one number a class.
        ConfigError
            When there are not as many classes.
        """
        label, classes = label_of(self.name, output), output.width
        if self.weights is not None and len(self.weights) != classes:
            raise ConfigError(
                f"{len(self.weights)} weights, the model has {classes} outputs", where="class weights"
            )
        if self.ignored is not None and self.ignored >= classes:
            raise ConfigError(f"the model has {classes} outputs", where=f"ignore index {self.ignored}")
        return label

    def nodes(self, prediction: str, label: str, output: str) -> list[onnx.NodeProto]:
        """Its nodes between these tensors."""
        made, inputs, more = [], [prediction, label], dict[str, Any]()
        if self.weights is not None:
            value = numpy_helper.from_array(np.array(self.weights, np.float32), WEIGHTS)
            made.append(helper.make_node("Constant", [], [WEIGHTS], name=WEIGHTS, value=value))
            inputs.append(WEIGHTS)
        if self.ignored is not None:
            more["ignore_index"] = self.ignored
        names = [output, "loss.log_prob"]  # the gradient is computed from the second
        kind = "SoftmaxCrossEntropyLoss"
        return [*made, helper.make_node(kind, inputs, names, name=output, reduction="mean", **more)]


def row_weights(label: str, weights: str, ignored: int | None, to: Writer) -> str:
    """Tensor `(batch, 1)`: rᵢ·wᵢ·Σr/Σrw, how much each row of a weighted loss counts.

    r are the weights of the rows, w those of their classes, 0 for the one that is ignored. With equal r their
    weighted mean is the loss of the ONNX operator specification. `weights` is empty where classes have none.
    """
    if not weights and ignored is None:
        return to.row_weights
    factors = []
    if weights:
        factors.append(to.add("Gather", [weights, label], axis=0))
    if ignored is not None:
        same = to.add("Equal", [label, to.constant(np.int64(ignored))])
        factors.append(to.add("Where", [same, to.number(0), to.number(1)]))
    each = factors[0] if len(factors) == 1 else to.add("Mul", factors)
    counted = to.add("Mul", [to.add("Reshape", [each, to.sizes(-1, 1)]), to.row_weights])
    whole, part = (to.add("ReduceSum", [name], keepdims=1) for name in (to.row_weights, counted))
    ratio = to.add("Div", [whole, to.add("Max", [part, to.number(LEAST)])])
    return to.add("Mul", [counted, ratio])


def weights_of_classes(node: onnx.NodeProto, place: int) -> tuple[str, int | None]:
    """Tensor of the weights, input number `place` of the operator or its gradient, and the ignored class."""
    ignored = next((a.i for a in node.attribute if a.name == "ignore_index"), None)
    return node.input[place] if len(node.input) > place else "", ignored
