"""Configurations that look harmless and are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edged.config.loader import load
from edged.errors import ConfigError

BASE = "device: {id: press-7}\nstream: {topic: s/#, features: [a, b]}\n"

REFUSE = {
    "endless size": (
        BASE + "storage: {max_bytes: .inf}\n",
        "expected a size such as 512MiB, got 'inf'",
    ),
    "astronomic size": (
        BASE + f"storage: {{max_bytes: '{'9' * 400}'}}\n",
        "expected a size such as 512MiB, got '9999",
    ),
    "deep nesting": (
        "a: " + "[" * 3000 + "\n",
        "nested too deeply",
    ),
    "NaN gain": (
        BASE + "gate: {min_gain: .nan}\n",
        "gate.min_gain: input should be a finite number, not nan",
    ),  # every comparison with NaN is False
    "empty topic": (
        "device: {id: a}\nstream: {features: 2, topic: ''}\n",
        "stream.topic: '' is not a topic filter",
    ),
    "no topics": (
        "device: {id: a}\nstream: {features: 2, topic: []}\n",
        "stream.topic: expected a list of 1 or more, got 0",
    ),
    "bad wildcard": (
        "device: {id: a}\nstream: {features: 2, topic: 'a/#/b'}\n",
        "'a/#/b' is not a topic filter",
    ),
    "truth as width": (
        "device: {id: a}\nstream: {features: true}\n",
        "expected a number, or a list of names and mappings, got True",
    ),
    "class twice": (
        "device: {id: a}\nstream: {features: 2, classes: [x, x]}\n",
        "stream.classes: a name appears twice",
    ),
    "forecast of no feature": (
        "device: {id: a}\nstream: {features: 2, task: {forecast: {of: []}}}\n",
        "stream.task.forecast.of: expected a list of 1 or more, got 0",
    ),
    "empty layer": (
        BASE + "model: {hidden: [0]}\n",
        "model.hidden: input should be greater than or equal to 1, not 0",
    ),
    "gap longer than a window": (
        BASE[:-2] + ", window: {size: 10, rate: 10, max_gap: 2s}}\n",
        "max_gap 2 s is longer than a window of 1 s",
    ),
    "gap shorter than a period": (
        BASE[:-2] + ", window: {size: 10, rate: 10, max_gap: 50ms}}\n",
        "no window would ever be complete",
    ),
    "window of one": (
        BASE[:-2] + ", window: {size: 1}}\n",
        "greater than or equal to 2, not 1",
    ),
    "window beyond all bounds": (
        BASE[:-2] + ", window: {size: 60000}}\n",
        "windows of 60000 x 2 numbers are too large",
    ),
    "majority of numbers": (
        BASE[:-2] + ", window: {size: 10, label: majority}}\n",
        "window.label majority needs classes",
    ),
    "open windows beyond the disk": (
        BASE[:-2] + ", window: {size: 10000}}\n",
        "more than a quarter of storage.max_bytes",
    ),
    "gru of readings": (
        BASE + "model: {network: gru}\n",
        "gru needs windows: add stream.window",
    ),
    "mlp that reconstructs": (
        BASE[:-2] + ", task: reconstruct}\nmodel: {network: mlp}\n",
        "always uses an autoencoder",
    ),
    "plain text over a network": (
        BASE + "mqtt: {host: broker.example}\n",
        "would be unencrypted",
    ),
    "TLS on a Unix socket": (
        BASE + "mqtt: {host: /run/mosquitto.sock, tls: {}}\n",
        "remove mqtt.tls",
    ),
    "revocations of no CA": (
        BASE + f"mqtt: {{tls: {{crl_file: {__file__}}}}}\n",
        "crl_file needs the CA that issued it",
    ),
    "page without an address": (
        BASE + "web: {listen: null}\n",
        "nothing to listen on",
    ),
    "address without a port": (
        BASE + "web: {listen: localhost}\n",
        "'localhost' is not an address and port",
    ),
    "port of nonsense": (
        BASE + "web: {listen: 'localhost:http'}\n",
        "'localhost:http' is not an address and port",
    ),
    "TLS on the Unix socket": (
        BASE
        + f"web: {{listen: null, unix_socket: s, tls: {{cert_file: {__file__}, key_file: {__file__}}}}}\n",
        "remove web.tls",
    ),
    "host with a port": (
        BASE + "web: {allowed_hosts: ['press-7:80']}\n",
        "'press-7:80' is not a host name or address",
    ),
    "host with a path": (
        BASE + "web: {allowed_hosts: ['press-7/x']}\n",
        "'press-7/x' is not a host name or address",
    ),
    "token of nowhere": (
        BASE + "web: {tokens: {read: nowhere}}\n",
        "web.tokens: ",
    ),
    "crontab of nonsense": (
        BASE + "training: {every: a b c d e}\n",
        "expected fields such as '0 3",
    ),
}


@pytest.mark.parametrize(("text", "said"), REFUSE.values(), ids=list(REFUSE))
def test_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
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
