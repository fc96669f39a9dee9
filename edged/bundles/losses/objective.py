"""What is minimised: one loss, or the weighted sum of several behind the outputs of a model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx

from edged.bundles.graph.edit import node, refuse_taken, rename_inputs
from edged.bundles.losses.builtin import OUTPUT, check_loss, label_of, loss_nodes
from edged.bundles.losses.cross_entropy import CrossEntropy
from edged.bundles.losses.custom import CustomLoss
from edged.bundles.losses.experts_loss import ExpertsCrossEntropy
from edged.bundles.losses.function import FunctionLoss
from edged.domain.bundle_contents import LossOptions, WeightedLoss
from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.bundles.losses.builtin import Loss, Nodes
    from edged.storage.models.bundles import Tensor

Given: TypeAlias = "str | Path | onnx.ModelProto | CrossEntropy | FunctionLoss"


@dataclass(frozen=True)
class LossHead:
    """A loss behind the output of this name; `weight` is how much it counts in the sum."""

    output: str
    loss: Given
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ConfigError(f"weight {self.weight} is out of range", where=f"loss of {self.output}",
                              remedy="it must be above 0")  # fmt: skip


@dataclass(frozen=True)
class LossTerm:
    """A loss that is ready: `write` makes its nodes, given the tensors that are read for labels.

    `options` are for people alone.
    """

    name: str
    outputs: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]
    write: Callable[[Mapping[str, str]], Nodes]
    weight: float = 1.0
    general: bool = False
    options: LossOptions = field(default_factory=LossOptions)


@dataclass(frozen=True)
class Objective:
    """The terms of the sum; the first is what the bundle is known by."""

    terms: tuple[LossTerm, ...]

    @property
    def name(self) -> str:
        """Name of the loss in the bundle."""
        return self.terms[0].name

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs of the model, the main one first."""
        return tuple(output for term in self.terms for output in term.outputs)

    @property
    def labels(self) -> tuple[Tensor, ...]:
        """The labels in the order in which a step takes them."""
        return tuple(label for term in self.terms for label in term.labels)

    @property
    def options(self) -> LossOptions:
        """Those of the only term; each of several tells its own."""
        return self.terms[0].options if len(self.terms) == 1 else LossOptions()

    @property
    def general(self) -> bool:
        """Whether it is more than one mean over the rows."""
        return len(self.terms) > 1 or self.terms[0].general or self.terms[0].weight != 1

    def describe(self) -> tuple[WeightedLoss, ...]:
        """The terms as the bundle tells them; nothing where there is only one."""
        if len(self.terms) == 1:
            return ()
        return tuple(
            WeightedLoss(
                output=term.outputs[0].name,
                loss=term.name,
                label=term.labels[0].name,
                weight=term.weight,
                options=None if term.options == LossOptions() else term.options,
            )
            for term in self.terms
        )

    def add_to(self, graph: onnx.GraphProto, read: Mapping[str, str]) -> str:
        """Add the nodes of all terms; the name of the sum.

        `read` names the tensors that are read in place of labels.

        Raises BundleError when the model uses a name that is needed.
        """
        refuse_taken(graph, [OUTPUT])
        if len(self.terms) == 1 and self.terms[0].weight == 1:
            graph.node.extend(self.terms[0].write(read))
            return OUTPUT
        whole = ""
        for i, term in enumerate(self.terms):
            own, last = f"{OUTPUT}.{i}", i == len(self.terms) - 1
            graph.node.extend(_apart(term.write(read), own))
            graph.node.append(node("Constant", [], f"{own}.weight", value_float=term.weight))
            graph.node.append(node("Mul", [own, f"{own}.weight"], f"{own}.weighted"))
            parts = [name for name in (whole, f"{own}.weighted") if name]
            whole = OUTPUT if last else f"{own}.sum"
            graph.node.append(node("Add" if len(parts) > 1 else "Identity", parts, whole))
        return OUTPUT


