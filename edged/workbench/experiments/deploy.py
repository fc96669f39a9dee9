"""The winner as files that a device takes: a bundle that begins with its weights, and a configuration."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from edged.engines.inference import InferenceModel
from edged.errors import BundleError, ConfigError
from edged.host.child_process import run_module
from edged.storage.files.atomic import publish_file, staging_path
from edged.storage.models.bundles import Bundle, publish, refuse_foreign
from edged.workbench.experiments.job import MODEL, WEIGHTS, load_data

if TYPE_CHECKING:
    from edged.workbench.experiments.config import DeployConfig
    from edged.workbench.experiments.grid import Recipe
    from edged.workbench.experiments.job import TrialOrder
    from edged.workbench.experiments.loading import LoadedRecipes

BUILD_SECONDS = 300.0
ROWS = 256
TOLERANCE = 1e-4  # of answers, as a share of the largest

HEAD = """\
# Written by `edged recipe run`: {recipe} of {file}, trained on {data} with seed {seed}.
# The bundle beside this file begins with its weights. What is not here has its default:
# `edged config show` prints all of it, docs/config.md says what it means.

"""


def bundle_path(config: Path) -> Path:
    """Return the path of the bundle that a written configuration names."""
    return config.with_name(f"{config.stem}.bundle")


def refuse_taken(config: Path, *, force: bool) -> None:
    """Raise ConfigError when the configuration or its bundle has no place to be in, or is there already.

    With `force` they may be there; BundleError where something else has the bundle's name.
    """
    if config == bundle_path(config):
        raise ConfigError("this is where the bundle goes", where=str(config), remedy="name it .yaml")
    for path in (config, bundle_path(config)):
        if path.exists() and not force:
            remedy = "give --write another name, or add --force"
            raise ConfigError("exists already", where=str(path), remedy=remedy)
    refuse_foreign(bundle_path(config))
    if not config.parent.is_dir():
        raise ConfigError(
            "no such directory", where=str(config.parent), remedy="create it, or correct --write"
        )


def deploy(config: Path, loaded: LoadedRecipes, order: TrialOrder, *, file: str, data: str) -> None:
    """Write the bundle and the configuration of the training that `order` ordered, whose folder has weights.

    `file` and `data` are the names of the recipe file and of the recording, for the configuration's head.
    Raises BundleError when the bundle cannot be built, or does not answer as the trained model does.
    """
    bundle = bundle_path(config)
    recipe = _on_the_device(order.recipe, loaded.file.deploy)
    made = staging_path(bundle.resolve().parent, bundle.name)
    ordered = replace(order, recipe=recipe, bundle=made, weights=order.folder / WEIGHTS)
    answer = run_module("edged.workbench.experiments.build_bundle", ordered, BUILD_SECONDS)
    if answer is None or answer.code != 0:
        problem = "it took too long" if answer is None else answer.problem
        raise BundleError(f"the winner's bundle cannot be built: {problem}", where=str(bundle))
    try:
        _answers_alike(order, made)
        publish(made, bundle)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    text = yaml.safe_dump(_sections(loaded, order.recipe, bundle), sort_keys=False)
    head = HEAD.format(recipe=order.recipe.name, seed=order.seed, file=file, data=data)
    publish_file(config, (head + text).encode())


def _on_the_device(recipe: Recipe, chosen: DeployConfig) -> Recipe:
    """The recipe with the parameters that the device is to train."""
    if chosen.train is None and chosen.freeze is None:
        return recipe
    return replace(recipe, train=tuple(chosen.train or ()), freeze=tuple(chosen.freeze or ()))


def _answers_alike(order: TrialOrder, bundle: Path) -> None:
    data = load_data(order.data)
    rows = data.x[data.split.validation[:ROWS]]
    trained = InferenceModel(order.folder / MODEL).predict(rows)
    built = InferenceModel(Bundle.open(bundle).inference_model).predict(rows)
    if not np.allclose(built, trained, rtol=TOLERANCE, atol=TOLERANCE * float(np.abs(trained).max())):
        raise BundleError("the bundle does not answer as the trained model does", where="the winner's bundle")


def _sections(loaded: LoadedRecipes, recipe: Recipe, bundle: Path) -> dict[str, Any]:
    file = loaded.file
    training: dict[str, Any] = {
        "engine": file.engine,
        "batch": recipe.batch,
        "learning_rate": recipe.learning_rate,
    }
    if recipe.replay_share is not None:
        training["new_share"] = round(1 - recipe.replay_share, 6)
    if file.threads > 1:
        training["threads"] = file.threads
    return {
        "device": {"id": file.name},
        "stream": loaded.stream,
        "model": {"bundle": f"./{bundle.name}"},
        "training": training,
    }
