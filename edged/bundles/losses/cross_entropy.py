"""Cross-entropy in which classes count differently, one of them not at all, or labels are smoothed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper, numpy_helper

from edged.bundles.graph.edit import node
from edged.bundles.losses.builtin import label_of
from edged.domain.bundle_contents import LossOptions
from edged.errors import ConfigError

if TYPE_CHECKING:
    import onnx

    from edged.bundles.autodiff.tape import Tape
    from edged.storage.models.bundles import Tensor

WEIGHTS, TARGETS = "loss.class_weights", "loss.targets"
# Classes up to which a matrix is kept for picking rows from: faster than OneHot as long as it is small.
SMALL = 64
LEAST = 1e-30  # a batch in which no row counts is divided by this, and changes nothing


@dataclass(frozen=True)
class CrossEntropy:
    """Σ w·loss / Σ w over the rows, w the weight of a row's class; rows of class `ignored` do not count.

    As `SoftmaxCrossEntropyLoss` of the ONNX operator specification with `weights` and `ignore_index`.

    With `smoothing` ε the target of a row is 1 − ε + ε/k for its own of the k classes and ε/k for every other
    one (Szegedy et al. 2016, "Rethinking the Inception architecture for computer vision", section 7), as
    `torch.nn.CrossEntropyLoss` with `label_smoothing`.

    Parameters
    ----------
    weights
        One positive number for each class; None for equal ones.
    ignored
        Index of a class, None for no class.
    smoothing
        From 0 up to, but not, 1.

    Raises
    ------
    ConfigError
        When a weight is not positive, the index negative, the smoothing out of range or not alone.
    """

    weights: tuple[float, ...] | None = None
    ignored: int | None = None
    smoothing: float = 0.0
    name = "cross_entropy"

    def __post_init__(self) -> None:
        if self.weights is not None and not all(0 < weight < math.inf for weight in self.weights):
            raise ConfigError("weights of classes must be positive", where="class weights")
        if self.ignored is not None and self.ignored < 0:
            raise ConfigError(f"{self.ignored} is no class", where="ignore index", remedy="0 for the first")
        if not 0 <= self.smoothing < 1:
            raise ConfigError(
                f"{self.smoothing} is out of range",
                where="label smoothing",
                remedy="it must be 0 or more, and less than 1; 0.1 is usual",
            )
        if self.smoothing and not (self.weights is None and self.ignored is None):
            raise ConfigError(
                "labels are smoothed where all classes count the same",
                where="label smoothing",
                remedy="leave out either this or the weights of classes and the ignored one",
            )

    @property
    def options(self) -> LossOptions:
        """What makes it differ from the plain one.

        >>> CrossEntropy(smoothing=0.1).options.to_json()
        {'label_smoothing': 0.1}
        """
        return LossOptions(self.weights, self.ignored, self.smoothing or None)

    def label(self, output: Tensor) -> Tensor:
        """The label for a model output.

        Raises BundleError when the output is not one number a class; ConfigError when there are not as many
        classes.
        """
        label, classes = label_of(self.name, output), output.width
        if self.weights is not None and len(self.weights) != classes:
            raise ConfigError(
                f"{len(self.weights)} weights, the model has {classes} outputs", where="class weights"
            )
        if self.smoothing and len(output.shape) != 2:
            raise ConfigError(f"{output.name} has more axes than (batch, classes)", where="label smoothing")
        if self.ignored is not None and self.ignored >= classes:
            raise ConfigError(f"the model has {classes} outputs", where=f"ignore index {self.ignored}")
        return label

    def nodes(self, prediction: Tensor, label: str, output: str) -> list[onnx.NodeProto]:
        """Return the nodes of the loss between these tensors."""
        if self.smoothing:
            return self._smoothed(prediction, label, output)
        made, inputs, more = [], [prediction.name, label], dict[str, Any]()
        if self.weights is not None:
            made.append(_constant(WEIGHTS, np.array(self.weights)))
            inputs.append(WEIGHTS)
        if self.ignored is not None:
            more["ignore_index"] = self.ignored
        names = [output, "loss.log_prob"]  # the gradient is computed from the second
        kind = "SoftmaxCrossEntropyLoss"
        return [*made, helper.make_node(kind, inputs, names, name=output, reduction="mean", **more)]

    def _smoothed(self, prediction: Tensor, label: str, output: str) -> list[onnx.NodeProto]:
        """The mean over rows and classes of −k·target·log p, which is one mean as other losses are."""
        made, target = self.targets(prediction.width, label)
        return [
            *made,
            node("LogSoftmax", [prediction.name], "loss.log_prob", axis=-1),
            node("Mul", ["loss.log_prob", target], "loss.each"),
            node("ReduceMean", ["loss.each"], output, keepdims=0),
        ]

    def targets(self, classes: int, label: str, among: int = 1) -> tuple[list[onnx.NodeProto], str]:
        """Nodes of −k·target of each row and class, shared by `among` losses; the name of their tensor."""
        rest = -self.smoothing / among
        own = rest - classes * (1 - self.smoothing) / among
        if classes <= SMALL:
            picked = _constant(TARGETS, np.eye(classes) * (own - rest) + rest)
            return [picked, node("Gather", [TARGETS, label], "loss.target", axis=0)], "loss.target"
        depth = node("Constant", [], "loss.classes", value_int=classes)
        both = _constant(TARGETS, np.array([rest, own]))
        target = node("OneHot", [label, "loss.classes", TARGETS], "loss.target", axis=-1)
        return [depth, both, target], "loss.target"


def _constant(name: str, values: np.ndarray[Any, Any]) -> onnx.NodeProto:
    return node("Constant", [], name, value=numpy_helper.from_array(values.astype(np.float32), name))


def row_weights(label: str, weights: str, ignored: int | None, to: Tape) -> str:
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