def _apart(nodes: Nodes, own: str) -> Nodes:
    """The nodes of a loss under names that begin with `own`."""
    names = {name: own + name.removeprefix(OUTPUT) for item in nodes for name in item.output if name}
    for item in nodes:
        rename_inputs(item, names)
        for i, name in enumerate(item.output):
            item.output[i] = names.get(name, name)
        item.name = own + item.name.removeprefix(OUTPUT)
    return nodes


def outputs_of(loss: Given | Sequence[LossHead]) -> tuple[str, ...] | None:
    """Outputs that the model must have: those named, all for a function or experts, else the only one."""
    if isinstance(loss, (FunctionLoss, ExpertsCrossEntropy)):
        return ()
    return None if isinstance(loss, _ONE) else tuple(head.output for head in loss)


_ONE = (str, Path, onnx.ModelProto, CrossEntropy)


def objective(
    model: onnx.ModelProto,
    outputs: Sequence[Tensor],
    compared: Sequence[str],
    loss: Given | Sequence[LossHead],
) -> Objective:
    """What is asked for, behind these outputs of the model.

    Parameters
    ----------
    model
        The model, with the outputs that `outputs_of` asks for.
    outputs, compared
        Its outputs, and the tensors that losses see in place of them.
    loss
        One for the only output, a function for all of them, or one for each.

    Raises
    ------
    ConfigError
        When there is no such loss, or an output has two.
    BundleError
        When a loss does not fit its output.
    """
    if isinstance(loss, FunctionLoss):
        return Objective((_function(loss, model, outputs, compared),))
    if isinstance(loss, ExpertsCrossEntropy):
        return Objective((replace(_term(loss, model, outputs[0], compared[0]), outputs=tuple(outputs)),))
    if isinstance(loss, _ONE):
        return Objective((_term(loss, model, outputs[0], compared[0]),))
    twice = [name for name, count in Counter(head.output for head in loss).items() if count > 1]
    if twice:
        raise ConfigError("has two losses", where=f"output {twice[0]}", remedy="name each output once")
    terms = [
        replace(_term(head.loss, model, output, tensor), weight=head.weight)
        for head, output, tensor in zip(loss, outputs, compared, strict=True)
    ]
    return Objective(tuple(terms if len(terms) == 1 else map(_with_own_labels, terms)))


def _term(given: Given, model: onnx.ModelProto, output: Tensor, compared: str) -> LossTerm:
    if isinstance(given, FunctionLoss):
        return _function(given, model, [output], [compared])
    loss = _named(given)
    label = label_of(loss, output)
    write = partial(_write, loss, replace(output, name=compared), label.name)
    options = loss.options if isinstance(loss, CrossEntropy) else LossOptions()
    return LossTerm(loss if isinstance(loss, str) else loss.name, (output,), (label,), write, options=options)


def _write(loss: str | Loss, prediction: Tensor, label: str, read: Mapping[str, str]) -> Nodes:
    return loss_nodes(loss, prediction, read.get(label, label))


def _function(
    loss: FunctionLoss, model: onnx.ModelProto, outputs: Sequence[Tensor], compared: Sequence[str]
) -> LossTerm:
    built = loss.build(model, compared)
    return LossTerm(loss.name, tuple(outputs), built.labels, built.nodes, general=True)


def _named(given: Given) -> str | Loss:
    if isinstance(given, CrossEntropy):
        return given
    if not isinstance(given, str):
        return CustomLoss(given)
    check_loss(given)
    return given


def _with_own_labels(term: LossTerm) -> LossTerm:
    """The term with labels that are called after its output: two heads may both have a `target`."""
    mine = {label.name: f"{label.name}.{term.outputs[0].name}" for label in term.labels}

    def write(read: Mapping[str, str]) -> Nodes:
        return term.write({name: read.get(new, new) for name, new in mine.items()})

    labels = tuple(replace(label, name=mine[label.name]) for label in term.labels)
    return replace(term, labels=labels, write=write)
