"""Which topics belong together, what are features, and which machines are alike."""

from __future__ import annotations

import pytest

from edged.errors import ConfigError
from edged.workbench.proposal.machines import Machine, carries_readings, joined, machines
from edged.workbench.proposal.survey import Survey
from tests.sensor_payloads import (
    CHIRPSTACK,
    HOUSE,
    LINES,
    NEURON,
    NEURON_TAGS,
    NO_READINGS,
    PLUG,
    PUMP,
    SHELLY,
    TELEGRAF,
    TELEGRAF_BATCH,
)


def surveyed(*messages: tuple[str, bytes], times: int = 1) -> Survey:
    survey = Survey()
    for second in range(times):
        for topic, payload in messages:
            survey.add(topic, payload, float(second))
    return survey


def features(machine: Machine) -> list[str]:
    return [candidate.name for candidate in machine.candidates() if not candidate.why]


@pytest.mark.parametrize(
    ("topic", "payload", "name", "expected"),
    [
        ("zigbee2mqtt/pump", PUMP, "pump", ["temperature", "humidity", "vibration", "contact", "state"]),
        ("tele/plug/SENSOR", PLUG, "plug",
         ["ENERGY.Power", "ENERGY.Factor", "ENERGY.Voltage", "ENERGY.Current"]),
        ("shellyplus1pm-a1/status/switch:0", SHELLY, "shellyplus1pm-a1",
         ["output", "apower", "voltage", "current", "temperature.tC"]),
        ("neuron/plant/upload", NEURON, "plant", ["values.tag1"]),
        ("application/1/device/70b3/event/up", CHIRPSTACK, "70b3", ["object.temp", "object.door"]),
        ("telegraf/host/cpu", TELEGRAF, "host", ["fields.usage_idle"]),
        ("neuron/plant/upload", NEURON_TAGS, "plant", ["tags[name=tag1].value"]),
        ("telegraf/host/all", TELEGRAF_BATCH, "host",
         ["metrics[name=cpu].fields.usage_idle", "metrics[name=mem].fields.free"]),
        ("influx/cpu", LINES, "cpu", ["fields.usage_idle", "fields.procs", "fields.ok"]),
        ("node/sensor/temp/state", b"21.30", "node", ["temp"]),
        ("plant/press-7/vibration", b"0.3", "press-7", ["vibration"]),
        ("sensors/press-7", b'{"x":1,"y":2,"z":3}', "press-7", ["x", "y", "z"]),
    ],
)  # fmt: skip
def test_every_well_known_system_is_a_machine_with_its_features(
    topic: str, payload: bytes, name: str, expected: list[str]
) -> None:
    (found,) = machines(surveyed((topic, payload)))
    assert (found.name, features(found), found.filters) == (name, expected, [topic])


def test_what_is_no_feature_says_why() -> None:
    (pump,) = machines(surveyed(("zigbee2mqtt/pump", PUMP)))
    (plug,) = machines(surveyed(("tele/plug/SENSOR", PLUG)))
    why = {c.name: c.why for machine in (pump, plug) for c in machine.candidates() if c.why}
    assert set(why) == {
        "battery",
        "linkquality",
        "action",
        "last_seen",
        "update.state",
        "Time",
        "ENERGY.Total",
    }
    assert "change: rate" in why["ENERGY.Total"]
    assert why["action"] == "no value yet"


def test_topics_without_readings_make_no_machine() -> None:
    assert [topic for topic, _ in NO_READINGS if carries_readings(topic, "edged")] == []
    assert machines(surveyed(*NO_READINGS)) == []
    assert machines(surveyed(("logs/app", b"started at last"))) == []


def test_entities_of_home_assistant_are_one_machine_by_their_names() -> None:
    (room,) = machines(surveyed(*HOUSE))
    assert (room.name, features(room), len(room.topics)) == ("living_room", ["temperature", "window"], 3)


