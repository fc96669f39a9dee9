"""What cannot be trained, or would be trained wrongly, found before anything is built.

Every operator that a gradient must come through is looked at, for each engine: has it a gradient, in this
form, and is it safe. The native engine dies of some gradients, or gets them wrong without a word.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from edged.bundles.autodiff.rules.batch_norm import is_trained
from edged.bundles.graph.gradient_support import before, has_gradient, on_the_way
from edged.bundles.rewriting import trainable_form
from edged.bundles.rewriting.recurrent import going_back, more_than_plain
from edged.bundles.rewriting.rewriter import constants
from edged.bundles.source.trainable import layers
from edged.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import onnx

    from edged.bundles.graph.optimizers import Optimizer

BOTH = ("native", "portable")
NATIVE = ("native",)
_NO_GRADIENT = "cannot be trained through: it has no gradient"
_EXPORT = "build with --engine portable, or export the model in evaluation mode, without dropout"
_FREEZE = "build with --engine portable, or freeze its scale and bias"
_WHOLE = "train both weights, or freeze the layer with all before it, or build with --engine portable"
_AGAIN = "make the bundle from the network with `edged artifacts build`"
_PLAIN = "use a plain layer, or, where all before it and itself is frozen, build with --engine portable"
_UNSAFE = {
    "AveragePool": (
        "has a gradient that ends the process when the batch is dynamic",
        "build with --engine portable, or use MaxPool, ReduceMean or a strided Conv instead",
    ),
    "ConvTranspose": ("has a gradient that is not implemented", "build with --engine portable"),
    "Resize": ("has a gradient that is not implemented", "build with --engine portable"),
}


@dataclass(frozen=True)
class Obstacle:
    """One thing that stands in the way of training, and what to do.

    Attributes
    ----------
    node, operator
        Where, both empty for what is no node.
    engines
        The engines that cannot train because of it.
    what
        What is wrong.
    remedy
        What to do: freeze it, replace it, choose the other engine.
    """

    node: str
    operator: str
    engines: tuple[str, ...]
    what: str
    remedy: str

    def error(self) -> BundleError:
        """The finding as the error of a build."""
        what = f"operator {self.operator} {self.what}" if self.operator else self.what
        return BundleError(what, where=f"node {self.node}" if self.node else "", remedy=self.remedy)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON values that `--json` prints."""
        return asdict(self)


def examine(model: onnx.ModelProto, trainable: Sequence[str]) -> list[Obstacle]:
    """Everything that stands in the way of training these parameters, node by node, for either engine.

    Parameters
    ----------
    model
        A model that `conform` returned.
    trainable
        Names of the parameters that are to be trained.
    """
    refused: list[Obstacle] = []
    rewritten = trainable_form(
        model, trainable, refused=lambda node, problem: refused.append(_of(node, problem))
    )
    found = {finding.node: finding for finding in _not_native(model.graph, trainable)}
    found |= {finding.node: finding for finding in _without_gradient(rewritten.graph, model.graph, trainable)}
    found |= {finding.node: finding for finding in refused}
    return [found[node.name] for node in model.graph.node if node.name in found]


def lacking(optimizer: Optimizer) -> list[Obstacle]:
    """What the native engine has no form of in this optimizer."""
    lack = optimizer.native_lack
    if lack is None:
        return []
    what = f"optimizer: the native engine has no {lack}"
    return [Obstacle("", "", NATIVE, what, "build with --engine portable")]


def refusal(found: Sequence[Obstacle]) -> BundleError:
    """The error of a build that these findings stop."""
    error = found[0].error()
    if len(found) == 1:
        return error
    more = f"and {len(found) - 1} more: see `edged artifacts check`"
    return BundleError(error.what, where=error.where, remedy=f"{error.remedy}; {more}")


def _of(node: onnx.NodeProto, problem: BundleError) -> Obstacle:
    what = problem.what.removeprefix(f"operator {node.op_type} ")
    return Obstacle(str(node.name), str(node.op_type), BOTH, what, problem.remedy)


