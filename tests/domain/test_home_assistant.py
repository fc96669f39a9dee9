"""Discovery messages: names that never collide, and what each kind of stream gets."""

from __future__ import annotations

import json
import re
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.home_assistant import (
    MOST_VALUES,
    AnnouncedDevice,
    announcement,
    escape,
    key_announcement,
    topic,
)

ALL = {"train", "rollback", "pause", "resume", "label", "label.undo", "accept"}
IDS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,12}\Z")
ROOTS = st.text("abz019_./-µ ", min_size=1, max_size=8)


def device(**more: Any) -> AnnouncedDevice:
    values: dict[str, Any] = {
        "id": "press-7", "name": "Press 7", "root": "edged/press-7", "task": "classify", "version": "1",
        "commands": ALL, "classes": ("ok", "worn"),
    }  # fmt: skip
    return AnnouncedDevice(**values | more)


def names(message: dict[str, Any]) -> set[str]:
    return {part["name"] for part in message["components"].values()}


@given(st.text(max_size=12), st.text(max_size=12))
def test_different_names_are_never_written_alike(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)
    assert re.fullmatch("[A-Za-z0-9_-]*", escape(one))


@given(st.tuples(ROOTS, IDS), st.tuples(ROOTS, IDS), st.none() | st.text(max_size=5))
def test_devices_never_share_a_topic_or_an_id(
    one: tuple[str, str], other: tuple[str, str], key: str | None
) -> None:
    places = {topic("homeassistant", f"{root}/{name}", key) for root, name in (one, other)}
    assert len(places) == len({one, other})
    ids = [
        part["unique_id"]
        for root, name in {one, other}
        for message in (
            announcement(device(root=f"{root}/{name}"), ["a"]),
            key_announcement(device(root=f"{root}/{name}"), "a"),
            key_announcement(device(root=f"{root}/{name}"), "b"),
        )
        for part in message["components"].values()
    ]
    assert len(ids) == len(set(ids))


def test_ids_that_an_earlier_version_confused() -> None:
    pairs = [
        ("edged", "hall.x"),
        ("edged", "hall__x"),
        ("plant", "hall.x"),
        ("edged/a", "x"),
        ("edged_2f_a", "x"),
    ]
    assert len({topic("homeassistant", f"{root}/{name}") for root, name in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("task", "more", "wanted"),
    [
        ("classify", {}, {"Prediction", "Confidence", "Label as", "Label wanted"}),
        ("regress", {}, {"Prediction"}),
        ("forecast", {"targets": 3}, {"Prediction 1", "Prediction 2", "Prediction 3"}),
        ("reconstruct", {}, {"Anomaly score", "Alarm", "Mark as normal"}),
        ("classify", {"predictions": False}, set()),
        ("classify", {"commands": set()}, {"Prediction", "Confidence", "Label wanted"}),
    ],
)
def test_entities_of_a_key(task: Any, more: dict[str, Any], wanted: set[str]) -> None:
    assert names(key_announcement(device(task=task, **more), "pump")) == wanted


def test_values_are_bounded() -> None:
    assert len(names(key_announcement(device(task="forecast", targets=500), "pump"))) == MOST_VALUES


def test_what_went_is_named_with_its_platform_alone() -> None:
    message = announcement(device(), (), gone={"train": "button", "old": "sensor"})
    assert message["components"]["old"] == {"platform": "sensor"}
    assert message["components"]["train"]["name"] == "Train now"


@given(st.text(max_size=20), st.sampled_from(["ok", "worn", "off"]))
def test_a_select_sends_what_the_command_takes(key: str, option: str) -> None:
    """Whatever a key holds, quotes and braces too."""
    template = key_announcement(device(), key)["components"]["label"]["command_template"]
    environment = jinja2.Environment()  # noqa: S701  no HTML
    environment.filters["to_json"] = json.dumps
    if "\r" in key or "\n" in key:
        return  # a template has one kind of line end
    sent = json.loads(environment.from_string(template).render(value=option))
    assert sent == {"key": key, "hold": True, "label": None if option == "off" else option}


def test_late_events_are_none() -> None:
    template = announcement(device(), ())["components"]["drift"]["value_template"]
    environment = jinja2.Environment()  # noqa: S701  no HTML
    environment.filters["to_json"] = json.dumps
    told = {"event": "drift_detected", "level": "drift", "source": "error", "features": []}
    rendered = environment.from_string(template)
    assert json.loads(rendered.render(value_json=told))["event_type"] == "drift"
    assert rendered.render(value_json=told | {"historical": True}) == ""
    assert rendered.render(value_json={"event": "started"}) == ""
