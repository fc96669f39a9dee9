"""Losses as graphs: what is put behind the network for training and judging."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from onnx import helper

from edged.bundles.graph.edit import node
from edged.errors import BundleError, ConfigError
from edged.storage.models.bundles import Tensor

if TYPE_CHECKING:
    import onnx

    Nodes = list[onnx.NodeProto]

LOSSES = ("cross_entropy", "mse", "bce_with_logits", "l1")
OUTPUT = "loss"


class Loss(Protocol):
    """A loss that says itself what it is made of."""

    @property
    def name(self) -> str:
        """Name of the loss in the bundle."""

    def label(self, output: Tensor) -> Tensor:
        """The label for a model output."""

    def nodes(self, prediction: Tensor, label: str, output: str) -> Nodes:
        """Its nodes between these tensors; `output` is the mean over the rows."""


def check_loss(name: str) -> None:
    """Raise ConfigError when there is no such loss."""
    if name not in LOSSES:
        raise ConfigError(f"there is no loss {name!r}", where="loss", remedy=f"one of {', '.join(LOSSES)}")


def label_of(loss: str | Loss, output: Tensor) -> Tensor:
    """The label that belongs to a model output: `labels` int64 classes or `target` float32 values."""
    if not isinstance(loss, str):
        return loss.label(output)
    if loss == "cross_entropy":
        if len(output.shape) < 2:
            raise BundleError("cross_entropy needs one output per class", where=output.name)
        if output.shape[1:] == (1,):
            raise BundleError("cross_entropy needs one output per class, there is one for two classes",
                              where=output.name, remedy="--loss bce_with_logits")  # fmt: skip
        return Tensor("labels", (output.shape[0],), "int64")
    return Tensor("target", output.shape, "float32")


def loss_nodes(loss: str | Loss, output: Tensor, target: str) -> Nodes:
    """The nodes of the mean loss between `output` and `target`; what they come to is named `loss`."""
    if not isinstance(loss, str):
        return loss.nodes(output, target, OUTPUT)
    nodes = {"cross_entropy": _cross_entropy, "mse": _mse, "l1": _l1, "bce_with_logits": _bce}[loss]
    return nodes(output.name, target)


def _cross_entropy(output: str, target: str) -> Nodes:
    # The second output is what the gradient is computed from.
    names = [OUTPUT, "loss.log_prob"]
    return [
        helper.make_node("SoftmaxCrossEntropyLoss", [output, target], names, name=OUTPUT, reduction="mean")
    ]


def _mse(output: str, target: str) -> Nodes:
    return [
        node("Sub", [output, target], "loss.difference"),
        node("Mul", ["loss.difference", "loss.difference"], "loss.each"),
        _mean("loss.each"),
    ]


def _l1(output: str, target: str) -> Nodes:
    return [
        node("Sub", [output, target], "loss.difference"),
        node("Abs", ["loss.difference"], "loss.each"),
        _mean("loss.each"),
    ]


def _bce(output: str, target: str) -> Nodes:
    """max(z, 0) - z*t + log(1 + exp(-|z|)): finite for any logit, unlike log(sigmoid(z)).

    max and |z| come from the same mask, so that their one-sided slopes at 0 add up to the true gradient
    there; a network whose last layer begins with zeros would not learn otherwise.
    """
    return [
        node("Constant", [], "loss.zero", value_float=0.0),
        node("Constant", [], "loss.one", value_float=1.0),
        node("GreaterOrEqual", [output, "loss.zero"], "loss.positive"),
        node("Neg", [output], "loss.negated"),
        node("Where", ["loss.positive", output, "loss.zero"], "loss.max"),
        node("Where", ["loss.positive", "loss.negated", output], "loss.minus_abs"),
        node("Exp", ["loss.minus_abs"], "loss.exp"),
        node("Add", ["loss.exp", "loss.one"], "loss.one_plus"),
        node("Log", ["loss.one_plus"], "loss.log"),
        node("Mul", [output, target], "loss.product"),
        node("Sub", ["loss.max", "loss.product"], "loss.linear"),
        node("Add", ["loss.linear", "loss.log"], "loss.each"),
        _mean("loss.each"),
    ]


def _mean(name: str) -> onnx.NodeProto:
    return node("ReduceMean", [name], OUTPUT, keepdims=0)


def copied(
    nodes: Sequence[onnx.NodeProto], constants: Iterable[onnx.TensorProto], read: Mapping[str, str]
) -> tuple[Nodes, dict[str, str]]:
    """Nodes of a loss of one's own behind its constants, and how their tensors are called then.

    What they make begins with `loss.`; `read` names what they read elsewhere.
    """
    made = [node("Constant", [], f"{OUTPUT}.{tensor.name}", value=tensor) for tensor in constants]
    names = {item.output[0].removeprefix(f"{OUTPUT}."): item.output[0] for item in made}
    names |= {name: f"{OUTPUT}.{name}" for item in nodes for name in item.output}
    names |= {**read, "": ""}
    for i, item in enumerate(nodes):
        inputs, outputs = ([names.get(name, name) for name in side] for side in (item.input, item.output))
        copy = helper.make_node(item.op_type, inputs, outputs, f"{OUTPUT}.node{i}", domain=item.domain)
        copy.attribute.extend(item.attribute)
        made.append(copy)
    return made, names
