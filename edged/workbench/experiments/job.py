"""What a child process of a recipe run is told: one training, or one bundle to build."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.stream.schema import Schema
from edged.workbench.experiments.grid import Recipe
from edged.workbench.experiments.loading import Split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.workbench.recordings.stream import Stream

BUNDLE, MODEL, WEIGHTS = "bundle", "model.onnx", "weights.npz"


@dataclass(frozen=True)
class TrialOrder:
    """One training of a recipe from one seed.

    `data` is a directory that `save_data` wrote, `folder` the training's own. With `weights`, a file of
    parameters, a bundle begins with those.
    """

    recipe: Recipe
    schema: Schema
    seed: int
    engine: str
    threads: int
    metric: str
    data: Path
    folder: Path
    bundle: Path
    weights: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        """The order as JSON takes it, with the process that gives it."""
        values = {name: str(v) if isinstance(v, Path) else v for name, v in vars(self).items()}
        nested = {"recipe": self.recipe.as_dict(), "schema": asdict(self.schema), "parent": os.getpid()}
        return values | nested

    @classmethod
    def parse(cls, text: str) -> tuple[TrialOrder, int]:
        """The order that `as_dict` wrote, and the process that gave it."""
        values = json.loads(text)
        parent = values.pop("parent")
        schema: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in values.pop("schema").items()
        }
        paths = {
            name: None if values[name] is None else Path(values.pop(name))
            for name in ("data", "folder", "bundle", "weights")
        }
        recipe = Recipe.of(values.pop("recipe"))
        return cls(**{**values, **paths}, recipe=recipe, schema=Schema(**schema)), parent


@dataclass(frozen=True)
class Data:
    """Samples `(n, d)`, targets `(n, targets)`, and which samples are anomalous where the data tells.

    Both arrays are read from the disk as they are used.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    truth: NDArray[np.float64] | None
    split: Split


def save_data(folder: Path, stream: Stream, split: Split) -> None:
    """Write what all trainings read."""
    np.save(folder / "x.npy", np.ascontiguousarray(stream.x, np.float32))
    np.save(folder / "y.npy", np.ascontiguousarray(stream.y, np.float32))
    if stream.truth is not None:
        np.save(folder / "truth.npy", stream.truth)
    np.savez(
        folder / "split.npz", train=split.train, validation=split.validation, test=split.test, gap=split.gap
    )


def load_data(folder: Path) -> Data:
    """Load the data that `save_data` wrote."""
    with np.load(folder / "split.npz") as parts:
        split = Split(parts["train"], parts["validation"], parts["test"], int(parts["gap"]))
    truth = folder / "truth.npy"
    return Data(
        np.asarray(np.load(folder / "x.npy", mmap_mode="r")),
        np.asarray(np.load(folder / "y.npy", mmap_mode="r")),
        np.load(truth) if truth.exists() else None,
        split,
    )
