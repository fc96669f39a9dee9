"""Configurations that look harmless and are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.config.loader import load
from edged.errors import ConfigError

BASE = "device: {id: press-7}\nstream: {topic: s/#, features: [a, b]}\n"

REFUSE = {
    "endless size": BASE + "storage: {max_bytes: .inf}\n",
    "astronomic size": BASE + f"storage: {{max_bytes: '{'9' * 400}'}}\n",
    "deep nesting": "a: " + "[" * 3000 + "\n",
    "NaN gain": BASE + "gate: {min_gain: .nan}\n",  # every comparison with NaN is False
    "empty topic": "device: {id: a}\nstream: {features: 2, topic: ''}\n",
    "no topics": "device: {id: a}\nstream: {features: 2, topic: []}\n",
    "bad wildcard": "device: {id: a}\nstream: {features: 2, topic: 'a/#/b'}\n",
    "truth as width": "device: {id: a}\nstream: {features: true}\n",
    "class twice": "device: {id: a}\nstream: {features: 2, classes: [x, x]}\n",
    "forecast of no feature": "device: {id: a}\nstream: {features: 2, task: {forecast: {of: []}}}\n",
    "empty layer": BASE + "model: {hidden: [0]}\n",
    "gap longer than a window": BASE[:-2] + ", window: {size: 10, rate: 10, max_gap: 2s}}\n",
    "gap shorter than a period": BASE[:-2] + ", window: {size: 10, rate: 10, max_gap: 50ms}}\n",
    "window of one": BASE[:-2] + ", window: {size: 1}}\n",
    "window beyond all bounds": BASE[:-2] + ", window: {size: 60000}}\n",
    "majority of numbers": BASE[:-2] + ", window: {size: 10, label: majority}}\n",
    "open windows beyond the disk": BASE[:-2] + ", window: {size: 10000}}\n",
    "gru of readings": BASE + "model: {network: gru}\n",
    "mlp that reconstructs": BASE[:-2] + ", task: reconstruct}\nmodel: {network: mlp}\n",
    "plain text over a network": BASE + "mqtt: {host: broker.example}\n",
    "TLS on a Unix socket": BASE + "mqtt: {host: /run/mosquitto.sock, tls: {}}\n",
    "revocations of no CA": BASE + f"mqtt: {{tls: {{crl_file: {__file__}}}}}\n",
    "bundles in plain text": BASE + "install: {urls: ['http://fleet.example/']}\n",
    "bundles of any host": BASE + "install: {urls: ['https://fleet.example']}\n",
    "page without an address": BASE + "web: {listen: null}\n",
    "address without a port": BASE + "web: {listen: localhost}\n",
    "port of nonsense": BASE + "web: {listen: 'localhost:http'}\n",
    "TLS on the Unix socket": BASE
    + f"web: {{listen: null, unix_socket: s, tls: {{cert_file: {__file__}, key_file: {__file__}}}}}\n",
    "host with a port": BASE + "web: {allowed_hosts: ['press-7:80']}\n",
    "host with a path": BASE + "web: {allowed_hosts: ['press-7/x']}\n",
    "token of nowhere": BASE + "web: {tokens: {read: nowhere}}\n",
    "crontab of nonsense": BASE + "training: {every: a b c d e}\n",
}


@pytest.mark.parametrize("text", REFUSE.values(), ids=list(REFUSE))
def test_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load(path, {})


def test_a_window_is_taken_where_its_parts_fit(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(BASE[:-2] + ", window: {size: 10, rate: 10}}\nmodel: {network: gru}\n")
    rules = load(path, {}).stream.window
    assert rules is not None
    assert (rules.rules().stride, rules.rules().max_gap) == (5, 0.4)
    assert load(path, {}).stream.to_schema().width == 20


def refused(tmp_path: Path, text: str, environ: dict[str, str]) -> ConfigError:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as found:
        load(path, environ)
    return found.value


def test_unknown_section_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    assert refused(tmp_path, BASE, {"EDGED_FOO__BAR": "x"}).where == "environment variable EDGED_FOO__BAR"


def test_missing_file_from_the_environment_names_the_variable(tmp_path: Path) -> None:
    found = refused(tmp_path, BASE, {"EDGED_MODEL__BUNDLE": "/nope"})
    assert found.where == "environment variable EDGED_MODEL__BUNDLE"


def test_a_section_that_is_no_mapping_is_not_hidden_by_the_environment(tmp_path: Path) -> None:
    assert "mqtt" in refused(tmp_path, BASE + "mqtt: x\n", {"EDGED_MQTT__HOST": "h"}).where


@pytest.mark.parametrize(("name", "value"), [("EDGED_MQTT__USERNAME", "1234"), ("EDGED_DEVICE__ID", "7")])
def test_a_number_from_the_environment_is_text_where_text_is_meant(
    tmp_path: Path, name: str, value: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(BASE)
    config = load(path, {name: value})
    assert value in (config.device.id, config.mqtt.username)


@pytest.mark.parametrize("section", ["mqtt", "storage", "training"])
def test_an_empty_section_means_defaults(tmp_path: Path, section: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(BASE + f"{section}:\n  # all commented out\n")
    emptied = load(path, {})
    path.write_text(BASE)
    assert emptied == load(path, {})


def test_a_key_given_twice_is_named_in_full(tmp_path: Path) -> None:
    found = refused(tmp_path, BASE + "mqtt:\n  tls: {ca_file: x, ca_file: y}\n", {})
    assert found.where.endswith(":4: mqtt.tls.ca_file")


@pytest.mark.parametrize("text", ["mqtt: x\n", "mqtt: [1]\n"])
def test_no_class_names_of_ours_in_messages(tmp_path: Path, text: str) -> None:
    assert "MqttConfig" not in str(refused(tmp_path, BASE + text, {}))


def test_a_connection_in_plain_text_is_named_with_its_line_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(BASE + "mqtt:\n  host: broker.example\n")
    with pytest.raises(ConfigError) as problem:
        load(path, {})
    assert problem.value.where == f"{path}:3: mqtt"
    assert "unencrypted" in problem.value.line()
    assert "insecure: true" in problem.value.line()
    assert load(path, {"EDGED_MQTT__INSECURE": "true"}).mqtt.host == "broker.example"