def test_topics_of_one_plug_are_one_machine() -> None:
    (plug,) = machines(surveyed(("tele/plug/SENSOR", PLUG), ("stat/plug/POWER", b"ON")))
    assert features(plug)[-1] == "POWER"
    assert plug.filters == ["tele/plug/SENSOR", "stat/plug/POWER"]


def test_alike_machines_share_a_filter_and_their_words() -> None:
    found = surveyed(("sensors/press-1", b'{"t":1.5,"s":"ok"}'), ("sensors/press-2", b'{"t":3.5,"s":"worn"}'))
    (presses,) = machines(found)
    assert (presses.filters, presses.level, presses.keys) == (["sensors/+"], 1, ("press-1", "press-2"))
    by_name = {candidate.name: candidate for candidate in presses.candidates()}
    assert by_name["t"].field.shown == "1.5 to 3.5"
    assert sorted(by_name["s"].field.words) == ["ok", "worn"]


def test_alike_machines_of_several_topics_each() -> None:
    bare = [(f"plant/{name}/{what}", b"1.5") for name in ("a", "b") for what in ("temp", "flow")]
    (plant,) = machines(surveyed(*bare))
    assert plant.filters == ["plant/+/temp", "plant/+/flow"]
    assert features(plant) == ["temp", "flow"]


def test_a_filter_never_covers_topics_of_others() -> None:
    found = machines(surveyed(("a/x", b'{"t":1.5}'), ("a/y", b'{"t":1.5}'), ("a/door", b'{"contact":true}')))
    assert sorted(machine.filters[0] for machine in found) == ["a/door", "a/x", "a/y"]


def test_the_busiest_machine_comes_first() -> None:
    survey = surveyed(("zigbee2mqtt/door", b'{"contact":true}'), times=9)
    survey.add("zigbee2mqtt/pump", PUMP, 1.0)
    assert [machine.name for machine in machines(survey)] == ["door", "pump"]
    survey.add("zigbee2mqtt/pump", PUMP, 2.0)
    assert [machine.name for machine in machines(survey)] == ["pump", "door"]
    survey.add("zigbee2mqtt/rich", PUMP.replace(b"}}", b'},"more":1,"and":1}'), 1.0, retained=True)
    assert [machine.name for machine in machines(survey)] == ["pump", "door", "rich"]


def test_several_machines_joined_keep_all_topics() -> None:
    found = machines(surveyed(("zigbee2mqtt/pump", PUMP), ("tele/plug/SENSOR", PLUG)))
    both = joined(found)
    assert (both.name, len(both.topics)) == (found[0].name, 2)


def test_machines_of_another_format_cannot_be_joined() -> None:
    found = machines(surveyed(("a/pump", PUMP), ("a/pump/lines", LINES), ("b/pump", LINES)))
    assert sorted(machine.lines for machine in found) == [False, True, True]
    with pytest.raises(ConfigError, match=r"one format: .* is line protocol, a/pump is not"):
        joined(found)


@pytest.mark.parametrize(
    ("payloads", "label"),
    [
        ([b'{"t":1.5,"state":"ok"}', b'{"t":1.5,"state":"worn"}'], "state"),
        ([b'{"t":1.5,"label":0}', b'{"t":1.5,"label":1}'], "label"),
        ([b'{"t":1.5,"state":"ON"}', b'{"t":1.5,"state":"OFF"}'], None),
        ([b'{"x":[1,2],"y":0}', b'{"x":[1,2],"y":1}'], "y"),
        ([b'{"t":1.5,"place":"here"}', b'{"t":1.5,"place":"there"}'], None),
    ],
)
def test_a_field_of_few_words_with_the_name_of_a_label_is_one(
    payloads: list[bytes], label: str | None
) -> None:
    (found,) = machines(surveyed(*(("s/p", payload) for payload in payloads)))
    assert [c.name for c in found.candidates() if c.label] == ([label] if label else [])
