"""Streams for tests: the recorded ones where they are, generated ones in a user's clone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent


class Labelled(NamedTuple):
    """Features `(n, d)` float32 and class indices `(n,)` int64."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    path: Path


def data_folder() -> Path:
    """Where recorded streams are expected."""
    return Path(os.environ.get("EDGED_TEST_DATA", HERE.parent.parent / "shared" / "data"))


def stream(name: str, folder: Path) -> Labelled:
    """The recorded stream `name`; where there is none, a generated one written into `folder`.

    In CI (`CI=true`) a missing recording is an error.
    """
    path = recording(name, folder, lambda: dict(zip(("X", "y"), generated(12_000), strict=True)))
    with np.load(path, allow_pickle=False) as data:
        return Labelled(data["X"].astype(np.float32), data["y"].astype(np.int64), path)


def recording(name: str, folder: Path, generate: Callable[[], dict[str, NDArray[Any]]]) -> Path:
    """The file of the recording `name`; where there is none, one of generated arrays in `folder`.

    In CI (`CI=true`) a missing recording is an error.
    """
    path = data_folder() / f"{name}.npz"
    if not path.exists():
        assert os.environ.get("CI") != "true", f"{path} is missing: set EDGED_TEST_DATA"
        path = folder / f"{name}.npz"
        np.savez(path, **generate())  # type: ignore[arg-type]  # its stub takes every keyword for a flag
    return path


def generated(n: int, d: int = 8, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Two classes, autocorrelated, with a boundary that turns slowly and sensors that drift."""
    rng = np.random.default_rng(seed)
    angle = np.linspace(0, np.pi, n)
    x = rng.normal(size=(n, d))
    margin = np.cos(angle) * x[:, 0] + np.sin(angle) * x[:, 1] + 0.3 * x[:, 2]
    y = (margin + rng.normal(0, 0.2, n) > 0).astype(np.int64)
    x[:, 3:] += np.linspace(0, 3, n)[:, None]
    return (x * 10 + 40).astype(np.float32), y
