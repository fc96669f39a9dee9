"""Every key of the reference changes what the program does.

A case sets the key to another value and looks at something that the program builds or decides from it. Keys
whose effect needs a broker, a trainer or other files are in `ELSEWHERE`, with the test that shows it.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edged import logs
from edged.bundles.graph.templates import mlp
from edged.clock import VirtualClock
from edged.config import Config
from edged.device.commands.answers import CommandAnswers
from edged.device.fleet_member.member import Member
from edged.device.integrations.home_assistant import hub_message
from edged.device.learning.scheduler import needed_labels
from edged.device.one_stream import RunningStream
from edged.device.outbound.publisher import OutboundRouter
from edged.device.pipeline import head_of, label_requests
from edged.device.startup.bootstrap import standard_network, weight_decay
from edged.domain.federated.messages import FleetTopics
from edged.domain.stream.admission import AdmissionControl
from edged.domain.training.guards import Budget, Conditions, refusals
from edged.domain.training.triggers import Triggers
from edged.engines.portable.engine import PortableEngine
from edged.errors import RejectedSampleError
from edged.mqtt.client.connection import make_client
from edged.mqtt.codecs import label_codec, sample_codec
from edged.mqtt.topics import Topics
from edged.trainer.task import LearningTask
from tests.building import build
from tests.device.learning_rig import Workshop, task

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
KEYS = re.findall(r"^\| `([a-z_.0-9]+)` \|", REFERENCE, re.MULTILINE)
BASE: dict[str, Any] = {"device": {"id": "press"}, "stream": {"topic": "s/+", "features": ["a", "b"]}}
CLASSES = {"stream": {"classes": ["ok", "worn"], "label": "y"}}
HARD = Conditions(720, 7, 95.0, on_battery=True, battery_percent=20.0, serving_p99=0.02, worn=True)

Look = Callable[[Config], Any]


def decoded(message: dict[str, Any] | list[Any] | bytes, topic: str = "s/1") -> Look:
    """What the codec makes of a message: a reading, observations, or the reason for a rejection."""

    def look(config: Config) -> Any:
        payload = message if isinstance(message, bytes) else json.dumps(message).encode()
        try:
            return repr(sample_codec(config.stream).decode(topic, payload))
        except RejectedSampleError as problem:
            return problem.line()

    return look


def labelled(message: dict[str, Any] | bytes, topic: str = "l/1") -> Look:
    """What the codec of labels makes of a message."""

    def look(config: Config) -> Any:
        codec = label_codec(config.stream)
        payload = message if isinstance(message, bytes) else json.dumps(message).encode()
        return None if codec is None else repr(codec.decode(topic, payload))

    return look


def schema(config: Config) -> Any:
    """What samples are to the model."""
    return repr(config.stream.to_schema())


def joined(config: Config) -> Any:
    """How samples are made of several messages."""
    return repr(config.stream.join_rules())


def windows(config: Config) -> Any:
    """How windows are cut."""
    return config.stream.window_rules


def connection(config: Config) -> Any:
    """The client of the broker, before it connects."""
    mqtt = config.mqtt
    client = make_client(mqtt, config.client_id, mqtt.protocol, None)
    inner = vars(client)
    names = ("_host", "_port", "_keepalive", "_client_id", "_protocol", "_username")
    return [inner[name] for name in names], client.websocket


def topics(config: Config) -> Any:
    """Where the device publishes."""
    return config.topic_root


def held_back(config: Config) -> Any:
    """The guards that hold a run back on a hot device on battery."""
    return refusals(config.training.guard_rules(), HARD, Budget(7, 1, 600.0))


def triggers(config: Config) -> Any:
    """What 100 new labels start, with and without a schedule."""
    training = config.training
    needed, start = needed_labels(training), training.new_labels != 0
    return [Triggers(needed, labels_start=start, scheduled=due).wanted(100) for due in (False, True)]


def network(config: Config) -> Any:
    """What edged builds without a bundle."""
    return standard_network(config), weight_decay(config)


def memory(config: Config) -> Any:
    """What a learner remembers."""
    task = LearningTask(config.training, config.stream.to_schema(), None)  # type: ignore[arg-type]
    return task.memory


def drift(config: Config) -> Any:
    """How the detectors of drifts are set."""
    return config.drift.rules()


def anomalies(config: Config) -> Any:
    """How alarms begin and end."""
    return config.anomaly.rules()


def requested(config: Config) -> Any:
    """How many labels of 2,000 doubtful samples are asked for."""
    asked = label_requests(config.labels, config.gate.holdout, 0)
    return asked.active


def admitted(config: Config) -> Any:
    """How many of 100 readings of one key are admitted at once, and how long the acknowledgement waits."""
    admission = AdmissionControl(config.stream.admission_rules(), 2)
    admission.pause(1, 0.0)
    return sum(admission.admit("k", 0.0) for _ in range(100)), admission.pause(500, 0.0)


class Blank:
    """Stands for partners of a plan that only their names are needed of."""

    def __getattr__(self, name: str) -> Blank:
        return self

    def __call__(self, *_: object) -> Blank:
        return self


class Plan(Blank):
    """A running stream that only notes what its timetable is told."""

    def __init__(self, config: Config) -> None:
        self.config, self.timetable, self.noted = config, self, list[tuple[str, Any]]()

    def every(self, seconds: float, _: object) -> None:
        self.noted.append(("every", seconds))

    def cron(self, fields: str, _: object) -> None:
        self.noted.append(("cron", fields))


def planned(config: Config) -> Any:
    """What the daemon does regularly."""
    plan = Plan(config)
    RunningStream._plan(plan)  # type: ignore[arg-type]  # noqa: SLF001  it has what a plan needs
    return plan.noted


class Wire(Blank):
    """A connection that keeps what is published."""

    connected, pending, dropped = False, 0, 0

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, int]] = []

    def room(self, _: int) -> int:
        return 10

    def publish(self, topic: str, payload: bytes, *, qos: int) -> bool:
        self.published.append((topic, payload, qos))
        return True


def published(config: Config) -> Any:
    """How a prediction leaves the device."""
    wire, folder = Wire(), tempfile.mkdtemp()
    storage = config.storage.model_copy(update={"dir": Path(folder)})
    router = OutboundRouter(
        config.model_copy(update={"storage": storage}), topics=Topics("edged/press"), session=wire,  # type: ignore[arg-type]
        registry=Blank(), updates=Blank(), clock=VirtualClock(1.7e9), boot=1, number=lambda: 1,  # type: ignore[arg-type]
    )  # fmt: skip
    router.predicted([b'{"id":1}'])
    return wire.published


def answered(config: Config) -> Any:
    """Whether a requester can have the answer on a topic of its own."""
    answers = CommandAnswers(
        Blank(), Topics("edged/press"), Blank(), config.commands.answer_to, journal=Blank(),  # type: ignore[arg-type]
        clock=VirtualClock(1.7e9),
    )  # fmt: skip
    return answers._answer_to  # noqa: SLF001


def headed(config: Config) -> Any:
    """The closed-form head beside the network."""
    return head_of(config, Blank(), config.stream.to_schema()) is None  # type: ignore[arg-type]


def in_fleet(config: Config) -> Any:
    """Topics of the fleet, and whether the stream `one` is the one that it improves."""
    assert config.fleet is not None
    assert config.fleet.name is not None
    return FleetTopics(config.fleet.name).fleet, config.named("one").fleet is None


def declined(config: Config) -> Any:
    """Why a device with new labels takes no part in a round."""
    work = SimpleNamespace(new_samples=lambda _: 5, why_not=lambda: "")
    member = SimpleNamespace(_config=config.fleet, _budget_used=lambda: False, _work=work, _record=Blank())
    return Member._why_not(member)  # type: ignore[arg-type]  # noqa: SLF001  all that it needs


def logged(config: Config) -> Any:
    """Which of two lines are logged."""
    stream = io.StringIO()
    logs.configure(config.log.level, stream=stream)
    logs.get_logger("edged.keys").info("quiet")
    logs.get_logger("edged.keys").error("loud")
    logs.configure()
    return len(stream.getvalue().splitlines())


READING = {"a": 1.0, "b": 2.0, "t": 1.7e9, "k": "m1", "i": "x7", "y": "ok"}
TWO = {"stream": {"features": [{"name": "a"}, {"name": "b"}]}}
FOUND = {"stream": {**CLASSES["stream"], "key": "topic:1", "label": {"topic": "l/+", "path": "v"}}}
MATCHED = {"stream": {**CLASSES["stream"], "label": {"topic": "l/+", "join": "id"}}}

CASES: dict[str, tuple[dict[str, Any], Any, Look]] = {
    # key: what is set beside it, the value, and what it changes
    "device.id": ({}, "other", topics),
    "mqtt.host": ({}, "127.0.0.1", connection),
    "mqtt.port": ({}, 1884, connection),
    "mqtt.protocol": ({}, "3.1.1", connection),
    "mqtt.websocket": ({}, "/mqtt", connection),
    "mqtt.keepalive": ({}, "7s", connection),
    "mqtt.root": ({}, "factory", topics),
    "mqtt.client_id": ({}, "mine", connection),
    "stream.topic": ({}, "t/#", lambda config: config.stream.all_topics),
    "stream.codec": ({}, "csv", decoded(b"1,2")),
    "stream.records": ({}, "m", decoded({"m": [READING]})),
    "stream.byte_order": (
        {"stream": {"codec": "int16", "features": 1}}, "big", decoded(b"\x01\x00"),
    ),
    "stream.columns": ({"stream": {"codec": "csv"}}, ["b", "a"], decoded(b"1,2")),
    "stream.delimiter": ({"stream": {"codec": "csv"}}, ";", decoded(b"1;2")),
    "stream.features": ({}, ["b", "a"], decoded(READING)),
    "stream.sample": ({}, "a", joined),
    "stream.units": ({}, ["V", "A"], schema),
    "stream.target_units": ({}, ["mm"], schema),
    "stream.context": ({}, [10], schema),
    "stream.task": ({}, "reconstruct", schema),
    "stream.classes": ({}, ["ok", "worn"], schema),
    "stream.max_classes": (CLASSES, 4, schema),
    "stream.targets": ({}, 2, schema),
    "stream.target_max": ({}, 125, schema),
    "stream.label": ({"stream": {"classes": ["ok", "worn"]}}, "y", decoded(READING)),
    "stream.key": ({}, "k", decoded(READING)),
    "stream.ts": ({}, "t", decoded(READING)),
    "stream.id": ({}, "i", decoded(READING)),
    "stream.max_rate": ({}, 10, admitted),
    "stream.key_rate": ({}, 1, admitted),
    "stream.max_payload": ({}, 16, decoded(READING)),
    "stream.features.name": (TWO, [{"name": "a"}, {"name": "k2"}], schema),
    "stream.features.topic": (TWO, [{"name": "a", "key": "topic:1"},
                                    {"name": "b", "topic": "q/b", "key": "topic:0"}],
                              lambda config: config.stream.all_topics),
    "stream.features.path": (TWO, [{"name": "a"}, {"name": "b", "path": "t"}], decoded(READING)),
    "stream.features.key": (TWO, [{"name": "a", "key": "k"}, {"name": "b", "key": "k"}], decoded(READING)),
    "stream.features.values": (TWO, [{"name": "a"}, {"name": "b", "path": "y", "values": {"ok": 5}}],
                               decoded(READING)),
    "stream.features.max_age": (TWO, [{"name": "a"}, {"name": "b", "max_age": "5s"}], joined),
    "stream.features.unit": (TWO, [{"name": "a"}, {"name": "b", "unit": "V"}], schema),
    "stream.features.time": (TWO, [{"name": "a"}, {"name": "hour", "time": "hour_of_day"}], schema),
    "stream.features.change": (TWO, [{"name": "a"}, {"name": "b", "change": "rate"}], joined),
    "stream.missing.fill": ({"stream": {"missing": {}}}, "mean", joined),
    "stream.missing.flags": ({"stream": {"missing": {}}}, True, schema),
    "stream.window.size": ({"stream": {"window": {"size": 8}}}, 4, windows),
    "stream.window.stride": ({"stream": {"window": {"size": 8}}}, 2, windows),
    "stream.window.rate": ({"stream": {"window": {"size": 8}}}, 10, windows),
    "stream.window.max_gap": ({"stream": {"window": {"size": 8}}}, "1s", windows),
    "stream.window.label": (
        {"stream": {**CLASSES["stream"], "window": {"size": 8}}}, "majority", windows,
    ),
    "stream.task.forecast.of": ({"stream": {"task": {"forecast": {}}}}, ["b"],
                                lambda config: config.stream.forecast_columns),
    "stream.task.forecast.horizon": ({"stream": {"task": {"forecast": {}}}}, 5,
                                     lambda config: config.stream.horizon),
    "stream.label.topic": (MATCHED, "m/+", lambda config: config.stream.all_topics),
    "stream.label.path": (MATCHED, "state", labelled({"id": "1", "label": "ok", "state": "worn"})),
    "stream.label.join": (MATCHED, "key_time", labelled({"id": "1", "key": "k", "ts": 5, "label": "ok"})),
    "stream.label.expiry": (MATCHED, "1h", lambda config: config.stream.join_expiry),
    "stream.key.fixed": ({"stream": {"key": {"fixed": "one"}}}, "two", decoded(READING)),
    "model.network": (CLASSES, "mlp", network),
    "model.optimizer.name": (CLASSES, "sgd", network),
    "model.optimizer.weight_decay": (CLASSES, 0.3, network),
    "training.new_labels": ({}, 200, triggers),
    "training.quiet": ({}, "11:00-13:00", held_back),
    "training.max_temperature": ({}, None, held_back),
    "training.on_battery": ({}, False, held_back),
    "training.daily_minutes": ({}, 5, held_back),
    "training.max_write_rate": ({}, None, held_back),
    "training.serving_p99": ({}, "10ms", held_back),
    "training.replay": ({}, 100, memory),
    "drift.sensitivity": ({}, "high", drift),
    "anomaly.sensitivity": ({}, "low", anomalies),
    "anomaly.accept_after": ({}, "1d", anomalies),
    "labels.request_share": ({}, 0.5, requested),
    "stream.label.key": (FOUND, "k", labelled({"v": "ok", "k": "m2"})),
    "stream.label.hold": (FOUND, True, labelled({"v": "ok"})),
    "fleet.train": ({"fleet": {"name": "plant"}}, False, declined),
    "model.head": (CLASSES, "none", headed),
    "training.every": ({}, "0 3 * * *", planned),
    "serving.publish": ({}, False, published),
    "serving.must_deliver": ({}, True, published),
    "commands.answer_to": ({}, ["plant/answers"], answered),
    "discovery.name": ({"discovery": {}}, "Press 7", hub_message),
    "report.every": ({}, "1min", planned),
    "weights.every": ({}, "1h", planned),
    "fleet.name": ({"fleet": {"name": "plant"}}, "mill", in_fleet),
    "fleet.stream": ({"fleet": {"name": "plant"}}, "one", in_fleet),
    "log.level": ({}, "error", logged),
    "storage.dir": ({}, "elsewhere", lambda config: config.device_dir),
}  # fmt: skip

SHOWN = {
    "bundles/test_optimizers.py": {
        "model.optimizer.clip_norm": "test_a_configured_optimizer_is_what_the_standard_network_is_built_with",
        "model.optimizer.momentum": "test_a_configured_optimizer_is_what_the_standard_network_is_built_with",
    },
    "cli/test_doctor.py": {
        "training.engine": "test_a_standard_network_is_built_for_the_native_engine_where_that_is_configured",
        "training.provider": "test_a_provider_that_is_not_there",
        "serving.provider": "test_a_provider_that_is_not_there",
    },
    "device/commands/test_dispatcher.py": {
        "commands.max_age": "test_what_comes_too_late_is_not_carried_out",
    },
    "device/fleet_member/test_member.py": {
        "fleet.keys": "test_with_keys_only_signed_rounds_and_receipts_count",
    },
    "device/ingest/test_flush.py": {
        "storage.commit_delay": "test_what_somebody_waits_for_does_not_wait_for_company",
    },
    "device/learning/test_scheduler.py": {
        "training.memory": "test_too_little_memory_is_one_clear_line",
    },
    "device/promotion/test_model_store.py": {
        "gate.min_holdout": "test_without_enough_holdout_nothing_is_promoted",
        "gate.min_gain": "test_an_equal_candidate_passes_unless_a_gain_is_asked_for",
    },
    "device/serving/test_predictor.py": {
        "gate.probation": "test_a_probation_that_is_switched_off_has_no_outcome",
        "gate.probation_drop": "test_a_probation_allows_a_fall_as_large_as_is_configured",
    },
    "device/serving/test_promises.py": {
        "serving.coverage": "test_without_coverage_there_is_neither",
        "serving.min_confidence": "test_what_is_too_uncertain_is_none_of_the_classes",
    },
    "device/startup/test_bootstrap.py": {
        "model.bundle": "test_a_bundle_that_is_named_is_left_as_it_is",
        "stream.label.tolerance": "test_labels_are_joined_within_the_configured_tolerance",
        "model.hidden": "test_another_network_than_the_one_that_is_there_is_told_of",
    },
    "device/test_two_configurations.py": {
        "training.priority": "test_a_trainer_runs_in_the_scheduling_class_of_its_priority",
        "labels.requests_per_day": "test_labels_are_requested_as_often_a_day_as_configured",
        "discovery.prefix": "test_announcements_to_home_assistant_begin_as_configured",
        "sparkplug.group": "test_an_edge_node_has_the_name_and_names_its_metrics_as_configured",
        "sparkplug.node": "test_an_edge_node_has_the_name_and_names_its_metrics_as_configured",
        "sparkplug.aliases": "test_an_edge_node_has_the_name_and_names_its_metrics_as_configured",
        "fleet.budget": "test_a_round_trains_for_no_longer_than_configured",
        "install.max_bytes": "test_a_bundle_may_be_as_large_as_configured",
        "web.model_name": "test_the_device_answers_under_the_names_that_are_configured",
        "web.allowed_hosts": "test_the_device_answers_under_the_names_that_are_configured",
        "web.tokens": "test_each_token_opens_and_closes_its_scope",
    },
    "device/transfers/test_admission.py": {
        "weights.accept": "test_a_configuration_that_takes_less_since",
    },
    "device/transfers/test_weights.py": {
        "weights.dtype": "test_weights_go_out_in_every_form_and_come_back_through_the_gate",
    },
    "device/web/test_listening.py": {
        "web.listen": "test_requests_come_over_tcp_and_over_the_unix_socket",
        "web.unix_socket": "test_requests_come_over_tcp_and_over_the_unix_socket",
        "web.tls.cert_file": "test_tls_serves_with_our_certificate_and_refuses_old_versions",
        "web.tls.key_file": "test_a_key_that_does_not_belong_is_an_error_of_the_configuration",
    },
    "fleet/flower/test_app.py": {
        "fleet.flower": "test_a_device_needs_a_socket_for_flower",
    },
    "fleet/test_daemons.py": {
        "fleet.tags": "test_a_canary_tries_a_model_and_an_operator_approves_it",
    },
    "mqtt/client/test_session_failures.py": {
        "mqtt.password_file": "test_a_wrong_password_is_said_once_and_a_corrected_file_is_read",
    },
    "mqtt/client/test_tls.py": {
        "mqtt.username": "test_user_and_password_from_systemds_credentials",
        "mqtt.insecure": "test_plain_text_leaves_this_machine_only_where_that_is_said",
        "mqtt.tls.cert_file": "test_with_a_certificate_of_the_ca",
        "mqtt.tls.key_file": "test_with_a_certificate_of_the_ca",
        "mqtt.tls.ca_file": "test_a_broker_of_a_foreign_ca",
        "mqtt.tls.crl_file": "test_a_broker_whose_certificate_was_revoked",
        "mqtt.tls.insecure": "test_a_broker_that_we_do_not_take",
    },
    "storage/models/test_signatures.py": {
        "model.keys": "test_a_device_uses_nothing_of_a_bundle_that_was_changed",
    },
    "storage/outbox/test_queue.py": {
        "outbox.max_bytes": "test_a_lowered_cap_is_reached_and_space_that_is_free_goes_back",
    },
    "storage/samples/test_erasure.py": {
        "storage.secure": "test_with_secure_nothing_outlives_its_age",
    },
    "storage/samples/test_eviction.py": {
        "storage.max_bytes": "test_a_lowered_cap_shrinks_the_file",
        "storage.max_age": "test_samples_go_when_they_are_too_old",
    },
    "storage/samples/test_log.py": {
        "gate.holdout": "test_the_holdout_is_decided_at_arrival_and_never_trained_on",
    },
    "test_signing.py": {
        "commands.keys": "test_every_command_but_those_that_read_needs_a_signature_as_soon_as_there_are_keys",
        "commands.require_signed": "test_a_list_narrows_what_must_be_signed",
    },
    "workbench/evaluation/test_comparison.py": {
        "training.enabled": "test_configurations_are_ranked_by_their_difference_to_the_best",
    },
}
"""By file, keys and the test that shows two values and a difference between them."""

ELSEWHERE = {key: (path, name) for path, keys in SHOWN.items() for key, name in keys.items()}


def nested(key: str, value: object, beside: dict[str, Any]) -> dict[str, Any]:
    """The sections with this key; a key of one feature stands for the whole list."""
    names = ["stream", "features"] if key.startswith("stream.features.") else key.split(".")
    sections = overlaid(BASE, beside)
    inner = sections
    for name in names[:-1]:
        inner[name] = dict(inner.get(name) or {})
        inner = inner[name]
    inner[names[-1]] = value
    return sections


def overlaid(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The sections of both."""
    return {**below, **{name: {**below.get(name, {}), **section} for name, section in above.items()}}


