"""Gradients as an engine applies them: what one step of gradient descent of size 1 takes off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.bundles.build import build
from edged.domain.protocols import LearningRate
from edged.engines import open_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import onnx

    from edged.storage.models.bundles import Bundle

ENGINES = ("native", "portable")
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
) -> list[dict[str, np.ndarray]]:
    """Gradients of what is trained by the native and by the portable engine, for the same random batch."""
    bundle = build(model, folder / "bundle", loss=loss, optimizer="sgd", train=train)
    assert bundle.engines == ENGINES
    x, y = batch(bundle, rows, seed)
    return [gradients(bundle, engine, x, y) for engine in ENGINES]


def batch(bundle: Bundle, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random rows and labels that fit the bundle."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, *bundle.input.row)).astype(np.float32)
    if bundle.loss == "cross_entropy":
        return x, rng.integers(0, bundle.output.width, rows)
    y = rng.standard_normal((rows, *bundle.label.row)).astype(np.float32)
    return x, (y > 0).astype(np.float32) if bundle.loss == "bce_with_logits" else y


def gradients(bundle: Bundle, engine: str, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """What one step took off every trainable parameter."""
    opened = open_engine(engine, bundle)
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


def assert_equal(native: dict[str, np.ndarray], portable: dict[str, np.ndarray]) -> None:
    """They must be the same within 1e-5 of the largest, and there must be some.

    A gradient here is the difference of two float32 weights, so it cannot be finer than their spacing.
    """
    largest = max(float(np.abs(value).max()) for value in native.values())
    assert largest > 0
    assert native.keys() == portable.keys()
    for name, value in native.items():
        np.testing.assert_allclose(
            portable[name], value, rtol=1e-4, atol=1e-5 * largest + SPACING, err_msg=name
        )
