"""What a bundle needs for the portable engine: the step graphs, and where weights lie in the base model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import numpy_helper

from edged.bundles.autodiff.tape import NOISE, WEIGHTS
from edged.bundles.graph.edit import CONTRIB_DOMAIN
from edged.bundles.losses.named import OUTPUT
from edged.bundles.step_graph import optimizer_updates
from edged.bundles.step_graph.builder import PULL, SQUARES, StepGraph
from edged.bundles.step_graph.training_graph import TrainingGraph
from edged.domain.training.optimizers import Optimizer
from edged.engines.portable.description import Description, NamedShape, Noise, StateGroup
from edged.engines.runtime import ort
from edged.errors import BundleError

Shapes = Mapping[str, Sequence[int | str]]

MODELS = {
    "step": "step_model.onnx",
    "carry": "step_carry_model.onnx",
    "guided": "step_guided_model.onnx",
    "evaluation": "step_eval_model.onnx",
}
LARGEST = ("guided", "evaluation")
"""Graphs that have all nodes of the others: where a runtime takes them, it takes the others."""


def add_step_graph(
    staged: Path, made: StepGraph, source: TrainingGraph, optimizer: Optimizer, *, seed: int
) -> Description:
    """Write the step graphs into the bundle being made; their description for `bundle.json`.

    `seed` is what the engine draws the noise of the steps from.

    Raises BundleError when a runtime does not take a graph.
    """
    for key, model in made.models.items():
        if key in LARGEST:
            _check(model, key)
        onnx.save(model, str(staged / MODELS[key]))
    groups = tuple(
        StateGroup(
            group.name,
            group.shape,
            tuple(NamedShape(name, shape) for name, shape in group.parameters),
        )
        for group in source.groups
    )
    return Description(
        models={key: MODELS[key] for key in made.models},
        data=source.data.name,
        label=source.label.name,
        loss=OUTPUT,
        squares=SQUARES,
        weights=WEIGHTS,
        scalars=optimizer_updates.scalars(optimizer),
        optimizer=optimizer,
        groups=groups,
        frozen=tuple(NamedShape(name, shape) for name, shape in source.frozen.items()),
        noise=Noise(NOISE, made.noise_width, seed),
        remembered=made.remembered,
        pull=PULL,
        largest_product=largest_product(source.nodes, source.info.dims),
    )


def _check(model: onnx.ModelProto, key: str) -> None:
    """Only operators of ONNX, or of onnxruntime where a frozen part has them; and a runtime takes them."""
    foreign = sorted({item.domain for item in model.graph.node} - {"", CONTRIB_DOMAIN})
    if foreign:
        raise BundleError(f"operators of {', '.join(foreign)} are left", where=MODELS[key])
    try:
        ort.trial_session(model.SerializeToString())
    except ort.ERRORS as problem:
        raise BundleError(
            f"the step graph is not valid: {ort.one_line(problem)}",
            where=MODELS[key],
            remedy="build with --engine native",
        ) from problem


def raw_parameters(model: onnx.ModelProto, names: Iterable[str]) -> None:
    """Let the named initializers hold their values as raw bytes, whatever form they came in."""
    wanted = set(names)
    for tensor in model.graph.initializer:
        if tensor.name in wanted and not tensor.HasField("raw_data"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))


def largest_product(nodes: Iterable[onnx.NodeProto], shapes: Shapes) -> int:
    """Multiply-adds of the largest matrix product or convolution, for one row of a batch.

    A recurrent layer counts with one of its steps, because they follow one another. A size that nobody
    knows, such as that of the batch, counts as 1.
    """
    return max((_multiply_adds(node, shapes) for node in nodes), default=0)


def _multiply_adds(node: onnx.NodeProto, shapes: Shapes) -> int:
    of = [shapes.get(name, ()) for name in (*node.input, *node.output)]
    result = shapes.get(node.output[0], ()) if node.output else ()
    if node.op_type in {"MatMul", "Gemm"}:
        # Every element of the result is a sum over the axis that both operands share.
        turned = any(item.name == "transA" and item.i for item in node.attribute)
        return _elements(result) * _elements(of[0][-2:][:1] if turned else of[0][-1:])
    if node.op_type == "Conv":
        return _elements(result) * _elements(of[1][1:])
    if node.op_type == "ConvTranspose":
        return _elements(of[0]) * _elements(of[1][1:])
    if node.op_type in {"LSTM", "GRU", "RNN"}:
        return _elements(of[1]) + _elements(of[2])
    return 0


def _elements(sizes: Sequence[int | str]) -> int:
    return math.prod(size for size in sizes if isinstance(size, int))
