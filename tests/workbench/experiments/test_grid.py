"""From a recipe file to recipes: combinations, names, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from edged.errors import ConfigError
from edged.workbench.experiments.loading import load_recipes

if TYPE_CHECKING:
    from edged.workbench.experiments.grid import Recipe

STREAM = {"features": 4, "classes": 3}


def recipes(folder: Path, *entries: dict[str, Any], **keys: Any) -> list[Recipe]:
    path = folder / "recipes.yaml"
    path.write_text(yaml.safe_dump({"stream": STREAM, "recipes": list(entries)} | keys))
    return load_recipes(path).recipes


def refusal(folder: Path, text: str) -> str:
    path = folder / "r.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_recipes(path)
    return caught.value.line().replace(f"{folder}/", "")


def test_lists_stand_for_all_combinations(tmp_path: Path) -> None:
    found = recipes(
        tmp_path, {"hidden": [[16], [8, 4], []], "learning_rate": [0.1, 0.01], "batch": 32, "name": "net"}
    )
    assert [recipe.name for recipe in found] == [
        "net hidden=16 lr=0.1",
        "net hidden=16 lr=0.01",
        "net hidden=8,4 lr=0.1",
        "net hidden=8,4 lr=0.01",
        "net hidden=none lr=0.1",
        "net hidden=none lr=0.01",
    ]
    assert {recipe.batch for recipe in found} == {32}
    assert found[2].hidden == (8, 4)


def test_one_list_of_layers_is_one_recipe(tmp_path: Path) -> None:
    (recipe,) = recipes(tmp_path, {"hidden": [64, 32]})
    assert recipe.hidden == (64, 32)
    assert (recipe.name, recipe.network, recipe.loss) == ("mlp", "mlp", "cross_entropy")


def test_names_are_made_of_what_differs_among_those_of_one_head(tmp_path: Path) -> None:
    found = recipes(
        tmp_path, {"epochs": 3}, {"epochs": 5, "freeze": "layer1.*"}, {"name": "other", "epochs": 9}
    )
    assert [recipe.name for recipe in found] == [
        "mlp epochs=3 freeze=none",
        "mlp epochs=5 freeze=layer1.*",
        "other",
    ]


@pytest.mark.parametrize(
    ("stream", "network", "loss"),
    [
        ({"features": 3}, "mlp", "mse"),
        ({"features": 3, "target": "reconstruct"}, "autoencoder", "mse"),
        ({"features": 3, "classes": 2, "window": {"size": 16}}, "cnn1d", "cross_entropy"),
    ],
)
def test_a_recipe_without_anything_is_that_of_the_task(
    tmp_path: Path, stream: dict[str, Any], network: str, loss: str
) -> None:
    (recipe,) = recipes(tmp_path, {"name": "plain"}, stream=stream)
    assert (recipe.network, recipe.loss) == (network, loss)


COUNTS, MANY = ("batch", "epochs", "warmup", "patience"), list(range(1, 101))
HEAD = "stream: {features: 4, classes: 3}\n"
REFUSALS = {
    HEAD + "recipes:\n- {hiden: [4]}": "r.yaml:3: recipes.0.hiden: unknown key (did you mean hidden?)",
    HEAD + "recipes:\n- {hidden: [4]}\n- {batch: 0}": "r.yaml:4: recipes.1.batch: ",
    HEAD + "recipes:\n- {learning_rate: [0.1, fast]}": "r.yaml:3: recipes.0.learning_rate: ",
    HEAD
    + "recipes:\n- {learning_rate: [0.1, 0.1]}": "r.yaml:3: recipes.0.learning_rate: a name appears twice",
    HEAD + "recipes:\n- {batch: 4, batch: 5}": "r.yaml:3: recipes.0.batch: this key is given twice",
    HEAD
    + "recipes:\n- {patience: 2, replay_share: 0.5}": "r.yaml:3: recipes.0: patience would leave the last",
    HEAD + "recipes:\n- {momentum: 0.5}": "r.yaml:3: recipes.0: adamw has no momentum",
    HEAD
    + "recipes: [{}, {}]": "r.yaml: recipes: 2 recipes are called 'mlp' (give them names, or remove one)",
    HEAD + "recipes: [{model: no.onnx}]": "r.yaml: recipes.model: no.onnx does not exist (correct the path)",
    HEAD + "recipes: [{network: gru}]": "r.yaml: recipes.0: cnn1d and gru take windows",
    HEAD + "recipes: [{loss: mse}]": "r.yaml: recipes.0: loss mse is not for task classify",
    HEAD + "recipes: []": "r.yaml:2: recipes: ",
    HEAD + "metric: mae\nrecipes: [{}]": "r.yaml: metric mae is not for task classify",
    HEAD
    + "split: {train: 0.9, validation: 0.2}\nrecipes: [{}]": "r.yaml:2: split: train, validation and test",
    HEAD + "seeds: 100\nrecipes: [{epochs: [1, 2, 3], batch: [1, 2, 3, 4, 5, 6, 7]}]": "r.yaml: recipes: 21 ",
    HEAD + f"recipes: [{{{', '.join(f'{key}: {MANY}' for key in COUNTS)}}}]": "r.yaml: recipes: 100,000,000 ",
    "recipes: [{}]": "r.yaml: stream: this key is required",
    "stream: {features: 4, classes: 3, topic: '#'}\nrecipes: [{}]": "r.yaml: stream: stream.topic '#' covers",
    "- a": "r.yaml: the recipe file must be a mapping (begin with `stream:",
}


@pytest.mark.parametrize(("text", "line"), REFUSALS.items(), ids=range(len(REFUSALS)))
def test_a_refusal_names_file_line_and_key(tmp_path: Path, text: str, line: str) -> None:
    assert refusal(tmp_path, text).startswith(line)
