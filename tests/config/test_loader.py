"""The configuration: what is taken, what is refused, and that each refusal says where and what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.config import Config
from edged.config.loader import from_json, load
from edged.config.problems import PATTERNS
from edged.config.values import parse_duration, parse_size
from edged.errors import ConfigError
from tests.commands import edged

SMALLEST = "device: {id: press-7}\nstream: {topic: sensors/press-7/#, features: [temp, vib.x]}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "edged.yaml"


def loaded(file: Path, text: str, environ: dict[str, str] | None = None) -> Config:
    file.write_text(text, encoding="utf-8")
    return load(file, environ or {})


def refusal(file: Path, text: str, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        loaded(file, text, environ)
    assert "\n" not in str(refused.value)
    return refused.value


def stream(rest: str) -> str:
    return f"device: {{id: a}}\nstream:\n  {rest}\n"


def test_the_smallest_configuration_has_defaults_that_work(file: Path) -> None:
    config = loaded(file, SMALLEST)
    assert config.topic_root == "edged/press-7"
    assert (config.mqtt.host, config.mqtt.port, config.mqtt.protocol) == ("localhost", 1883, "5")
    assert config.stream.resolved_task == "regress"
    assert config.training.every == 6 * 3600
    assert config.storage.max_bytes == 512 * 1024**2
    assert config.storage.dir == file.parent / "state"
    assert config.model.bundle is None


def test_one_provider_needs_no_list(file: Path) -> None:
    config = loaded(file, SMALLEST + "training: {provider: CUDAExecutionProvider}\n")
    assert config.training.provider == ["CUDAExecutionProvider"]
    assert config.serving.provider == ["CPUExecutionProvider"]


def test_an_optimizer_may_be_its_name_alone(file: Path) -> None:
    short = loaded(file, SMALLEST + "model: {optimizer: sgd_momentum}\n")
    assert short == loaded(file, SMALLEST + "model: {optimizer: {name: sgd_momentum}}\n")
    assert short.model.optimizer.name == "sgd_momentum"
    assert loaded(file, SMALLEST).model.optimizer.name == "adamw"
    schema = Config.model_json_schema()["$defs"]["OptimizerConfig"]["anyOf"]
    assert schema[0]["type"] == "object"
    assert "sgd_momentum" in schema[1]["enum"]


@pytest.mark.parametrize(
    ("text", "name"), [("model: {optimizer: sgd_momentum}\n", ""), ("", "sgd_momentum")], ids=["file", "both"]
)
def test_the_environment_reaches_options_of_an_optimizer_that_is_named_alone(
    file: Path, text: str, name: str
) -> None:
    environ = {"EDGED_MODEL__OPTIMIZER__MOMENTUM": "0.7"} | ({"EDGED_MODEL__OPTIMIZER": name} if name else {})
    optimizer = loaded(file, SMALLEST + text, environ).model.optimizer
    assert (optimizer.name, optimizer.momentum) == ("sgd_momentum", 0.7)


def test_the_configuration_of_an_evaluation_is_three_lines(file: Path) -> None:
    config = loaded(
        file, "device: {id: eval}\nstream: {features: 128, task: classify, classes: 6}\n# no bundle\n"
    )
    schema = config.stream.to_schema()
    assert (config.stream.width, len(schema.classes)) == (128, 6)


def test_units(file: Path) -> None:
    config = loaded(
        file,
        SMALLEST + "storage: {max_bytes: 1.5 GiB, max_age: 30d, commit_delay: 20ms}\n"
        "training: {every: 90m, serving_p99: 45}\n",
    )
    assert config.storage.max_bytes == 1536 * 1024**2
    assert config.storage.max_age == 30 * 86400
    assert config.storage.commit_delay == pytest.approx(0.02)
    assert (config.training.every, config.training.serving_p99) == (5400, 45)


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("{features: 2, classes: [idle, busy]}", "classify"),
        ("{features: 2, classes: open}", "classify"),
        ("{features: 2}", "regress"),
        ("{features: 2, task: reconstruct}", "reconstruct"),
        ("{features: 2, task: {forecast: {horizon: 3}}}", "forecast"),
        ("{features: 2, task: {forecast: {of: [1]}}}", "forecast"),
    ],
)
def test_the_task_follows_from_what_is_given(file: Path, text: str, task: str) -> None:
    assert loaded(file, f"device: {{id: a}}\nstream: {text}\n").stream.resolved_task == task


def test_names_of_forecast_features_become_positions(file: Path) -> None:
    text = stream("features: [a, b, c]\n  task: {forecast: {of: [c, a]}}")
    assert loaded(file, text).stream.forecast_columns == (2, 0)


@pytest.mark.parametrize(("given", "kept"), [("5", "5"), ("3.1.1", "3.1.1"), ('"5"', "5")])
def test_the_protocol_needs_no_quotes(file: Path, given: str, kept: str) -> None:
    assert loaded(file, SMALLEST + f"mqtt: {{protocol: {given}}}\n").mqtt.protocol == kept


def test_relative_paths_are_relative_to_the_file(file: Path) -> None:
    (file.parent / "bundle").mkdir()
    (file.parent / "secret").write_text("x")
    config = loaded(
        file,
        SMALLEST + "model: {bundle: ./bundle}\nmqtt: {password_file: secret}\nstorage: {dir: ../elsewhere}\n",
    )
    assert config.model.bundle == file.parent / "bundle"
    assert config.mqtt.password_file == file.parent / "secret"
    assert config.storage.dir.resolve() == file.parent.parent / "elsewhere"


def test_it_survives_the_way_to_the_trainer(file: Path) -> None:
    config = loaded(file, SMALLEST + "training: {memory: 1GiB}\nmqtt: {tls: {}}\n")
    assert from_json(config.model_dump_json()) == config


def test_a_broken_hand_over_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="Invalid JSON"):
        from_json("{")


# --- refusals: file, line, key, what, remedy ---

REFUSALS = {
    # name: (lines after SMALLEST, line, key, what it says)
    "unknown section": ("trainig: {}", 3, "trainig", "did you mean training"),
    "unknown key": ("mqtt: {hots: x}", 3, "mqtt.hots", "did you mean host"),
    "unknown key far from any": ("mqtt: {zzz: 1}", 3, "mqtt.zzz", "known here: host, port"),
    "key of a subsection": ("mqtt:\n  tls: {ca_fil: x}", 4, "mqtt.tls.ca_fil", "did you mean ca_file"),
    "key given twice": ("mqtt: {port: 1}\nmqtt: {port: 2}", 4, "mqtt", "given twice"),
    "port": ("mqtt:\n  port: 70000", 4, "mqtt.port", "65535"),
    "port as a word": ("mqtt: {port: mqtts}", 3, "mqtt.port", "integer"),
    "protocol": ("mqtt: {protocol: 4}", 3, "mqtt.protocol", "'5' or '3.1.1'"),
    "topic root": ("mqtt: {root: 'a/#'}", 3, "mqtt.root", "levels of a topic"),
    "keepalive": ("mqtt: {keepalive: 5 weeks ago}", 3, "mqtt.keepalive", "a duration such as 6h"),
    "negative duration": ("mqtt: {keepalive: -1}", 3, "mqtt.keepalive", "a duration such as 6h"),
    "truth as duration": ("mqtt: {keepalive: yes}", 3, "mqtt.keepalive", "a duration such as 6h"),
    "half a client certificate": ("mqtt:\n  tls: {cert_file: .}", 4, "mqtt.tls", "belong together"),
    "schedule": ("training: {every: 0 3 * *}", 3, "training.every", "a duration such as 6h, or crontab"),
    "crontab": ("training: {every: 0 25 * * *}", 3, "training.every", "fields such as '0 3 * * *'"),
    "shares without replay": ("training: {replay: 0, new_share: 0.5}", 3, "training", "replay above 0"),
    "share": ("training: {new_share: 1.5}", 3, "training.new_share", "less than or equal to 1"),
    "memory": ("training: {memory: 1MiB}", 3, "training.memory", "67108864"),
    "optimizer": ("model: {optimizer: lion}", 3, "model.optimizer.name", "'adamw'"),
    "option of another optimizer": (
        "model:\n  optimizer: {momentum: 0.5}",
        4,
        "model.optimizer",
        "adamw has no momentum",
    ),
    "unknown option of an optimizer": (
        "model: {optimizer: {moment: 1}}",
        3,
        "model.optimizer.moment",
        "did you mean momentum",
    ),
    "optimizer as a number": ("model: {optimizer: 1}", 3, "model.optimizer", "expected a section"),
    "charge": ("training: {on_battery: 101}", 3, "training.on_battery", "a charge above 0 and up to 100"),
    "engine": ("training: {engine: cuda}", 3, "training.engine", "'portable' or 'native'"),
    "provider": ("training: {provider: cuda}", 3, "training.provider", "ExecutionProvider"),
    "no provider": ("serving: {provider: []}", 3, "serving.provider", "a list of 1 or more"),
    "learning rate": ("training: {learning_rate: 0}", 3, "training.learning_rate", "greater than 0"),
    "holdout": ("gate: {holdout: 0.9}", 3, "gate.holdout", "0.5"),
    "size": ("storage: {max_bytes: 1 lot}", 3, "storage.max_bytes", "a size such as 512MiB"),
    "small cap": ("storage: {max_bytes: 10}", 3, "storage.max_bytes", "1048576"),
    "age": ("storage: {max_age: 0}", 3, "storage.max_age", "greater than 0"),
    "confidence": ("serving: {min_confidence: 1}", 3, "serving.min_confidence", "less than 1"),
    "log level": ("log: {level: loud}", 3, "log.level", "'debug', 'info', 'warning' or 'error'"),
    "missing bundle": ("model: {bundle: ./none}", 3, "model.bundle", "edged artifacts build"),
    "missing password": ("mqtt: {password_file: none}", 3, "mqtt.password_file", "does not exist"),
    "missing certificate": ("mqtt:\n  tls:\n    ca_file: none", 5, "mqtt.tls.ca_file", "does not exist"),
}


@pytest.mark.parametrize(("rest", "line", "key", "what"), REFUSALS.values(), ids=list(REFUSALS))
def test_a_refusal_names_file_line_key_and_remedy(
    file: Path, rest: str, line: int, key: str, what: str
) -> None:
    refused = refusal(file, SMALLEST + rest + "\n")
    assert refused.where == f"{file}:{line}: {key}"
    assert what in str(refused)
    assert refused.remedy
    assert refused.exit_code == 2


def test_all_mistakes_are_told_at_once_each_in_a_line_with_what_was_received(file: Path) -> None:
    text = """\
