"""The examples: each is valid and explains itself line by line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from edged.config.loader import load, load_all
from edged.errors import ConfigError
from tests.commands import generated_page_is_current

ROOT = Path(__file__).parents[2]
# fleet.yaml is no device's: see tests/fleet/coordinator/test_config.py.
EXAMPLES = sorted(path for path in (ROOT / "configs").glob("*.yaml") if path.stem != "fleet")
SEVERAL = ROOT / "configs" / "streams" / "plant.yaml"
EVALUATIONS = sorted((ROOT / "configs" / "evaluate").glob("*.yaml"))
TASKS = {
    "classifier": "classify",
    "anomaly": "reconstruct",
    "forecast": "forecast",
    "low-memory": "classify",
    "regression": "regress",
    "sparkplug": "classify",
    "web": "classify",
    "windows": "classify",
}
TO_EDIT = {"mqtt.host", "storage.dir"}  # every user has to look at these


def test_there_is_an_example_for_every_task() -> None:
    assert {example.stem: load(example, {}).stream.resolved_task for example in EXAMPLES} == TASKS


def test_recorded_streams_have_examples_of_their_own() -> None:
    tasks = {example.stem: load(example, {}).stream.resolved_task for example in EVALUATIONS}
    assert tasks == {"nasa_bearing": "reconstruct", "cmapss_fd001": "regress"}


@pytest.mark.parametrize("example", [*EXAMPLES, *EVALUATIONS], ids=lambda path: path.stem)
def test_an_example_repeats_no_default(tmp_path: Path, example: Path) -> None:
    """A line that makes no difference is one that a reader has to understand for nothing."""
    values, shown = yaml.safe_load(example.read_text()), load(example, {}).model_dump_json()
    idle = []
    for section, key in ((name, key) for name, keys in values.items() for key in keys):
        copy = tmp_path / "configs" / "edged.yaml"
        copy.parent.mkdir(exist_ok=True)
        less = {**values, section: {k: v for k, v in values[section].items() if k != key}}
        copy.write_text(yaml.safe_dump(less), encoding="utf-8")
        with suppress(ConfigError):
            changed = load(copy, {})
            if changed.model_dump_json().replace(str(copy.parent), str(example.parent)) == shown:
                idle.append(f"{section}.{key}")
    assert set(idle) <= TO_EDIT


def test_several_streams_have_an_example() -> None:
    tasks = {config.name: config.stream.resolved_task for config in load_all(SEVERAL, {})}
    assert tasks == dict.fromkeys(("pump-1", "pump-2", "pump-3"), "classify") | {"fan": "reconstruct"}


@pytest.mark.parametrize("example", [*EXAMPLES, *EVALUATIONS, SEVERAL], ids=lambda path: path.stem)
def test_every_line_of_an_example_is_explained(example: Path) -> None:
    settings = [line for line in example.read_text().splitlines() if line.startswith(" ")]
    assert [line for line in settings if " # " not in line] == []


def test_the_reference_is_up_to_date() -> None:
    assert generated_page_is_current("make_config_reference.py")
