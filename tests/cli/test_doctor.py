"""The preflight: each finding from its real cause."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from edged.bundles.graph.templates import mlp
from edged.cli.doctor import CheckResult, examine
from edged.config import loader
from edged.device.startup.bootstrap import with_bundle
from edged.domain.stream.sample import Batch, Reading
from edged.engines.native import api
from edged.lazy_imports import hidden
from edged.signing import new_pair
from edged.storage.files.atomic import DirectoryLock
from edged.storage.models.bundles import Bundle, seal
from edged.storage.models.trust import Trust
from edged.storage.samples.log import SampleLog
from edged.workbench.demo.broker import free_port
from tests.building import build
from tests.commands import edged, write_config
from tests.installed import needs_native

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto as Broker

STREAM = {"features": 4, "classes": 2}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for the stream; copy it before damaging it."""
    return build(mlp(4, 2, [8]), tmp_path_factory.mktemp("bundle") / "b", loss="cross_entropy").path


def finding(path: Path, what: str) -> CheckResult:
    found = [f for f in examine(path) if f.what == what]
    assert len(found) == 1
    return found[0]


def configured(folder: Path, port: int = 1, **sections: Any) -> Path:
    return write_config(folder, STREAM, mqtt={"host": "127.0.0.1", "port": port}, **sections)


def keep(broker: Broker, topic: str, payload: bytes) -> None:
    """Publish a message that the broker retains."""
    publish = ["mosquitto_pub", "-p", str(broker.port), "-q", "1", "-r", "-t", topic, "-s"]
    subprocess.run(publish, input=payload, check=True, timeout=30)


def test_a_device_in_good_order_has_nothing_but_ok(broker: Broker, bundle: Path, tmp_path: Path) -> None:
    path = configured(tmp_path, broker.port, model={"bundle": str(bundle)}, storage={"max_bytes": "1MiB"})
    keep(broker, "sensors/a", b'{"x": [1, 2, 3, 4]}')
    findings = examine(path, 0.5)
    assert {f.level for f in findings} == {"ok"}
    assert [f.what for f in findings] == [
        "configuration", "onnxruntime", "bundle", "engine", "state directory", "disk", "clock",
        "processors", "broker", "messages", "samples",
    ]  # fmt: skip
    assert not [f for f in findings if f.remedy]
    assert list((tmp_path / "state").iterdir()) == [], "nothing is left behind"


def test_a_device_that_forgot_what_it_trusted(tmp_path: Path) -> None:
    public = new_pair(tmp_path / "key")
    path = configured(tmp_path, commands={"keys": [str(public)]})
    (tmp_path / "state").mkdir()
    for name in ("trust.json", "trust.copy.json"):
        (tmp_path / "state" / name).write_bytes(b"{}")
    found = finding(path, "trust")
    assert (found.level, "are lost" in found.result) == ("warning", True)
    assert "--allow-downgrade" in found.remedy
    Trust(tmp_path / "state").forget_versions()
    assert not [f for f in examine(path) if f.what == "trust"]


def test_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    port = free_port()
    found = finding(configured(tmp_path, port), "broker")
    assert (found.level, f"127.0.0.1:{port}" in found.result) == ("error", True)
    assert "mqtt.host" in found.remedy


def test_a_broker_whose_name_is_unknown(tmp_path: Path) -> None:
    path = write_config(tmp_path, STREAM, mqtt={"host": "no-such-host.invalid", "insecure": True})
    assert finding(path, "broker").level == "error"


