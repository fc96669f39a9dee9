"""What is proposed for a machine, and the YAML that says so."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from edged.workbench.proposal.draft import Draft, Labels, device_id, document, inline
from edged.workbench.proposal.machines import joined, machines
from edged.workbench.proposal.survey import Survey
from tests.sensor_payloads import HOUSE, LINES, PLUG, PUMP

MQTT = {"host": "localhost", "port": 1883}


def heard(*messages: tuple[str, bytes], times: int = 6, every: float = 1.0) -> Survey:
    survey = Survey()
    for i in range(times):
        for topic, payload in messages:
            survey.add(topic, payload.replace(b"21.3", b"21.%d" % (i % 3)), i * every)
    return survey


def draft_of(survey: Survey) -> Draft:
    return Draft.of(joined(machines(survey)))


def stream_of(draft: Draft) -> dict[str, Any]:
    values = yaml.safe_load(document(draft, MQTT, "a test"))
    assert (values["mqtt"], values["storage"]) == (MQTT, {"dir": "./state"})
    return dict(values["stream"])


def press(i: int, *, label: bool = True) -> bytes:
    state = b',"state":"%s"' % (b"ok", b"worn")[i % 2] if label else b""
    return b'{"temp":%f,"vib":{"x":0.%d}%s}' % (40.5 + i % 3, i, state)


def test_the_simple_form_where_it_suffices() -> None:
    survey = Survey()
    for i in range(6):
        survey.add("sensors/press-7", press(i), float(i))
    assert stream_of(draft_of(survey)) == {
        "topic": "sensors/press-7", "key": "topic:1", "features": ["temp", "vib.x"],
        "classes": ["ok", "worn"], "label": "state",
    }  # fmt: skip


def test_alike_machines_are_told_apart_by_their_topics() -> None:
    survey = Survey()
    for i in range(12):
        survey.add(f"sensors/press-{i % 2}", press(i // 2), float(i))
    stream = stream_of(draft_of(survey))
    assert (stream["topic"], stream["key"], stream["label"]) == ("sensors/+", "topic:1", "state")
    assert "missing" not in stream


def test_an_array_of_numbers_and_a_class_by_number() -> None:
    survey = heard(*(("sensors/a", b'{"x":[0.1,0.2,0.3],"y":%d}' % i) for i in range(3)))
    assert stream_of(draft_of(survey)) == {
        "topic": "sensors/a", "key": "topic:1", "features": 3, "classes": 3, "label": "y",
    }  # fmt: skip


def test_numbers_as_labels_that_are_no_classes() -> None:
    values = (b"0.5", b"1.25", b"7")
    survey = heard(*(("sensors/a", b'{"t":1.5,"target":%s}' % value) for value in values))
    stream = stream_of(draft_of(survey))
    assert (stream["label"], "classes" in stream) == ("target", False)
    sparse = heard(*(("sensors/a", b'{"t":1.5,"label":%d}' % value) for value in (3, 7, 10)))
    assert stream_of(draft_of(sparse))["classes"] == ["3", "7", "10"]


def test_booleans_need_the_joined_form() -> None:
    assert stream_of(draft_of(heard(("zigbee2mqtt/pump", PUMP)))) == {
        "topic": "zigbee2mqtt/pump",
        "key": {"fixed": "pump"},
        "features": ["temperature", "humidity", "vibration", "contact", "state"],
        "missing": {"fill": "last", "flags": True},
        "classes": ["normal", "fault"],
        "label": {"topic": "labels/pump", "hold": True},
    }


def test_partial_messages_and_quoted_numbers_need_it_too() -> None:
    for payloads in (
        [b'{"a":1.5,"b":2}', b'{"a":1.5}'],
        [b'{"a":"1.5"}'],
        [b'{"a":1,"b":null}', b'{"a":1,"b":2}'],
    ):
        stream = stream_of(draft_of(heard(*(("s/p", payload) for payload in payloads))))
        assert stream["missing"] == {"fill": "last", "flags": True}
    whole = stream_of(draft_of(heard(("s/p", b'{"a":1.5,"b":2}'))))
    assert "missing" not in whole
    few = stream_of(draft_of(heard(("s/p", b'{"a":1.5,"b":2}'), times=1)))
    assert "missing" in few, "one message says nothing of the next"


def test_several_topics_are_joined_at_the_busiest() -> None:
    survey = heard(("zigbee2mqtt/pump", PUMP), times=20)
    for i in range(6):
        survey.add("tele/plug/SENSOR", PLUG, 4.0 * i)
    for topic, payload in HOUSE:
        survey.add(topic, payload, 0.0, retained=True)
    stream = stream_of(draft_of(survey))
    assert (stream["topic"], stream["key"], stream["sample"]) == (
        "zigbee2mqtt/pump", {"fixed": "pump"}, "temperature",
    )  # fmt: skip
    mapped = {feature["name"]: feature for feature in stream["features"] if isinstance(feature, dict)}
    assert mapped["power"] == {
        "name": "power", "topic": "tele/plug/SENSOR", "path": "ENERGY.Power", "max_age": "1min",
    }  # fmt: skip
    assert mapped["living_room_window"] == {"name": "living_room_window", "topic": HOUSE[2][0]}
    assert "ts" not in stream, "clocks of several sensors differ"


def test_sensors_that_report_changes_only_are_sampled_by_the_clock() -> None:
    survey = Survey()
    for topic, payload in HOUSE:
        survey.add(topic, payload, 0.0, retained=True)
    stream = stream_of(draft_of(survey))
    assert stream["sample"] == "1min"
    assert [feature["topic"] for feature in stream["features"]] == [HOUSE[0][0], HOUSE[2][0]]
    assert not any("max_age" in feature for feature in stream["features"])


def test_a_selection_in_home_assistant_is_the_label() -> None:
    survey = Survey()
    for i in range(6):
        survey.add("homeassistant/sensor/pump_power/state", b"1%d.5" % i, float(i))
        survey.add("homeassistant/sensor/pump_flow/state", b"3.%d" % i, float(i))
        survey.add("homeassistant/input_select/pump_task/state", (b"idle", b"pumping")[i // 3], float(i))
    stream = stream_of(draft_of(survey))
    assert stream["classes"] == ["idle", "pumping"]
    assert stream["label"] == {"topic": "homeassistant/input_select/pump_task/state", "hold": True}


def test_line_protocol_needs_its_codec() -> None:
    stream = stream_of(draft_of(heard(("influx/cpu", LINES))))
    assert (stream["codec"], stream["features"]) == (
        "influx", ["fields.usage_idle", "fields.procs", "fields.ok"],
    )  # fmt: skip


def test_two_features_never_share_a_name() -> None:
    survey = heard(
        *((f"{node}/sensor/{what}/state", b"1.5") for node in ("a", "b") for what in ("temp", "hum"))
    )
    survey.add("tele/plug/SENSOR", PLUG, 1.0)
    survey.add("stat/plug/POWER", b"ON", 1.0)
    names = [f["name"] if isinstance(f, dict) else f for f in stream_of(draft_of(survey))["features"]]
    assert len({name.lower() for name in names}) == len(names) == 9


def test_a_field_names_the_machine_that_a_message_is_about() -> None:
    messages = [("plant/all", b'{"device":"p%d","t":%d.5}' % (i % 2, i)) for i in range(6)]
    assert stream_of(draft_of(heard(*messages)))["key"] == "device"


def test_without_labels_it_learns_what_is_normal() -> None:
    draft = replace(draft_of(heard(("zigbee2mqtt/pump", PUMP))), labels=Labels("normal"))
    stream = stream_of(draft)
    assert (stream["task"], stream["ts"]) == ("reconstruct", "last_seen")
    assert not {"classes", "label"} & set(stream)


def test_each_line_says_why() -> None:
    draft = draft_of(heard(("zigbee2mqtt/pump", PUMP), ("tele/plug/SENSOR", PLUG)))
    lines = document(draft, MQTT, "a test").splitlines()
    silent = [line for line in lines if line.startswith("  ") and "#" not in line]
    assert silent == ["  features:"]
    assert "mosquitto_pub -t labels/pump -m fault" in document(draft, MQTT, "a test")


@example(["0\x1f"], "")  # str.strip() takes it away, float() does not
@given(st.lists(st.text(max_size=20), min_size=1), st.text(max_size=30))
def test_whatever_names_and_words_are_there_it_is_yaml(words: list[str], name: str) -> None:
    survey = Survey()
    for word in words:
        message = {f"f{name}": 1.5, "state": word}
        survey.add(f"zigbee2mqtt/{name}", json.dumps(message).encode(), 1.0)
    found = machines(survey)
    if found:
        values = yaml.safe_load(document(Draft.of(found[0]), MQTT, name))
        assert values["stream"]["features"]
        assert values["device"]["id"] == device_id(found[0].name)


@pytest.mark.parametrize("value", [["on", "off"], "yes", "a: b", "1", {"fixed": "p # q"}, 6, True])
def test_values_come_back_as_they_were(value: Any) -> None:
    assert "\n" not in inline(value)
    assert yaml.safe_load(f"key: {inline(value)}  # why") == {"key": value}
