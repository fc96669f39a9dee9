"""Standardisation as part of the graph, so that raw units go in and come out everywhere.

Inputs: `x` → minus `input.mean` → times `input.scale` → clipped to ±10 → network. Targets, where they
are standardised: the network's own output is in standardised units; for serving it is brought back by
`target.scale` and `target.mean`, for the loss the raw label is brought to the network's units instead.
So no target counts for more because of its unit, and no precision is lost by scaling back and forth.
A target may be a change: then the raw input of its column is added to the output, and taken from the label.

The four vectors are parameters, frozen in training: an engine can overwrite them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from edged.bundles.graph.edit import put_first, refuse_taken, rename, rename_reads
from edged.bundles.graph.writer import NodeWriter, constant_node
from edged.domain.bundle_contents import TARGET_MEAN, Standardisation
from edged.errors import BundleError

LIMIT = 10.0
INPUT: Standardisation = {"mean": "input.mean", "scale": "input.scale"}
TARGET: Standardisation = {"mean": TARGET_MEAN, "scale": "target.scale"}
STANDARD_INPUT = "input.standard"
STANDARD_OUTPUT = "output.standard"
STANDARD_TARGET = "target.standard"
LAST, LAST_COLUMNS = "target.last", "target.last.columns"
LOW, HIGH = "limit.low", "limit.high"

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Statistics:
    """What inputs and targets look like: `mean` and `scale` (1/std), each `(d,)` float32.

    `target_mean` and `target_scale` `(k,)` are for regression targets. With `reconstruct` the target
    is the input, so it shares the input's statistics and follows them when they are overwritten.
    With `change_of`, one column of the input for each target, they are statistics of how far a target is from
    that column's value.

    Raises BundleError when lengths differ, a value is not finite or a scale not positive.
    """

    mean: Vector
    scale: Vector
    target_mean: Vector | None = None
    target_scale: Vector | None = None
    reconstruct: bool = False
    change_of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_pair("mean", self.mean, self.scale)
        if (self.target_mean is None) != (self.target_scale is None):
            raise BundleError("target_mean and target_scale belong together", where="statistics")
        if self.target_mean is not None and self.target_scale is not None:
            _check_pair("target_mean", self.target_mean, self.target_scale)
            if self.reconstruct:
                raise BundleError(
                    "a reconstruction shares the input's statistics", where="statistics.target_mean"
                )

    @classmethod
    def of(cls, values: Mapping[str, Any], *, reconstruct: bool = False) -> Statistics:
        """From lists as in JSON: keys `mean`, `scale`, and perhaps `target_mean`, `target_scale`."""
        names = ("mean", "scale", "target_mean", "target_scale")
        try:
            vectors = [None if values.get(k) is None else np.asarray(values[k], np.float32) for k in names]
        except (TypeError, ValueError) as problem:
            raise BundleError("must be lists of numbers", where="statistics") from problem
        mean, scale, target_mean, target_scale = vectors
        if mean is None or scale is None:
            raise BundleError("mean and scale are needed", where="statistics")
        return cls(mean, scale, target_mean, target_scale, reconstruct)

    @classmethod
    def identity(cls, inputs: int, targets: int | None = None, *, reconstruct: bool = False) -> Statistics:
        """Statistics that change nothing: places for an engine to write the fitted ones into."""
        neutral = np.zeros(inputs, np.float32), np.ones(inputs, np.float32)
        if targets is None:
            return cls(*neutral, reconstruct=reconstruct)
        return cls(*neutral, np.zeros(targets, np.float32), np.ones(targets, np.float32))

    @property
    def target_names(self) -> Standardisation | None:
        """Parameters that standardise the target; None when labels are taken as they are."""
        if self.reconstruct:
            return INPUT
        return None if self.target_mean is None else TARGET


def _check_pair(name: str, mean: Vector, scale: Vector) -> None:
    if mean.ndim != 1 or mean.shape != scale.shape:
        raise BundleError(
            f"mean {mean.shape} and scale {scale.shape} must be equally long", where=f"statistics.{name}"
        )
    if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()):
        raise BundleError(
            "mean must be finite, scale (1/std) finite and above 0",
            where=f"statistics.{name}",
            remedy="use scale 1 for constant features",
        )


def is_standardised(graph: onnx.GraphProto) -> bool:
    """Whether a graph has the standardisation that an earlier build has put in front of it."""
    return {str(name) for name in INPUT.values()} <= {tensor.name for tensor in graph.initializer}


def scaling_in_front(graph: onnx.GraphProto) -> list[str]:
    """Names of a mean that a network subtracts from its input, and of what it then divides or multiplies by.

    Empty where it does not begin so. A network of PyTorch has them as buffers, which ONNX does not tell from
    weights; no gradient should train them.
    """
    weights = {tensor.name for tensor in graph.initializer}
    value = next((given.name for given in graph.input if given.name not in weights), "")
    found: list[str] = []
    for kinds in (("Sub",), ("Div", "Mul")):
        readers = [node for node in graph.node if value in node.input]
        if len(readers) != 1 or readers[0].op_type not in kinds or readers[0].input[0] != value:
            return []
        if readers[0].input[1] not in weights:
            return []
        found.append(readers[0].input[1])
        value = readers[0].output[0]
    return found


def standardise_model(model: onnx.ModelProto, statistics: Statistics) -> None:
    """Put the standardisation into the inference graph of `model`, in place.

    The model has one input `(batch, d)` and one output `(batch, k)`, which keep their names.

    Raises BundleError when widths differ or names are taken.
    """
    graph = model.graph
    _check_width(graph.input[0], statistics.mean, "input")
    if statistics.target_mean is not None:
        _check_width(graph.output[0], statistics.target_mean, "output")
    if statistics.reconstruct:
        _check_width(graph.output[0], statistics.mean, "output")
    refuse_taken(graph, _needed_names(statistics))
    _standardise_input(graph, statistics)
    if statistics.target_names is not None:
        _raw_output(graph, statistics)


def _needed_names(statistics: Statistics) -> list[str]:
    names = [*INPUT.values(), STANDARD_INPUT, LOW, HIGH, "input.centred", "input.scaled"]
    if statistics.target_names is not None:
        names += [*TARGET.values(), STANDARD_OUTPUT, STANDARD_TARGET, "output.scaled", "target.centred"]
    if statistics.change_of:
        names += [LAST, LAST_COLUMNS, "output.base", "target.change"]
    return [str(name) for name in names]


def _check_width(value: onnx.ValueInfoProto, vector: Vector, what: str) -> None:
    dims = value.type.tensor_type.shape.dim
    if len(dims) != 2 or dims[1].dim_value != len(vector):
        raise BundleError(
            f"statistics of length {len(vector)} do not fit the model's {what}",
            where=value.name,
            remedy="standardisation is for (batch, n) values with n numbers each",
        )


def _standardise_input(graph: onnx.GraphProto, statistics: Statistics) -> None:
    name = graph.input[0].name
    rename_reads(graph, name, STANDARD_INPUT)
    # Limits are Constant nodes, not initializers, so that nothing takes them for parameters.
    to = NodeWriter()
    to.add("Constant", [], LOW, value_float=-LIMIT)
    to.add("Constant", [], HIGH, value_float=LIMIT)
    to.add("Sub", [name, INPUT["mean"]], "input.centred")
    to.add("Mul", ["input.centred", INPUT["scale"]], "input.scaled")
    to.add("Clip", ["input.scaled", LOW, HIGH], STANDARD_INPUT)
    put_first(graph, to.nodes)
    _add_parameters(graph, INPUT, statistics.mean, statistics.scale)


def _raw_output(graph: onnx.GraphProto, statistics: Statistics) -> None:
    names, output, given = statistics.target_names or TARGET, graph.output[0].name, graph.input[0].name
    rename(graph, output, STANDARD_OUTPUT)
    to, base = NodeWriter(), names["mean"]
    to.add("Div", [STANDARD_OUTPUT, names["scale"]], "output.scaled")
    if statistics.change_of:
        to.copy(constant_node(LAST_COLUMNS, np.array(statistics.change_of, np.int64)))
        to.add("Gather", [given, LAST_COLUMNS], LAST, axis=1)
        base = to.add("Add", [LAST, names["mean"]], "output.base")
    to.add("Add", ["output.scaled", base], output)
    # What computed the output before may bear its name still.
    to.nodes[-1].name = f"{output}.raw"
    graph.node.extend(to.nodes)
    if statistics.target_mean is not None and statistics.target_scale is not None:
        _add_parameters(graph, TARGET, statistics.target_mean, statistics.target_scale)


def _add_parameters(graph: onnx.GraphProto, names: Standardisation, mean: Vector, scale: Vector) -> None:
    graph.initializer.append(numpy_helper.from_array(mean, names["mean"]))
    graph.initializer.append(numpy_helper.from_array(scale, names["scale"]))


def standard_target(graph: onnx.GraphProto, label: str, names: Standardisation) -> str:
    """Add what brings the raw `label` to the network's units; the name of the result.

    A reconstruction's target is clipped where its input is: what the network cannot see it need not match,
    and one absurd reading does not fill the whole loss.
    """
    to = NodeWriter()
    if any(LAST in item.output for item in graph.node):
        label = to.add("Sub", [label, LAST], "target.change")
    to.add("Sub", [label, names["mean"]], "target.centred")
    if names == INPUT:
        to.add("Mul", ["target.centred", names["scale"]], "target.scaled")
        to.add("Clip", ["target.scaled", LOW, HIGH], STANDARD_TARGET)
    else:
        to.add("Mul", ["target.centred", names["scale"]], STANDARD_TARGET)
    graph.node.extend(to.nodes)
    return STANDARD_TARGET
