"""Reading a recipe file and the recorded stream of its recipes, which is split in the order of time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from edged.config import Config, DeviceConfig
from edged.config.loader import read_yaml
from edged.config.problems import all_problems
from edged.errors import ConfigError
from edged.storage.recordings import read_recording
from edged.workbench.experiments.config import RecipeFile
from edged.workbench.experiments.grid import Recipe, expand
from edged.workbench.recordings.stream import LabelOptions, Stream, shape_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.json_fields import JsonObject
    from edged.workbench.experiments.config import SplitConfig
    from edged.workbench.recordings.stream import Stream

HINT = "docs/recipes.md lists every key"
EXAMPLE = "begin with `stream: {features: 8, classes: 2}` and `recipes: [{hidden: [64, 32]}]`"


@dataclass(frozen=True)
class LoadedRecipes:
    """A recipe file, its section `stream` as it was written, and the recipes that come of it."""

    file: RecipeFile
    stream: JsonObject
    recipes: list[Recipe]


def load_recipes(path: Path) -> LoadedRecipes:
    """Read and validate the recipe file at `path`.

    Raises ConfigError with file, line and key of the first problem and what would be right.
    """
    root, data = read_yaml(path, "the recipe file", EXAMPLE)
    try:
        file = RecipeFile.model_validate(data)
    except ValidationError as problem:
        raise all_problems(problem, path, root, {}, RecipeFile, HINT) from None
    try:
        # What a device's configuration refuses must not come out of --write.
        Config(device=DeviceConfig(id=file.name), stream=file.stream)
    except ValidationError as problem:
        what = problem.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(what, where=f"{path}: stream", remedy=HINT) from None
    try:
        recipes = expand(file, path.parent)
    except ConfigError as problem:
        raise ConfigError(problem.what, where=f"{path}: {problem.where}", remedy=problem.remedy) from None
    return LoadedRecipes(file, data["stream"], recipes)


def load_stream(file: RecipeFile, data: Path) -> tuple[Stream, Split]:
    """The recorded stream in the shape of the file's task, and its parts.

    Raises ConfigError when the two do not fit each other, or a part would be too small.
    """
    config = Config(device=DeviceConfig(id=file.name), stream=file.stream)
    recorded = read_recording(data, config.stream)
    stream = shape_stream(recorded, config, LabelOptions())
    if file.judged_by == "auroc" and stream.truth is None:
        raise ConfigError(
            "the data does not tell what is anomalous", where="metric", remedy="give it labels y"
        )
    rows = np.flatnonzero(stream.known)
    return stream, split_rows(rows, file.split, gap_of(file, stream))


FEWEST = 10


@dataclass(frozen=True)
class Split:
    """Row numbers of the parts, rising; the test part may be empty. `gap` samples lie between two parts."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    gap: int

    def counts(self) -> dict[str, int]:
        """How many samples each part has."""
        return {name: len(getattr(self, name)) for name in ("train", "validation", "test")}


def split_rows(rows: NDArray[np.int64], shares: SplitConfig, gap: int) -> Split:
    """Cut rows `(n,)`, which are in the order of time, at the shares; `gap` rows before a cut are left out.

    Raises ConfigError when a part would have too few samples.
    """
    n = len(rows)
    first = round(n * shares.train)
    second = min(n, first + round(n * shares.validation))
    third = min(n, second + round(n * shares.test))
    parts = Split(
        rows[: max(0, first - gap)],
        rows[first : max(first, second - (gap if third > second else 0))],
        rows[second:third],
        gap,
    )
    for name, count in parts.counts().items():
        if count < FEWEST and not (name == "test" and shares.test == 0):
            raise ConfigError(
                f"the {name} part has {count} samples, at least {FEWEST} are needed",
                where=f"split.{name}",
                remedy="raise its share, lower split.gap, or take a longer recording",
            )
    return parts


def gap_of(file: RecipeFile, stream: Stream) -> int:
    """Samples between two parts so that none of one holds readings, or a target, of the next."""
    if file.split.gap is not None:
        return file.split.gap
    config = file.stream
    reach = config.horizon if config.resolved_task == "forecast" else 0
    if config.window is not None:
        rules = config.window.rules()
        reach += -(-rules.size // rules.stride) - 1
    return reach * len(set(stream.keys))
