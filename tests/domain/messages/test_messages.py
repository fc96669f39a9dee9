"""The schemas are JSON Schema, they say what the device does, and its own validator reads them alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.config import Config, loader
from edged.domain.messages.requests import REQUESTS, SETTABLE
from edged.domain.messages.schema import check
from edged.domain.messages.sent import ANSWERS, schemas
from edged.errors import ConfigError
from edged.mqtt.topics import Topics
from tests.commands import edged, write_config

WORDS = st.sampled_from(
    ["steps", "epochs", "from", "engine", "dry_run", "version", "what", "rows", "confirm", "level", "keys",
     "key", "labels", "label", "target", "learning_rate", "model", "ingest", "samples", "auto", "champion"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**7) | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def fits(schema: dict[str, Any], value: Any) -> bool:
    try:
        check(schema, value)
    except ConfigError:
        return False
    return True


@given(name=st.sampled_from(sorted(REQUESTS)), request=st.dictionaries(WORDS, VALUES, max_size=4))
def test_requests_are_judged_as_json_schema_says(name: str, request: dict[str, Any]) -> None:
    schema = REQUESTS[name]
    assert fits(schema, request) == jsonschema.Draft202012Validator(schema).is_valid(request)


@given(ids=st.integers(0, 1100))
def test_lengths_of_lists_are_judged_as_json_schema_says(ids: int) -> None:
    schema, request = REQUESTS["labels.confirm"], {"ids": ["a"] * ids}
    assert fits(schema, request) == jsonschema.Draft202012Validator(schema).is_valid(request)


@given(name=st.sampled_from(sorted(ANSWERS)), answer=VALUES)
def test_answers_are_judged_as_json_schema_says(name: str, answer: Any) -> None:
    schema = ANSWERS[name]
    assert fits(schema, answer) == jsonschema.Draft202012Validator(schema).is_valid(answer)


@pytest.mark.parametrize(
    ("name", "request_", "word"),
    [
        ("train", {"steps": 0}, "steps: 0 is not at least 1"),
        ("train", {"learning_rate": 10}, "learning_rate: 10 is not below 10"),
        ("train", {"epochs": 0}, "epochs: 0 is not above 0"),
        ("train", {"speed": 1}, "speed: unknown option (known: steps, epochs"),
        ("ping", {"speed": 1}, "speed: unknown option (it takes none)"),
        ("train", {"from": "scratch"}, 'from: "scratch" is none of checkpoint, champion, bundle'),
        ("promote", {}, "version: this is required"),
        ("wipe", {"confirm": "a", "what": []}, "what: it has 0 entries, at least 1 are accepted"),
        ("labels.confirm", {"ids": ["a"] * 1001}, "ids: it has 1001 entries, at most 1000 are accepted"),
        ("wipe", {"confirm": "a", "what": ["samples", 1]}, "what[1]: 1 is none of"),
        ("config.get", {"keys": [True]}, "keys[0]: true is no string"),
        ("pin", {"version": {"a": "x" * 80}}, "is no integer"),
    ],
)
def test_what_does_not_fit_is_named(name: str, request_: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError) as problem:
        check(REQUESTS[name], request_)
    assert word in problem.value.line()


def test_every_command_has_a_request_and_an_answer_and_all_schemas_are_schemas() -> None:
    assert set(REQUESTS) == set(ANSWERS)
    assert all(told["description"] for told in REQUESTS.values())
    for name, schema in schemas().items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["title"] == name
    asked = schemas()["request/train"]["properties"]
    assert {"transaction", "ts", "expires", "steps", "from"} <= set(asked)
    root = Topics("edged/d")
    topics = {
        root.status,
        root.metrics,
        root.events,
        root.predictions,
        root.state("model"),
        root.request("train"),
    }
    assert {topic.removeprefix("edged/d/") for topic in topics} <= set(schemas())


def test_schemas_are_written_one_file_a_topic(tmp_path: Path) -> None:
    answer = edged("contract", "schemas", "-o", tmp_path)
    assert answer.code == 0
    for name in ("state/model", "request/config.set", "response/train", "events"):
        assert json.loads((tmp_path / f"{name}.json").read_text())["title"] == name
    assert set(edged("contract", "schemas").json) == set(schemas())


def test_what_may_be_set_is_a_key_of_the_configuration() -> None:
    for section, keys in SETTABLE.items():
        model = Config.model_fields[section].annotation
        assert set(keys) <= set(model.model_fields)  # type: ignore[union-attr]


def test_what_was_set_lies_between_the_file_and_the_environment(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"features": 2, "classes": 2}, training={"steps": 10, "warmup": 3})
    overlay = tmp_path / "state" / loader.OVERLAY
    overlay.parent.mkdir()
    overlay.write_text('{"training.steps": 20, "gate.probation": 30, "mqtt.host": "elsewhere"}')
    config = loader.load(path, {"EDGED_GATE__PROBATION": "40"})
    assert (config.training.steps, config.training.warmup, config.gate.probation) == (20, 3, 40)
    assert config.mqtt.host == "localhost", "not one of those that may be set"
    with pytest.raises(ConfigError, match=r"config\.set: training\.steps"):
        loader.load(path, {}, overlay={"training.steps": 0})
    assert loader.load(path, {}, overlay={}).training.steps == 10


@pytest.mark.parametrize("kept", ["{broken", "[1]", '{"training.steps": -1}', '{"training.steps": 1e99}'])
def test_what_was_set_and_cannot_be_used_is_left_out(tmp_path: Path, kept: str) -> None:
    path = write_config(tmp_path, {"features": 2, "classes": 2})
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / loader.OVERLAY).write_text(kept)
    ignored: list[str] = []
    assert loader.load_all(path, {}, ignored=ignored)[0].training.steps == 50
    assert len(ignored) == ("steps" in kept)
