"""From the sections of a recipe file to single recipes: every combination of the values that are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edged.device.startup.bootstrap import HIDDEN, STANDARD
from edged.domain.standard_bundle import NetworkKind  # noqa: TC001  pydantic reads the annotations
from edged.domain.training.optimizers import OPTIONS
from edged.errors import ConfigError
from edged.workbench.experiments.config import MOST_TRIALS

if TYPE_CHECKING:
    from edged.domain.stream.schema import Schema
    from edged.workbench.experiments.config import RecipeConfig, RecipeFile

LAYERS = {"mlp": STANDARD, **HIDDEN}
SHORT = {"learning_rate": "lr", "replay_share": "replay", "weight_decay": "decay"}


@dataclass(frozen=True)
class Recipe:
    """One way to train. `model` is a file and `network` empty, or the other way round.

    `replay_share` None shuffles all samples, `patience` None goes on to the last epoch, `standardise`
    None does it for what `edged model new` makes; options of the optimizer that are None are its own.
    """

    name: str
    network: NetworkKind | Literal[""]
    model: str
    standardise: bool | None
    hidden: tuple[int, ...]
    loss: str
    optimizer: str
    learning_rate: float
    schedule: str
    warmup: int
    batch: int
    epochs: int
    patience: int | None
    weight_decay: float | None
    clip_norm: float
    momentum: float | None
    dampening: float | None
    nesterov: bool | None
    beta1: float | None
    beta2: float | None
    epsilon: float | None
    bias_correction: bool | None
    train: tuple[str, ...]
    freeze: tuple[str, ...]
    replay_share: float | None

    @property
    def options(self) -> dict[str, float | None]:
        """Options of the optimizer by name."""
        return {option: getattr(self, option) for option in OPTIONS}


KEYS = tuple(field.name for field in fields(Recipe) if field.name != "name")


def expand(file: RecipeFile, base: Path) -> list[Recipe]:
    """All recipes of a file, each with a name of its own; model files are relative to the directory `base`.

    Raises ConfigError when two are the same, a model file is missing, or there are too many.
    """
    schema = file.stream.to_schema()
    count = sum(_count(entry) for entry in file.recipes)
    if count * file.seeds > MOST_TRIALS:
        raise ConfigError(
            f"{count:,} recipes with {file.seeds} seeds each are more than {MOST_TRIALS:,} trainings",
            where="recipes",
            remedy="name fewer values",
        )
    made = [(entry, recipe) for entry in file.recipes for recipe in _combinations(entry, schema, base)]
    recipes = _named(made)
    _refuse_twins(recipes)
    return recipes


def _count(entry: RecipeConfig) -> int:
    return prod(len(getattr(entry, key) or [None]) for key in KEYS)


def _combinations(entry: RecipeConfig, schema: Schema, base: Path) -> list[Recipe]:
    usual = "autoencoder" if schema.task == "reconstruct" else "cnn1d" if schema.steps > 1 else "mlp"
    networks: Sequence[str] = [""] if entry.model else entry.network or [usual]
    values = {key: getattr(entry, key) for key in KEYS}
    values["loss"] = entry.loss or ["cross_entropy" if schema.task == "classify" else "mse"]
    values["model"] = [_file(base / path) for path in entry.model or []] or [""]
    found: list[Recipe] = []
    for network in networks:
        values["network"] = [network]
        values["hidden"] = entry.hidden or [LAYERS.get(network, [])]
        found += [Recipe("", *map(_fixed, chosen)) for chosen in product(*(values[key] for key in KEYS))]
    return found


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _file(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"{path} does not exist", where="recipes.model", remedy="correct the path")
    return str(path)


def _named(made: Sequence[tuple[RecipeConfig, Recipe]]) -> list[Recipe]:
    """Names: the given one, or the network; behind it what differs among those that begin the same way."""
    heads = [
        entry.name or recipe.network or recipe.model.rsplit("/", 1)[-1].removesuffix(".onnx")
        for entry, recipe in made
    ]
    named = []
    for head, (entry, recipe) in zip(heads, made, strict=True):
        family = [other for its, (_, other) in zip(heads, made, strict=True) if its == head]
        differing = [key for key in _differing(family) if entry.name or key != "network"]
        named.append(
            replace(recipe, name=" ".join([head, *(_describe_setting(recipe, key) for key in differing)]))
        )
    return named


def _differing(recipes: Sequence[Recipe]) -> list[str]:
    return [key for key in KEYS if len({getattr(recipe, key) for recipe in recipes}) > 1]


def _describe_setting(recipe: Recipe, key: str) -> str:
    value = getattr(recipe, key)
    if key == "model":
        value = value.rsplit("/", 1)[-1]
    if isinstance(value, tuple):
        value = ",".join(map(str, value)) or "none"
    text = f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
    return f"{SHORT.get(key, key)}={text}"


def _refuse_twins(recipes: Sequence[Recipe]) -> None:
    name, count = Counter(recipe.name for recipe in recipes).most_common(1)[0]
    if count > 1:
        raise ConfigError(
            f"{count} recipes are called {name!r}", where="recipes", remedy="give them names, or remove one"
        )