def _without_gradient(
    rewritten: onnx.GraphProto, graph: onnx.GraphProto, trainable: Sequence[str]
) -> Iterator[Obstacle]:
    own = {str(node.name): node for node in graph.node}
    for node in on_the_way(rewritten, trainable):
        if not has_gradient(node) and node.name in own:
            remedy = _way_round(graph, own[node.name], trainable)
            yield Obstacle(str(node.name), str(node.op_type), BOTH, _NO_GRADIENT, remedy)


def _way_round(graph: onnx.GraphProto, node: onnx.NodeProto, trainable: Sequence[str]) -> str:
    """What can be done about a node without a gradient: train what is behind it, or replace it."""
    stopped = set(before(graph, node, trainable))
    found = layers(graph)
    behind = next((n for n, layer in enumerate(reversed(found)) if stopped.intersection(layer)), 0)
    replace = "express it by other operators"
    if behind and set(trainable) - stopped:
        return f"freeze what is before it: --train last:{behind}; or {replace}"
    return f"freeze what is before it, or {replace}"


def _not_native(graph: onnx.GraphProto, trainable: Sequence[str]) -> Iterator[Obstacle]:
    """What the native engine must not train.

    Operators between a trainable parameter and the output are looked at, dropout and recurrent layers
    wherever they are. A BatchNormalization whose scale and bias are frozen passes: it becomes plain
    arithmetic.
    """
    trained, fixed = set(trainable), constants(graph)
    way = on_the_way(graph, trainable)
    names = {str(node.name) for node in way}
    reached = trained.union(*(node.output for node in way))
    for node in graph.node:
        inside = node.name in names
        if reason := more_than_plain(node) or ("" if inside else going_back(node)):
            yield _native(node, f"does not run in training: {reason}", _PLAIN)
        elif node.op_type == "Dropout":
            yield _native(node, "draws numbers that a resumed run would not draw again", _EXPORT)
        elif not inside:
            continue
        elif node.op_type == "BatchNormalization" and is_trained(node, trained, fixed):
            yield _native(node, "would be trained without following its running statistics", _FREEZE)
        elif node.op_type in _UNSAFE:
            yield _native(node, *_UNSAFE[node.op_type])
        elif fixed_weights := _fixed_weights(node, reached):
            yield _native(node, f"has a gradient that ends the process where {fixed_weights}", _WHOLE)


def as_generated(model: onnx.ModelProto, trainable: Sequence[str]) -> list[Obstacle]:
    """What upstream's generator gets wrong where nobody has rewritten the model before it."""
    trained, fixed = set(trainable), constants(model.graph)
    frozen = [
        node
        for node in on_the_way(model.graph, trainable)
        if node.op_type == "BatchNormalization" and not is_trained(node, trained, fixed)
    ]
    return [
        _native(node, "is frozen, and yet trained with the statistics of each batch", _AGAIN)
        for node in frozen
    ]


def _fixed_weights(node: onnx.NodeProto, reached: Collection[str]) -> str:
    """Which weights, W and R, no gradient goes to; nothing for all but recurrent layers.

    The kernels of LSTMGrad and GRUGrad (1.19.2) write both gradients, wanted or not. Those of the input, the
    bias and the initial states they leave out.
    """
    if node.op_type not in ("GRU", "LSTM"):
        return ""
    weights = zip(("W", "R"), node.input[1:3], strict=True)
    fixed = [f"{place} ({name})" for place, name in weights if name not in reached]
    return f"{' and '.join(fixed)} {'are' if len(fixed) > 1 else 'is'} not trained" if fixed else ""


def _native(node: onnx.NodeProto, what: str, remedy: str) -> Obstacle:
    return Obstacle(str(node.name), str(node.op_type), NATIVE, what, remedy)


def engines_left(found: Iterable[Obstacle], engine: str) -> tuple[str, ...]:
    """The engines among those asked for (`native`, `portable` or `both`) that no finding stops."""
    stopped = {name for finding in found for name in finding.engines}
    asked = BOTH if engine == "both" else (engine,)
    return tuple(name for name in asked if name not in stopped)
