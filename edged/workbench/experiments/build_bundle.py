"""`python -m edged.workbench.experiments.build_bundle`: build the bundle of one training.

The order is one JSON object on stdin.

A process of its own, so that the memory of the training that follows is measured without the builder's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import numpy_helper

from edged.bundles.__main__ import network_of
from edged.bundles.build import build
from edged.bundles.graph.edit import shape_of
from edged.bundles.graph.naming import Naming
from edged.bundles.graph.network import UNTRAINED
from edged.bundles.graph.optimizers import Optimizer
from edged.bundles.source.normalise import conform, read_model
from edged.bundles.source.standardise import Statistics
from edged.domain.standard_bundle import StandardNetwork
from edged.domain.stream.running_statistics import RunningMoments, scale_of
from edged.errors import BundleError
from edged.workbench.experiments.job import BundleBuilt, TrialOrder, carry_out, load_data

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray


def build_bundle(order: TrialOrder) -> BundleBuilt:
    """Build `order.bundle`. EdgedError says what cannot be built and why."""
    recipe, notes = order.recipe, list[str]()
    model = _model(order)
    wanted = recipe.standardise
    if wanted is None:
        wanted = model.producer_name == UNTRAINED
        if not wanted:
            notes.append(
                f"the inputs of {recipe.model} are taken as they are: it may be trained already;"
                " for one that is not, set standardise: true"
            )
    statistics = _statistics(order, model) if wanted else None
    if order.weights is not None:
        model = _trained(model, order.weights)
    build(
        model,
        order.bundle,
        loss=recipe.loss,
        optimizer=Optimizer.of(recipe.optimizer, **recipe.options),
        train=recipe.train,
        freeze=recipe.freeze,
        standardise=statistics,
        engine="both" if order.engine == "auto" else order.engine,
        # A bundle with a seed has the random weights that come of it, and a device takes them for such.
        seed=None if order.weights is not None else order.seed,
        naming=Naming.of(order.schema),
        add_note=notes.append,
    )
    return BundleBuilt(tuple(notes))


def _model(order: TrialOrder) -> onnx.ModelProto:
    recipe, schema = order.recipe, order.schema
    if not recipe.network:
        return read_model(Path(recipe.model))
    window = (schema.steps, schema.channels)
    return network_of(
        StandardNetwork(
            schema.task, schema.width, schema.outputs, recipe.network, window, recipe.hidden, order.seed
        )
    )


def _statistics(order: TrialOrder, model: onnx.ModelProto) -> Statistics | None:
    """Input and target statistics of the training part; None where rows are no flat vectors."""
    shape = shape_of(model.graph.input[0])
    if len(shape) != 2:
        return None
    _check("features", shape[1], order.schema.width, order.recipe.model)
    if order.schema.task != "classify":
        _check("targets", shape_of(model.graph.output[0])[-1], order.schema.outputs, order.recipe.model)
    data = load_data(order.data)
    x: NDArray[np.float32] = data.x[data.split.train]
    moments = RunningMoments(len(x))
    moments.update(x)
    values: dict[str, Any] = dict(zip(("mean", "scale"), moments.scale(), strict=True))
    if order.schema.task in ("regress", "forecast"):
        y: NDArray[np.float32] = data.y[data.split.train]
        values |= dict(zip(("target_mean", "target_scale"), scale_of(y), strict=True))
    return Statistics.of(values, reconstruct=order.schema.labels_itself)


def _check(what: str, has: int | str, wanted: int, where: str) -> None:
    """Refuse a model whose statistics could not be put into its graph."""
    if has != wanted:
        raise BundleError(f"the model has {has} {what}, the stream has {wanted}", where=where)


def _trained(model: onnx.ModelProto, file: Path) -> onnx.ModelProto:
    """The model in the form that is built from, with the parameters that the file holds by name."""
    with np.load(file) as values:
        weights: dict[str, NDArray[np.float32]] = {name: values[name] for name in values.files}
    made = conform(read_model(model))
    places = {tensor.name: tensor for tensor in made.graph.initializer}
    for name, value in weights.items():
        if name not in places or tuple(places[name].dims) != value.shape:
            raise BundleError("the model has no such parameter of this shape", where=name)
        places[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))
    return made


if __name__ == "__main__":
    sys.exit(carry_out(build_bundle))
