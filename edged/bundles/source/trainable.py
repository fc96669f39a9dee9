"""Which parameters are trained: by globs over their names, and by layers counted from the output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import onnx

from edged.bundles.graph.edit import shortened
from edged.bundles.source.normalise import parameter_names
from edged.bundles.source.standardise import INPUT, TARGET, is_standardised, scaling_in_front
from edged.bundles.source.training_mode import running_statistics
from edged.errors import BundleError, ConfigError

_LAST = re.compile(r"last:([1-9][0-9]*)")
# What gives a parameter in another form: the node behind it is the layer.
_SCALED = ("QuantizeLinear", "DequantizeLinear", "QLinear", "QGemm")
_FORMS = {"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}


def select(
    graph: onnx.GraphProto, train: Sequence[str], freeze: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Names of trainable and frozen parameters of a forward graph.

    Both lists hold globs, or `last:N` for the N last layers: only what matches `train` is trained, everything
    when it is empty, but for what matches `freeze` and a scaling of the input in front of the network.
    Running statistics never are, nor scales of quantised layers, nor what is left of a standardisation of an
    earlier build.

    Raises BundleError when there are no parameters; ConfigError when a glob matches nothing, there are not as
    many layers, or nothing is left to train.
    """
    names = parameter_names(graph)
    if not names:
        raise BundleError("the model has no float32 parameters", where=str(graph.name))
    wanted = _matching(graph, train, "train") if train else names
    fixed = running_statistics(graph).union(_scales(graph), _matching(graph, freeze, "freeze"))
    if is_standardised(graph):
        fixed.update(*(map(str, names.values()) for names in (INPUT, TARGET)))
    elif not train:
        fixed.update(scaling_in_front(graph))
    trainable = [name for name in wanted if name not in fixed]
    if not trainable:
        raise ConfigError(
            "nothing is left to train", where="freeze", remedy=f"parameters: {shortened(names, 20)}"
        )
    return trainable, [name for name in names if name not in trainable]


def _scales(graph: onnx.GraphProto) -> set[str]:
    """Return names of what quantised operators read: scales belong to their numbers, and are not trained."""
    return {str(name) for node in graph.node if node.op_type.startswith(_SCALED) for name in node.input}


def layers(graph: onnx.GraphProto) -> list[list[str]]:
    """Parameters by layer, from the input on: those of one node, the bias that is added to it among them."""
    names, seen = set(parameter_names(graph)), set[str]()
    stands_for: dict[str, str] = {name: name for name in names}
    found: list[list[str]] = []
    ends: dict[str, list[str]] = {}
    for node in graph.node:
        own = [stands_for[name] for name in node.input if name in stands_for]
        if not own:
            continue
        if node.op_type in _FORMS:
            stands_for[node.output[0]] = own[0]
            continue
        layer = (
            next((ends[name] for name in node.input if name in ends), None) if node.op_type == "Add" else None
        )
        if layer is None:
            layer = []
            found.append(layer)
        layer += [name for name in own if name not in seen]
        seen.update(own)
        ends[node.output[0]] = layer
    return [layer for layer in found if layer]


def _matching(graph: onnx.GraphProto, globs: Sequence[str], what: str) -> list[str]:
    names, chosen = parameter_names(graph, scalars=True), set[str]()
    for glob in globs:
        if last := _LAST.fullmatch(glob):
            chosen.update(_last(layers(graph), int(last[1]), what))
            continue
        matching = [name for name in names if fnmatchcase(name, glob)]
        if not matching:
            remedy = f"parameters: {shortened(names, 20)}"
            raise ConfigError(f"{glob!r} matches no parameter", where=what, remedy=remedy)
        chosen.update(matching)
    return [name for name in names if name in chosen]


def _last(found: list[list[str]], count: int, what: str) -> list[str]:
    if count > len(found):
        raise ConfigError(f"last:{count} asks for more layers than there are", where=what,
                          remedy=f"the model has {len(found)} layers with parameters")  # fmt: skip
    return [name for layer in found[-count:] for name in layer]