def test_a_damaged_bundle_names_the_file(bundle: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(bundle, tmp_path / "damaged")
    content = bytearray((damaged / "inference_model.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / "inference_model.onnx").write_bytes(content)
    found = finding(configured(tmp_path, model={"bundle": "damaged"}), "bundle")
    assert (found.level, "inference_model.onnx" in found.result) == ("error", True)
    assert "artifacts build" in found.remedy


def test_a_bundle_of_another_stream(bundle: Path, tmp_path: Path) -> None:
    path = write_config(tmp_path, {"features": 7, "classes": 2}, model={"bundle": str(bundle)})
    found = finding(path, "bundle")
    assert found.level == "error"
    assert "4" in found.result
    assert "7" in found.result


def test_a_bundle_that_is_not_there_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    found = examine(configured(tmp_path, model={"bundle": "nowhere"}))
    assert [(f.what, f.level) for f in found] == [("configuration", "error")]
    assert "nowhere" in found[0].result


@needs_native
def test_an_engine_that_the_bundle_is_not_for(tmp_path: Path) -> None:
    native = build(mlp(4, 2, [8]), tmp_path / "b", loss="cross_entropy", engine="native").path
    path = configured(tmp_path, model={"bundle": str(native)}, training={"engine": "portable"})
    found = finding(path, "engine")
    assert (found.level, "portable" in found.result) == ("error", True)


def test_an_operator_that_this_runtime_does_not_have_is_named(bundle: Path, tmp_path: Path) -> None:
    foreign = shutil.copytree(bundle, tmp_path / "foreign")
    graph = onnx.load(str(foreign / "step_model.onnx"))
    graph.graph.node[0].op_type = "Unheard"
    onnx.save(graph, str(foreign / "step_model.onnx"))
    opened = Bundle.open(foreign, verify=False)
    seal(opened, opened.files)
    found = finding(configured(tmp_path, model={"bundle": "foreign"}), "engine")
    assert (found.level, "Unheard" in found.result) == ("error", True)
    assert found.remedy


def test_the_engine_that_trains_is_told(bundle: Path, tmp_path: Path) -> None:
    found = finding(configured(tmp_path, model={"bundle": str(bundle)}), "engine")
    assert (found.level, found.result) == ("ok", "portable: every operator that it needs is there")


def test_the_standard_network_that_was_built_is_looked_at_like_one_that_is_named(tmp_path: Path) -> None:
    path = configured(tmp_path)
    assert finding(path, "engine").result == "portable trains the standard network"
    with_bundle(loader.load(path))
    assert finding(path, "bundle").level == "ok"
    assert finding(path, "engine").result == "portable: every operator that it needs is there"


@needs_native
def test_a_standard_network_is_built_for_the_native_engine_where_that_is_configured(tmp_path: Path) -> None:
    path = configured(tmp_path, training={"engine": "native"})
    with_bundle(loader.load(path))
    assert finding(path, "engine").result == "native: every operator that it needs is there"


def test_a_native_engine_that_is_not_installed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "available", lambda: False)
    found = finding(configured(tmp_path, training={"engine": "native"}), "engine")
    assert (found.level, found.result) == ("error", "onnxruntime-training is not installed")
    assert "pip install onnxruntime-training-cpu" in found.remedy


@pytest.mark.parametrize(("section", "what"), [("training", "engine"), ("serving", "bundle")])
def test_a_provider_that_is_not_there(bundle: Path, tmp_path: Path, section: str, what: str) -> None:
    sections: dict[str, Any] = {"model": {"bundle": str(bundle)}}
    sections[section] = {"provider": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
    found = finding(configured(tmp_path, **sections), what)
    assert found.level == "error"
    assert f"{section}.provider: this onnxruntime has no CUDAExecutionProvider" in found.result
    assert re.search("it has .*CPUExecutionProvider", f"{found.result} {found.remedy}")


@pytest.mark.parametrize(("codec", "package"), [("msgpack", "msgpack"), ("json", "google.protobuf")])
def test_a_format_whose_package_is_missing(
    tmp_path: Path, codec: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path, {**STREAM, "codec": codec}, sparkplug={"group": "plant"})
    assert finding(path, "formats").level == "ok"
    monkeypatch.delitem(sys.modules, package)
    with hidden(package):
        found = finding(path, "formats")
    assert found.level == "error"
    assert "edged[" in found.remedy


def test_a_state_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = finding(configured(tmp_path, storage={"dir": "file/state"}), "state directory")
    assert (found.level, "file/state" in found.result) == ("error", True)
    assert "storage.dir" in found.remedy


def test_a_disk_smaller_than_the_cap_of_the_sample_log(tmp_path: Path) -> None:
    found = finding(configured(tmp_path, storage={"max_bytes": "5000000 GiB"}), "disk")
    assert (found.level, "max_bytes" in found.remedy) == ("warning", True)


def test_a_running_daemon_is_told_with_its_process(tmp_path: Path) -> None:
    path = configured(tmp_path)
    assert "daemon" not in [f.what for f in examine(path)]
    with DirectoryLock(tmp_path / "state"):
        assert finding(path, "daemon").level == "ok"


def test_a_running_daemon_is_not_thrown_out_by_the_examination(
    tmp_path: Path, make_broker: MakeBroker
) -> None:
    """Under rules that make one client id of all with one certificate, connecting would do that.

    This broker lets nobody in: whoever tried would say so.
    """
    port = make_broker("allow_anonymous false").port
    path = write_config(tmp_path, STREAM, mqtt={"host": "127.0.0.1", "port": port, "username": "press"})
    assert finding(path, "broker").level == "error"
    with DirectoryLock(tmp_path / "state"):
        found = finding(path, "broker")
    assert (found.level, "edged status" in found.result) == ("ok", True)


def test_two_builds_of_onnxruntime_in_one_environment(tmp_path: Path) -> None:
    other = tmp_path / "site" / "onnxruntime-1.23.2.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime\nVersion: 1.23.2\n")
    other = tmp_path / "site" / "onnxruntime_training-1.19.2.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-training\nVersion: 1.19.2\n")
    answer = edged("doctor", configured(tmp_path), "--json", PYTHONPATH=str(tmp_path / "site"))
    found = next(f for f in answer.json if f["what"] == "onnxruntime")
    assert found["level"] == "error"
    assert "install one" in found["remedy"]


def test_the_exit_code_tells_whether_there_was_an_error(broker: Broker, tmp_path: Path) -> None:
    keep(broker, "sensors/a", b'{"x": [1, 2, 3, 4]}')
    good = edged("doctor", configured(tmp_path, broker.port, storage={"max_bytes": "1MiB"}), "--json")
    assert (good.code, {f["level"] for f in good.json}) == (0, {"ok"})
    bad = edged("doctor", configured(tmp_path, free_port()))
    assert bad.code == 1
    assert "broker" in bad.out
    assert "error" in bad.out


def test_what_http_needs_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "read.token"
    token.write_text("0123456789abcdef" * 2)
    path = configured(tmp_path, web={"unix_socket": "edged.sock", "tokens": {"read": "read.token"}})
    found = finding(path, "http")
    assert (found.level, found.result) == (
        "ok", f"listens on 127.0.0.1:8080 and {tmp_path / 'edged.sock'}; tokens: read",
    )  # fmt: skip
    token.write_text("short")
    found = finding(path, "http")
    assert (found.level, "openssl rand" in found.remedy) == ("error", True)
    for name in [name for name in sys.modules if name.startswith(("edged.device.web", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    with hidden("uvicorn"):
        found = finding(path, "http")
    assert (found.level, found.remedy) == ("error", "pip install 'edged[web]'")


@pytest.mark.parametrize(
    ("rules", "named"),
    [({}, False), ({"require_signed": "all"}, False), ({"require_signed": ["wipe", "config.set"]}, True)],
)
def test_a_list_that_leaves_commands_unsigned_is_named(
    tmp_path: Path, rules: dict[str, Any], *, named: bool
) -> None:
    new_pair(tmp_path / "key")
    found = examine(configured(tmp_path, commands={"keys": ["key.pub"], **rules}))
    warned = [line for line in found if line.what == "commands"]
    assert bool(warned) is named
    for line in warned:
        assert (line.level, "changes" in line.remedy) == ("warning", True)
        assert ": accept, bundle.install, cancel, " in line.result
        assert all(name not in line.result for name in ("wipe", "config.set", "ping"))


def test_a_fleet_whose_models_cannot_be_served_is_named(bundle: Path, tmp_path: Path) -> None:
    new_pair(tmp_path / "key")
    model = {"bundle": str(bundle), "keys": ["key.pub"]}
    path = configured(tmp_path, model=model, fleet={"name": "plant"})
    assert [line.level for line in examine(path) if line.what == "fleet"] == ["warning"]


def test_a_fleet_whose_rounds_need_no_signature_is_named(tmp_path: Path) -> None:
    new_pair(tmp_path / "key")
    for fleet, levels in (({}, ["warning"]), ({"keys": ["key.pub"]}, [])):
        path = configured(tmp_path, commands={"keys": ["key.pub"]}, fleet={"name": "plant", **fleet})
        assert [line.level for line in examine(path) if line.what == "fleet"] == levels


# ---- what comes on the topics --------------------------------------------------------------


def live(path: Path) -> list[tuple[str, str, str]]:
    """The findings about messages, samples and labels: what, level, result."""
    return [
        (f.what, f.level, f.result) for f in examine(path, 0.5) if f.what in ("messages", "samples", "labels")
    ]


def test_messages_that_would_be_refused_are_told_in_the_words_of_ingest(
    broker: Broker, tmp_path: Path
) -> None:
    stream = {"features": ["temp", "flow"], "classes": ["ok", "worn"], "label": "state"}
    path = write_config(tmp_path, stream, mqtt={"host": "127.0.0.1", "port": broker.port})
    for i, payload in enumerate((b'{"Temp": 1}', b'{"temp": 1}', b"on", b'{"temp": 1, "flow": "x"}')):
        keep(broker, f"sensors/{i}", payload)
    ((what, level, result),) = live(path)
    assert (what, level) == ("messages", "error")
    assert result.startswith("4 on sensors/# in 0.5 s, 4 would be rejected")
    assert "field 'temp' is missing: the message has Temp; did you mean Temp?" in result
    keep(broker, "sensors/4", b'{"temp": 1, "flow": 2, "state": "worn"}')
    keep(broker, "sensors/5", b'{"temp": 1, "flow": 2, "state": "broken"}')
    (_, level, result), *rest = live(path)
    assert (level, result.startswith("6 on sensors/# in 0.5 s, 5 would be rejected")) == ("warning", True)
    assert rest == [("samples", "ok", "2 in 0.5 s, 1 with a label")]


def test_silence_is_told_and_is_no_error(broker: Broker, tmp_path: Path) -> None:
    answer = edged("doctor", configured(tmp_path, broker.port), "--seconds", "0.5")
    assert answer.code == 0
    assert "no message on sensors/# in 0.5 s" in " ".join(answer.out.split())
    assert live(configured(tmp_path, broker.port)) == [
        ("messages", "warning", "no message on sensors/# in 0.5 s")
    ]


def test_labels_are_looked_for_among_samples_and_in_the_log(broker: Broker, tmp_path: Path) -> None:
    stream = STREAM | {"topic": "sensors/#", "id": "id", "label": {"topic": "labels/#", "join": "id"}}
    path = write_config(tmp_path, stream, mqtt={"host": "127.0.0.1", "port": broker.port})
    assert ("labels", "ok", "none on labels/# in 0.5 s") in live(path)
    keep(broker, "sensors/a", b'{"id": "1", "x": [1, 2, 3, 4]}')
    for i in (1, 2):
        keep(broker, f"labels/{i}", b'{"id": "%d", "label": 1}' % i)
    assert live(path)[-1] == ("labels", "warning", "2 received, 1 match a sample")
    schema = loader.load(path).stream.to_schema()
    (tmp_path / "state").mkdir(exist_ok=True)
    log = SampleLog.open(tmp_path / "state" / "samples.db", schema)
    now = time.time()
    readings = [Reading("sensors/a", [1.0, 2.0, 3.0, 4.0], id="2")]
    log.commit(Batch.of(readings, [None], first=log.next_offset(), now=now, ts=np.array([now])), [], [], [])
    log.close()
    assert live(path)[-1] == ("labels", "ok", "2 received, 2 match a sample")


def test_joined_topics_say_what_is_still_awaited(broker: Broker, tmp_path: Path) -> None:
    features = ["temperature", {"name": "room", "topic": "ha/room/state"}]
    stream = {
        "topic": "zigbee2mqtt/pump", "key": {"fixed": "pump"}, "features": features,
        "classes": ["ok", "worn"], "label": {"topic": "labels/pump", "hold": True},
    }  # fmt: skip
    path = write_config(tmp_path, stream, mqtt={"host": "127.0.0.1", "port": broker.port})
    keep(broker, "zigbee2mqtt/pump", b'{"temperature": 21.3}')
    told = live(path)
    assert ("messages", "warning", "no message on ha/room/state in 0.5 s") in told
    assert ("samples", "warning", "none in 0.5 s: no value of room") in told
    keep(broker, "ha/room/state", b"20.5")
    keep(broker, "labels/pump", b"worn")
    told = live(path)
    assert {level for _, level, _ in told} == {"ok"}
    assert any(what == "samples" and result.startswith("1 in 0.5 s") for what, _, result in told)
    assert told[-1][2] == "1 received, each for the following samples of its key"


def test_a_running_daemon_without_a_name_at_the_broker_is_not_in_the_way(
    broker: Broker, tmp_path: Path
) -> None:
    keep(broker, "sensors/a", b'{"x": [1, 2, 3, 4]}')
    path = configured(tmp_path, broker.port)
    with DirectoryLock(tmp_path / "state"):
        assert ("samples", "ok", "1 in 0.5 s") in live(path)
