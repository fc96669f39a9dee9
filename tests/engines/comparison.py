"""Comparing engines: their parameters, and what a model file makes of the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.engines.inference import InferenceModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.protocols import Engine

# Values below it count as this large: a bias that has hardly left 0 cannot be held to 1e-5 of itself.
FLOOR = 1e-2


def state(engine: Engine) -> dict[str, bytes]:
    """All parameters, for equality to the last bit."""
    return {name: value.tobytes() for name, value in engine.parameters().items()}


def apart(one: Engine, other: Engine) -> float:
    """The largest difference of any parameter, relative to that parameter's largest element.

    Elements are not judged by themselves: one near 0 is the difference of larger numbers, and float32
    leaves it fewer digits than 1e-5 asks for.
    """
    return distance(one.parameters(), other.parameters())


def distance(one: dict[str, NDArray[np.float32]], other: dict[str, NDArray[np.float32]]) -> float:
    """`apart` for parameters by name."""
    assert one.keys() == other.keys()
    return max(
        float(np.abs(value - other[name]).max() / max(FLOOR, float(np.abs(other[name]).max())))
        for name, value in one.items()
    )


def loss_of(path: Path, loss: str, x: NDArray[np.float32], y: NDArray[np.generic]) -> float:
    """The mean loss of the model in file `path`, by its formula in float64."""
    out = InferenceModel(path).predict(x).astype(np.float64)
    if loss == "cross_entropy":
        top = out.max(1)
        return float((top + np.log(np.exp(out - top[:, None]).sum(1)) - out[np.arange(len(y)), y]).mean())
    difference = out - np.asarray(y, np.float64)
    return float((difference**2 if loss == "mse" else np.abs(difference)).mean())