@pytest.mark.parametrize("key", CASES)
def test_a_key_changes_what_the_program_does(key: str) -> None:
    beside, value, look = CASES[key]
    usual, changed = (
        look(Config.model_validate(sections))
        for sections in (overlaid(BASE, beside), nested(key, value, beside))
    )
    assert not np.array_equal(usual, changed) if isinstance(usual, np.ndarray) else usual != changed


LEARNED: dict[str, Any] = {
    "training.batch": 16, "training.steps": 30, "training.accumulate": 2, "training.learning_rate": 0.001,
    "training.schedule": "linear", "training.warmup": 20, "training.window": 50, "training.new_share": 0.9,
}  # fmt: skip
"""Values that change what two runs on the same samples learn."""


@pytest.mark.parametrize("key", LEARNED)
def test_a_key_changes_what_is_learned(tmp_path: Path, key: str) -> None:
    learned, bundle = [], build(mlp(5, 3, (8,)), tmp_path / "bundle", loss="cross_entropy")
    changes: list[dict[str, Any]] = [{}, {key.partition(".")[2]: LEARNED[key]}]
    for number, training in enumerate(changes):
        shop = Workshop(tmp_path / str(number), bundle, **training)
        engine = PortableEngine(bundle)
        trainee = shop.trainee(engine)
        for seed in range(2):
            shop.feed(*task(100, seed))
            trainee.run(shop.request())
        learned.append(np.concatenate([value.ravel() for value in engine.parameters().values()]))
    assert not np.array_equal(learned[0], learned[1])


@pytest.mark.parametrize("key", ELSEWHERE)
def test_the_test_of_a_key_is_there(key: str) -> None:
    path, name = ELSEWHERE[key]
    assert name in functions(ROOT / "tests" / path)


@cache
def functions(path: Path) -> frozenset[str]:
    """The functions of a file of tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_key_of_the_reference_has_a_case() -> None:
    assert [key for key in KEYS if key not in CASES | ELSEWHERE | LEARNED] == []
    assert [key for key in CASES | ELSEWHERE | LEARNED if key not in KEYS] == []
