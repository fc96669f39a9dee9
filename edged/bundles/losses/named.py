"""Losses that have a name, as graphs: what is put behind the network for training and judging."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from edged.bundles.graph.writer import NodeWriter
from edged.domain.bundle_contents import LossOptions, Tensor
from edged.errors import BundleError, ConfigError

LOSSES = ("cross_entropy", "mse", "bce_with_logits", "l1")
OUTPUT = "loss"
# Classes up to which a matrix is kept for picking rows from: faster than OneHot as long as it is small.
SMALL = 64


@dataclass(frozen=True)
class ValueLoss:
    """`mse`, `l1` or `bce_with_logits`: its mean over all numbers.

    Raises ConfigError when there is no such loss.
    """

    name: str
    options = LossOptions()

    def __post_init__(self) -> None:
        if self.name not in LOSSES:
            raise ConfigError(f"there is no loss {self.name!r}", where="loss",
                              remedy=f"one of {', '.join(LOSSES)}")  # fmt: skip

    def label(self, output: Tensor) -> Tensor:
        """Return the label for a model output: values of the same shape."""
        return Tensor("target", output.shape, "float32")

    def nodes(self, prediction: Tensor, label: str) -> list[onnx.NodeProto]:
        """Return the nodes of the loss between these tensors; what they come to is named `loss`."""
        to = NodeWriter()
        if self.name == "bce_with_logits":
            _binary_cross_entropy(prediction.name, label, to)
        else:
            to.add("Sub", [prediction.name, label], "loss.difference")
            both = ["loss.difference", "loss.difference"]
            to.add("Mul", both, "loss.each") if self.name == "mse" else to.add("Abs", both[:1], "loss.each")
        to.add("ReduceMean", ["loss.each"], OUTPUT, keepdims=0)
        return to.nodes


def _binary_cross_entropy(output: str, target: str, to: NodeWriter) -> None:
    """max(z, 0) - z*t + log(1 + exp(-|z|)): finite for any logit, unlike log(sigmoid(z)).

    max and |z| come from the same mask, so that their one-sided slopes at 0 add up to the true gradient
    there; a network whose last layer begins with zeros would not learn otherwise.
    """
    zero = to.add("Constant", [], "loss.zero", value_float=0.0)
    one = to.add("Constant", [], "loss.one", value_float=1.0)
    positive = to.add("GreaterOrEqual", [output, zero], "loss.positive")
    negated = to.add("Neg", [output], "loss.negated")
    largest = to.add("Where", [positive, output, zero], "loss.max")
    exponent = to.add("Where", [positive, negated, output], "loss.minus_abs")
    above_one = to.add("Add", [to.add("Exp", [exponent], "loss.exp"), one], "loss.one_plus")
    product = to.add("Mul", [output, target], "loss.product")
    linear = to.add("Sub", [largest, product], "loss.linear")
    to.add("Add", [linear, to.add("Log", [above_one], "loss.log")], "loss.each")


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
        if len(output.shape) < 2:
            raise BundleError("cross_entropy needs one output per class", where=output.name)
        if output.shape[1:] == (1,):
            raise BundleError("cross_entropy needs one output per class, there is one for two classes",
                              where=output.name, remedy="--loss bce_with_logits")  # fmt: skip
        classes = output.width
        if self.weights is not None and len(self.weights) != classes:
            raise ConfigError(
                f"{len(self.weights)} weights, the model has {classes} outputs", where="class weights"
            )
        if self.smoothing and len(output.shape) != 2:
            raise ConfigError(f"{output.name} has more axes than (batch, classes)", where="label smoothing")
        if self.ignored is not None and self.ignored >= classes:
            raise ConfigError(f"the model has {classes} outputs", where=f"ignore index {self.ignored}")
        return Tensor("labels", (output.shape[0],), "int64")

    def nodes(self, prediction: Tensor, label: str) -> list[onnx.NodeProto]:
        """Return the nodes of the loss between these tensors; what they come to is named `loss`."""
        to = NodeWriter()
        if self.smoothing:
            self._smoothed(prediction, label, to)
            return to.nodes
        inputs, more = [prediction.name, label], dict[str, Any]()
        if self.weights is not None:
            inputs.append(_constant("loss.class_weights", np.array(self.weights), to))
        if self.ignored is not None:
            more["ignore_index"] = self.ignored
        names = [OUTPUT, "loss.log_prob"]  # the gradient is computed from the second
        to.operator("SoftmaxCrossEntropyLoss", inputs, names, reduction="mean", **more)
        return to.nodes

    def _smoothed(self, prediction: Tensor, label: str, to: NodeWriter) -> None:
        """The mean over rows and classes of −k·target·log p, which is one mean as other losses are."""
        target = self._targets(prediction.width, label, to)
        to.add("LogSoftmax", [prediction.name], "loss.log_prob", axis=-1)
        to.add("Mul", ["loss.log_prob", target], "loss.each")
        to.add("ReduceMean", ["loss.each"], OUTPUT, keepdims=0)

    def _targets(self, classes: int, label: str, to: NodeWriter, among: int = 1) -> str:
        """−k·target of each row and class, shared by `among` losses; the name of the tensor."""
        rest = -self.smoothing / among
        own = rest - classes * (1 - self.smoothing) / among
        if classes <= SMALL:
            picked = _constant("loss.targets", np.eye(classes) * (own - rest) + rest, to)
            return to.add("Gather", [picked, label], "loss.target", axis=0)
        depth = to.add("Constant", [], "loss.classes", value_int=classes)
        both = _constant("loss.targets", np.array([rest, own]), to)
        return to.add("OneHot", [label, depth, both], "loss.target", axis=-1)


@dataclass(frozen=True)
class ExpertsCrossEntropy(CrossEntropy):
    """Cross-entropy of each expert of a mixture by itself: they learn side by side, not from their mixture.

    It is the mean over several logits `(batch, classes)` inside the model, which has one label. `logits` are
    the names of their tensors. Labels can be smoothed; classes count the same.
    """

    logits: tuple[str, ...] = ()

    def nodes(self, prediction: Tensor, label: str) -> list[onnx.NodeProto]:
        """Its nodes; of the output only the number of classes counts."""
        to = NodeWriter()
        target = self._targets(prediction.width, label, to, len(self.logits))
        whole = ""
        for i, name in enumerate(self.logits):
            said = to.add("LogSoftmax", [name], f"loss.log_prob.{i}", axis=-1)
            whole = to.add("Add", [whole, said], f"loss.log_prob.to{i}") if i else said
        to.add("Mul", [whole, target], "loss.each")
        to.add("ReduceMean", ["loss.each"], OUTPUT, keepdims=0)
        return to.nodes


def _constant(name: str, values: np.ndarray[Any, Any], to: NodeWriter) -> str:
    return to.add("Constant", [], name, value=numpy_helper.from_array(values.astype(np.float32), name))