device: {id: "press 7"}
mqtt: {host: localhost, port: 99999, pasword: x}
stream:
  features: [temp, vib]
  clases: [a]
training: {every: soon, engine: gpu}
gate: 7
"""
    refused = refusal(file, text)
    hint = "(`edged config schema` lists every key)"
    letters = "a letter or digit, then letters, digits, `_`, `.` and `-`: at most 63 characters"
    assert refused.lines() == [
        f"{file}:1: device.id: expected {letters}, not 'press 7' {hint}",
        f"{file}:2: mqtt.pasword: unknown key (did you mean password_file?)",
        f"{file}:2: mqtt.port: input should be less than or equal to 65535, not 99999 {hint}",
        f"{file}:5: stream.clases: unknown key (did you mean classes?)",
        f"{file}:6: training.every: expected a duration such as 6h, or crontab fields, got 'soon' {hint}",
        f"{file}:6: training.engine: input should be 'portable' or 'native', not 'gpu' {hint}",
        f"{file}:7: gate: expected a section: keys with values, not 7 {hint}",
    ]
    answer = edged("config", "check", file)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines() == [f"edged: {line}" for line in refused.lines()]


def test_all_files_that_are_not_there_and_all_removed_keys_are_told_at_once(file: Path) -> None:
    missing = refusal(file, SMALLEST + "model: {bundle: b, keys: [k.pub]}\nmqtt: {password_file: p}\n")
    assert [line.partition(": ")[2].partition(":")[0] for line in missing.lines()] == [
        "model.bundle", "model.keys", "mqtt.password_file",
    ]  # fmt: skip
    removed = refusal(file, SMALLEST + "web: {max_rows: 5, max_body: 7}\n")
    assert len(removed.lines()) == 2


def test_every_pattern_has_words() -> None:
    used = set(re.findall(r'"pattern": ("(?:[^"\\]|\\.)*")', json.dumps(Config.model_json_schema())))
    assert {json.loads(pattern) for pattern in used} == set(PATTERNS)


@pytest.mark.parametrize(
    ("text", "known", "outputs"),
    [
        ("classes: open", (), 16), ("classes: open, max_classes: 5", (), 5),
        ("classes: [a, b], max_classes: 5", ("a", "b"), 5), ("classes: 2, max_classes: 3", ("0", "1"), 3),
    ],
)  # fmt: skip
def test_classes_may_come_later(file: Path, text: str, known: tuple[str, ...], outputs: int) -> None:
    file.write_text(f"device: {{id: a}}\nstream: {{features: 2, {text}}}\n")
    stream = load(file).stream
    schema = stream.to_schema()
    assert (schema.known_classes, schema.outputs, schema.named_classes) == (known, outputs, ())
    assert schema.parse_label("new") == len(known)
    assert stream.model_copy().to_schema().known_classes == (*known, "new"), "copies share them"


STREAM_REFUSALS = {
    "no features": ("{topic: a}", "stream.features", "features: 8"),
    "zero features": ("{features: 0}", "stream.features", "greater than or equal to 1"),
    "a feature twice": ("{features: [a, a]}", "stream.features", "twice"),
    "classify without classes": ("{features: 2, task: classify}", "stream", "needs classes"),
    "one class": ("{features: 2, classes: 1}", "stream.classes", "greater than or equal to 2"),
    "regress with classes": ("{features: 2, task: regress, classes: 3}", "stream", "set task: classify"),
    "reconstruct with label": ("{features: 2, task: reconstruct, label: y}", "stream", "its own labels"),
    "fewer outputs than classes": ("{features: 2, classes: [a, b, c], max_classes: 2}", "stream", "has 3"),
    "classes of values to come": ("{features: 2, max_classes: 5}", "stream", "task classify only"),
    "unknown classes": ("{features: 2, classes: some}", "stream.classes", "or open"),
    "cap of classes": ("{features: 2, classes: 2, target_max: 3}", "stream", "task regress only"),
    "a label of two kinds": (
        "{features: 2, label: {topic: l, join: id, hold: true}}",
        "stream.label",
        "remove hold and key",
    ),
    "a label of nowhere": ("{features: 2, label: {join: id}}", "stream.label", "needs topic"),
    "forecast of a stranger": (
        "{features: [a], task: {forecast: {of: [b]}}}",
        "stream",
        "'b' is not a feature",
    ),
    "forecast outside": ("{features: 2, task: {forecast: {of: [2]}}}", "stream", "outside 0..1"),
    "codec": ("{features: 2, codec: xml}", "stream.codec", "json"),
}


@pytest.mark.parametrize(("text", "key", "what"), STREAM_REFUSALS.values(), ids=list(STREAM_REFUSALS))
def test_a_stream_that_makes_no_sense(file: Path, text: str, key: str, what: str) -> None:
    refused = refusal(file, f"device: {{id: a}}\nstream: {text}\n")
    assert refused.where == f"{file}:2: {key}"
    assert what in str(refused)
    assert refused.remedy


@pytest.mark.parametrize("name", ["a/b", "#", "", "-a", "a" * 64, "ä"])
def test_a_device_needs_a_name_fit_for_topics(file: Path, name: str) -> None:
    refused = refusal(file, f'device: {{id: "{name}"}}\nstream: {{features: 2}}\n')
    assert refused.where == f"{file}:1: device.id"


def test_a_missing_device_id_comes_with_an_example(file: Path) -> None:
    refused = refusal(file, "device: {}\nstream: {features: 2}\n")
    assert str(refused) == f"{file}:1: device.id: this key is required (add `id: press-7`)"


@pytest.mark.parametrize("text", ["", "[1, 2]", "just words"])
def test_a_file_that_is_no_mapping(file: Path, text: str) -> None:
    refused = refusal(file, text)
    assert refused.where == str(file)
    assert "device: {id:" in refused.remedy


@pytest.mark.parametrize(
    ("text", "line"),
    [("device: {id: a\nstream: 1\n", 2), ("device:\n\tid: a\n", 2), ("device: !!python/name:os.system\n", 1)],
)
def test_a_file_that_is_no_yaml(file: Path, text: str, line: int) -> None:
    refused = refusal(file, text)
    assert refused.where == f"{file}:{line}"
    assert refused.what.startswith("not valid YAML: ")


def test_a_file_that_is_no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(file, {})


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*\(name an existing YAML file\)"):
        load(file, {})
    with pytest.raises(ConfigError, match="directory"):
        load(file.parent, {})


# --- environment ---


def test_the_environment_overrides_the_file(file: Path) -> None:
    config = loaded(
        file,
        SMALLEST + "mqtt: {host: a, port: 1, insecure: true}\n",
        {"EDGED_MQTT__HOST": "broker", "EDGED_TRAINING__EVERY": "90m", "EDGED_STREAM__FEATURES": "[a, b, c]"},
    )
    assert (config.mqtt.host, config.mqtt.port) == ("broker", 1)
    assert config.training.every == 5400
    assert config.stream.names == ("a", "b", "c")


def test_the_environment_reaches_subsections_that_the_file_lacks(file: Path) -> None:
    assert loaded(file, SMALLEST, {"EDGED_MQTT__TLS__INSECURE": "true"}).mqtt.tls is not None


def test_the_state_directory_of_the_service_manager(file: Path) -> None:
    config = loaded(file, SMALLEST, {"EDGED_STORAGE__DIR": "/var/lib/edged"})
    assert str(config.storage.dir) == "/var/lib/edged"


def test_other_variables_are_none_of_its_business(file: Path) -> None:
    assert (
        loaded(file, SMALLEST, {"EDGED_HOME": "/opt", "MQTT__HOST": "x", "PATH": "/bin"}).mqtt.host
        == "localhost"
    )


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("EDGED_MQTT__PORT", "mqtts", "integer"),
        ("EDGED_MQTT__HOTS", "x", "did you mean host"),
        ("EDGED_MQTT_HOST", "x", "name it EDGED_MQTT__HOST"),
        ("EDGED_TRAINING__EVERY", "often", "a duration such as 6h"),
    ],
)
def test_a_refused_override_names_the_variable(file: Path, name: str, value: str, what: str) -> None:
    refused = refusal(file, SMALLEST, {name: value})
    assert refused.where == f"environment variable {name}"
    assert what in str(refused)


# --- laws of sizes and durations ---

SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SPANS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


@given(st.integers(0, 10**6), st.sampled_from(sorted(SIZES)), st.sampled_from(["", " ", "  "]))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str, gap: str) -> None:
    for text in (f"{number}{gap}{unit}", f" {number}{gap}{unit.lower()}", f"{number}{gap}{unit.upper()} "):
        assert parse_size(text) == number * SIZES[unit]


@given(st.integers(0, 2**53))
def test_a_plain_number_of_bytes_is_taken_as_it_is(number: int) -> None:
    assert parse_size(number) == parse_size(str(number)) == number


@given(st.floats(0, 10**6), st.sampled_from(sorted(SPANS)))
def test_a_duration_is_its_number_times_its_unit(number: float, unit: str) -> None:
    assert parse_duration(f"{number:.6f}{unit}") == pytest.approx(round(number, 6) * SPANS[unit])


@given(st.floats(0, 1e12))
def test_a_duration_in_seconds_is_taken_as_it_is(seconds: float) -> None:
    assert parse_duration(seconds) == seconds
    assert parse_duration(parse_duration(seconds)) == seconds


@given(st.text())
def test_any_text_is_a_duration_or_refused_with_an_example(text: str) -> None:
    try:
        assert parse_duration(text) >= 0
    except ValueError as refused:
        assert "a duration such as 6h" in str(refused)  # noqa: PT017  most texts are refused, a few are not
