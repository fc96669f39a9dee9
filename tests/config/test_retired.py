"""Keys of earlier versions: each is an error that names its successor, wherever it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edged.config import loader
from edged.config.retired import RETIRED
from edged.errors import ConfigError
from tests.commands import edged, write_config

ROOT = Path(__file__).parents[2]
STREAM = {"features": 2, "target": "reconstruct"}
every_key = pytest.mark.parametrize("dotted", RETIRED)


def nested(dotted: str, value: object) -> dict[str, Any]:
    """The sections of a configuration with this one key."""
    for name in reversed(dotted.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


@every_key
@pytest.mark.parametrize("value", [3, None])
def test_a_retired_key_in_the_file_names_line_and_successor(
    tmp_path: Path, dotted: str, value: int | None
) -> None:
    path = write_config(tmp_path, STREAM, **nested(dotted, value))
    name = dotted.rpartition(".")[2]
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text.strip().startswith(name))
    with pytest.raises(ConfigError) as refused:
        loader.load(path, {})
    assert refused.value.line() == f"{path}:{line}: {dotted}: this key was removed ({RETIRED[dotted]})"


@every_key
def test_a_retired_key_in_the_environment_names_variable_and_successor(tmp_path: Path, dotted: str) -> None:
    name = "EDGED_" + dotted.upper().replace(".", "__")
    with pytest.raises(ConfigError) as refused:
        loader.load(write_config(tmp_path, STREAM), {name: "3"})
    assert refused.value.line() == f"environment variable {name}: this key was removed ({RETIRED[dotted]})"


@every_key
def test_a_retired_key_that_was_set_by_command_is_told_and_the_others_hold(
    tmp_path: Path, dotted: str
) -> None:
    path = write_config(tmp_path, STREAM)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / loader.OVERLAY).write_text(json.dumps({dotted: 3, "training.steps": 70}))
    ignored: list[str] = []
    assert loader.load(path, {}, ignored=ignored).training.steps == 70
    assert ignored == [f"config.set: {dotted}: this key was removed ({RETIRED[dotted]})"]


@every_key
def test_a_retired_key_is_gone_and_its_successor_is_there(dotted: str) -> None:
    """By the page that is made from the configuration's own model."""
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8").partition("## Removed keys")[0]
    successor = next(word.rstrip(":") for word in RETIRED[dotted].split() if "." in word)
    assert f"`{dotted}`" not in page
    assert f"| `{successor}` |" in page or f"## {successor}\n" in page


def test_the_command_line_reports_a_retired_key_in_one_line(tmp_path: Path) -> None:
    path = write_config(tmp_path, STREAM, anomaly={"raise_after": 3})
    answer = edged("config", "check", path)
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert "anomaly.raise_after: this key was removed (use anomaly.sensitivity: low, normal or high)" in line
