"""The configuration of a coordinator: its example, its page, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from edged.errors import ConfigError
from edged.fleet.config import CanariesSection, CoordinatorConfig, RolloutSection, load

if TYPE_CHECKING:
    from pydantic import BaseModel

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "configs" / "fleet.yaml"
GIVEN = {"fleet": "plant", "model": "model.safetensors"}
OWN = ("round", "choose", "train", "reduce", "gate")


def sections() -> dict[str, type[BaseModel]]:
    return {name: type(getattr(CoordinatorConfig(**GIVEN), name)) for name in OWN}


def test_the_example_is_valid_and_explains_itself() -> None:
    config = load(EXAMPLE)
    assert config.dir == EXAMPLE.parent / "fleet"
    settings = [line for line in EXAMPLE.read_text().splitlines() if line.startswith(" ")]
    assert [line for line in settings if " # " not in line] == []
    assert set(yaml.safe_load(EXAMPLE.read_text())) == set(CoordinatorConfig.model_fields) - {"bundle", "key"}


def test_every_key_is_in_the_page() -> None:
    page = (ROOT / "docs" / "fleet-reference.md").read_text(encoding="utf-8")
    keys = [f"{name}.{key}" for name, section in sections().items() for key in section.model_fields]
    more: dict[str, type[BaseModel]] = {"rollout": RolloutSection, "rollout.canaries": CanariesSection}
    keys += [f"{name}.{key}" for name, section in more.items() for key in section.model_fields]
    keys += [key for key in CoordinatorConfig.model_fields if key not in OWN]
    assert [key for key in keys if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"fleet": "a/b"}, "fleet"),
        ({"round": {"devices": 0}}, "round.devices"),
        ({"train": {"epochs": 1, "steps": 1}}, "either epochs or steps"),
        ({"gate": {"stages": [0.5, 0.1]}}, "stages grow"),
        ({"reduce": {"trim": 0.5}}, "reduce.trim"),
        ({"rounds": 3}, "did you mean round"),
        ({"reduce": {"how": "flower"}}, "reduce.how"),
        ({"mqtt": {"host": "broker.example"}}, "unencrypted"),
    ],
)
def test_what_is_refused_is_told_with_its_place(
    tmp_path: Path, changed: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(GIVEN | changed))
    with pytest.raises(ConfigError, match=problem):
        load(path)


def test_few_messages_are_in_flight() -> None:
    assert CoordinatorConfig(**GIVEN).broker.constants.receive_maximum == 256


def test_devices_are_told_what_it_says() -> None:
    settings = CoordinatorConfig(**GIVEN, train={"steps": 20, "clip_norm": 0.5}).settings
    assert (settings.epochs, settings.steps, settings.clip_norm) == (None, 20, 0.5)
    assert CoordinatorConfig(**GIVEN).settings.epochs == 1
