"""Several streams in one configuration: what each gets, and that every mistake is named with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edged.config.loader import OVERLAY, load, load_all, load_stream
from edged.errors import ConfigError, ConfigFileError

PUMPS = """\
device: {id: plant}
stream: {features: [temp, vib], classes: [good, worn]}
gate: {min_gain: 0.1, probation_drop: 0.2}
training: {new_labels: 50}
streams:
  - {name: pump-1, stream: {topic: pumps/1}}
  - name: pump-2
    stream: {topic: pumps/2, features: 4}
    gate: {min_gain: 0.3}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "edged.yaml"
    path.write_text(PUMPS, encoding="utf-8")
    return path


def refused(file: Path, text: str) -> list[str]:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigFileError) as problem:
        load_all(file, {})
    return problem.value.lines()


def test_each_stream_has_its_own_sections_over_those_at_the_top(file: Path) -> None:
    first, second = load_all(file, {})
    assert (first.name, second.name) == ("pump-1", "pump-2")
    assert (first.stream.width, second.stream.width) == (2, 4)
    assert (first.gate.min_gain, second.gate.min_gain) == (0.1, 0.3)
    assert first.gate.probation_drop == second.gate.probation_drop == 0.2
    assert second.stream.classes == ["good", "worn"]


def test_state_and_topics_of_a_stream_are_below_those_of_the_device(file: Path) -> None:
    config = load(file, {}, stream="pump-2")
    assert config.topic_root == "edged/plant/pump-2"
    assert config.device_root == "edged/plant"
    assert config.storage.dir == file.parent / "state" / "streams" / "pump-2"
    assert config.device_dir == file.parent / "state"
    assert config.client_id == "edged-plant"


def test_a_configuration_with_one_stream_is_what_it_was(file: Path) -> None:
    file.write_text("device: {id: a}\nstream: {features: 2}\n")
    (config,) = load_all(file, {})
    assert config == load(file, {})
    assert (config.name, config.topic_root, config.storage.dir) == ("", "edged/a", file.parent / "state")


def test_a_command_must_name_one_of_several_streams(file: Path) -> None:
    with pytest.raises(ConfigError, match="several streams") as problem:
        load(file, {})
    assert problem.value.remedy == "add --stream with one of pump-1, pump-2"
    with pytest.raises(ConfigError, match="no stream 'pump-9'") as problem:
        load(file, {}, stream="pump-9")
    assert "pump-1, pump-2" in problem.value.remedy
    assert load_stream(file, "pump-2").width == 4
    file.write_text("device: {id: a}\nstream: {features: 2}\n")
    with pytest.raises(ConfigError, match="has no name"):
        load(file, {}, stream="pump-1")


def test_every_mistake_is_named_with_stream_key_and_line(file: Path) -> None:
    told = refused(
        file,
        "device: {id: plant}\n"
        "gate: {min_gain: lots}\n"
        "streams:\n"
        "  - {name: a, stream: {features: 2}}\n"
        "  - name: a\n"
        "    stream: {features: 3}\n"
        "  - name: status\n"
        "  - name: b\n"
        "    stream: {topic: b}\n"
        "    gate: {probation_drop: -1, gain: 3}\n"
        "    web: {port: 8000}\n"
        "  - name: c\n"
        "    storage: {dir: elsewhere}\n"
        "  - stream: {features: 2}\n",
    )
    text = "\n".join(told)
    for place in (
        ":2: gate.min_gain",
        ":5: streams[1].name: there is another stream 'a'",
        ":7: streams[2].name: 'status' is a topic of the device itself",
        ":11: streams[3].web: unknown key",
        ":13: streams[4].storage.dir: this key belongs to the device",
        ":14: streams[5].name: this key is required",
    ):
        assert f"{file}{place}" in text, text
    assert len(told) == 6, text


def test_mistakes_within_a_stream_have_their_own_place(file: Path) -> None:
    told = refused(
        file,
        "device: {id: plant}\n"
        "streams:\n"
        "  - name: a\n"
        "    stream: {topic: b}\n"
        "    gate: {probation_drop: -1, gain: 3}\n"
        "  - name: b\n"
        "  - name: c\n"
        "    stream:\n"
        "      features:\n"
        "        - {name: x, topic: a/#/b}\n",
    )
    places = [line.split(": ")[1] for line in told]
    assert sorted(places[:3]) == [
        "streams[0].gate.gain",
        "streams[0].gate.probation_drop",
        "streams[0].stream.features",
    ]
    assert places[3] == "streams[1].stream"
    assert places[4].startswith("streams[2].stream.features")


@pytest.mark.parametrize("given", ["{}", "[]", "3", "{a: {}}"])
def test_streams_are_a_list(file: Path, given: str) -> None:
    (told,) = refused(file, f"device: {{id: a}}\nstreams: {given}\n")
    assert f"{file}:2: streams: expected a list of streams" in told


def test_a_fleet_names_its_stream(file: Path) -> None:
    (told,) = refused(file, PUMPS + "fleet: {name: plants}\n")
    assert "fleet.stream: this key is required (name one of pump-1, pump-2)" in told
    (told,) = refused(file, PUMPS + "fleet: {name: plants, stream: pump-3}\n")
    assert "no stream 'pump-3'" in told
    file.write_text(PUMPS + "fleet: {name: plants, stream: pump-2}\n")
    first, second = load_all(file, {})
    assert first.fleet is None
    assert second.fleet is not None


def test_flower_is_for_one_stream(file: Path) -> None:
    fleet = "fleet: {flower: true}\nweb: {unix_socket: edged.sock}\n"
    (told,) = refused(file, PUMPS + fleet)
    assert f"{file}:10: fleet.flower: Flower takes a device with one stream" in told


def test_what_was_set_holds_for_the_device_or_for_one_stream(file: Path) -> None:
    state = file.parent / "state"
    (state / "streams" / "pump-2").mkdir(parents=True)
    (state / OVERLAY).write_text(json.dumps({"training.steps": 70, "gate.min_gain": 0.5}))
    (state / "streams" / "pump-2" / OVERLAY).write_text(json.dumps({"gate.min_gain": 0.6}))
    first, second = load_all(file, {})
    assert (first.training.steps, second.training.steps) == (70, 70)
    assert (first.gate.min_gain, second.gate.min_gain) == (0.5, 0.6)
    changed = load(file, {}, stream="pump-2", overlay={})
    assert changed.gate.min_gain == 0.5


def test_the_environment_is_over_every_stream(file: Path) -> None:
    environ = {"EDGED_GATE__MIN_GAIN": "0.5", "EDGED_STORAGE__DIR": "/var/lib/x"}
    first, second = load_all(file, environ)
    assert first.gate.min_gain == second.gate.min_gain == 0.5
    assert second.storage.dir == Path("/var/lib/x/streams/pump-2")
