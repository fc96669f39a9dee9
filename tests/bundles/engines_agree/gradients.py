"""Gradients as an engine applies them: what one step of gradient descent of size 1 takes off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from edged.bundles.source.normalise import conform
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.runtime import ort
from tests.bundles.autodiff.oracle import directions, forward_of
from tests.installed import built_for_each

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle
    from tests.bundles.autodiff.oracle import Function

# Of float32 numbers between 1 and 4, twice: weights in these tests are smaller.
SPACING = 4.8e-7


def both_gradients(
    model: onnx.ModelProto,
    folder: Path,
    *,
    loss: str = "mse",
    rows: int = 7,
    seed: int = 0,
    train: Sequence[str] = (),
    freeze: Sequence[str] = (),
) -> list[dict[str, np.ndarray]]:
    """Gradients of what is trained for a random batch: by a judge and by the portable engine.

    The judge is the native engine; where upstream does not derive the model rightly, the slope of the loss in
    double precision, both then along some directions of each parameter.
    """
    given = onnx.ModelProto()
    given.CopyFrom(model)
    bundles = built_for_each(model, folder, loss=loss, optimizer="sgd", train=train, freeze=freeze)
    x, y = batch(bundles["portable"], rows, seed)
    found = gradients(bundles["portable"], x, y)
    if "native" in bundles:
        return [gradients(bundles["native"], x, y), found]
    return _along_directions(given, found, loss, x, y)


def _along_directions(
    model: onnx.ModelProto, found: dict[str, np.ndarray], loss: str, x: np.ndarray, y: np.ndarray
) -> list[dict[str, np.ndarray]]:
    made = conform(model)
    expected = ort.session(made.SerializeToString()).run(None, {made.graph.input[0].name: x})
    at = {
        t.name: numpy_helper.to_array(t) for t in made.graph.initializer if t.data_type == TensorProto.FLOAT
    }
    at[made.graph.input[0].name] = x
    function = forward_of(made, at, expected)
    point = {name: value.astype(np.float64) for name, value in at.items()}
    slopes: dict[str, np.ndarray] = {}
    ours: dict[str, np.ndarray] = {}
    for name, gradient in found.items():
        steps = directions(name, gradient.shape)[-4:]
        slopes[name] = np.array([_slope(function, point, name, step, loss, y) for step in steps])
        ours[name] = np.array([float((gradient * step).sum()) for step in steps])
    return [slopes, ours]


def _slope(
    function: Function, at: Mapping[str, np.ndarray], name: str, step: np.ndarray, loss: str, y: np.ndarray
) -> float:
    size = 1e-6
    sides = [loss_of(loss, function({**at, name: at[name] + sign * size * step})[0], y) for sign in (1, -1)]
    return (sides[0] - sides[1]) / (2 * size)


def loss_of(loss: str, z: np.ndarray, y: np.ndarray) -> float:
    """A built-in loss of outputs and labels in double precision."""
    if loss == "cross_entropy":
        shifted = z - z.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return float(-logs[np.arange(len(y)), y].mean())
    if loss == "bce_with_logits":
        return float((np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))).mean())
    return float((np.abs(z - y) if loss == "l1" else (z - y) ** 2).mean())


def batch(bundle: Bundle, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random rows and labels that fit the bundle."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, *bundle.input.row)).astype(np.float32)
    if bundle.loss == "cross_entropy":
        return x, rng.integers(0, bundle.output.width, rows)
    y = rng.standard_normal((rows, *bundle.label.row)).astype(np.float32)
    return x, (y > 0).astype(np.float32) if bundle.loss == "bce_with_logits" else y


def gradients(bundle: Bundle, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """What one step took off every trainable parameter."""
    opened = open_engine(bundle.engine, bundle)
    opened.begin(LearningRate(1.0))
    before = opened.parameters()
    assert opened.step(x, y).applied
    after = opened.parameters()
    return {name: before[name] - after[name] for name in bundle.trainable}


def numerical(
    loss: Callable[[dict[str, np.ndarray]], float], at: Mapping[str, np.ndarray], step: float = 1e-5
) -> dict[str, np.ndarray]:
    """The gradient of a function of float64 parameters, by central differences."""
    found = {}
    point = {name: value.astype(np.float64) for name, value in at.items()}
    for name, value in point.items():
        slope = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            middle, sides = value[place], []
            for shift in (step, -step):
                value[place] = middle + shift
                sides.append(loss(point))
            value[place] = middle
            slope[place] = (sides[0] - sides[1]) / (2 * step)
        found[name] = slope
    return found


def assert_equal(
    native: dict[str, np.ndarray], portable: dict[str, np.ndarray], *, rtol: float = 1e-4
) -> None:
    """They must be the same within 1e-5 of the largest, and there must be some.

    A gradient here is the difference of two float32 weights, so it cannot be finer than their spacing.
    """
    largest = max(float(np.abs(value).max()) for value in native.values())
    assert largest > 0
    assert native.keys() == portable.keys()
    for name, value in native.items():
        np.testing.assert_allclose(
            portable[name], value, rtol=rtol, atol=1e-5 * largest + SPACING, err_msg=name
        )
