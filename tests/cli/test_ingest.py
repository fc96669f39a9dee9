"""`edged ingest`: lines of a file become messages, with the daemon running or stopped."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.commands import COMMAND, Answer, edged
from tests.running_device import Device, Listener, running

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto as Broker

STREAM: dict[str, Any] = {
    "topic": "sensors/press",
    "features": ["a", "b"],
    "classes": ["ok", "worn"],
    "label": "y",
}


def line(a: float) -> str:
    return json.dumps({"a": a, "b": -a, "y": "ok"}) + "\n"


def written(folder: Path, broker: Broker | None, **stream: Any) -> Path:
    """A configuration that no daemon runs."""
    mqtt = {"host": "127.0.0.1", "port": 1 if broker is None else broker.port}
    path = folder / "edged.yaml"
    values = {"device": {"id": "rig"}, "mqtt": mqtt, "stream": STREAM | stream}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def fed(text: str, *arguments: object) -> Answer:
    """`edged ingest` with this text on stdin."""
    done = subprocess.run(
        [*COMMAND, "ingest", *map(str, arguments)],
        input=text, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_lines_arrive_whether_the_daemon_runs_or_not(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, STREAM, training={"every": None, "new_labels": 10**6})
    file = tmp_path / "samples.jsonl"
    file.write_text("".join(line(i) for i in range(30)) + "\n" + line(30).strip(), encoding="utf-8")
    with running(device, broker.port) as listener:
        assert edged("ingest", device.path, file, "--json").json == {
            "published": 31,
            "topic": "sensors/press",
        }
        listener.wait(lambda: any(m["ingest"]["samples"] == 31 for m in listener.messages["metrics"]))
    assert "sensors/press: 2 messages published" in fed(line(40) + line(41), device.path, "-").out
    with running(device, broker.port) as listener:
        listener.wait(lambda: any(m["ingest"]["samples"] == 33 for m in listener.messages["metrics"]))
    assert device.cli("status", str(device.path))["samples"] == 33


@pytest.mark.slow
def test_a_file_is_followed_across_its_replacement_until_ctrl_c(broker: Broker, tmp_path: Path) -> None:
    file, other = tmp_path / "log", tmp_path / "log.new"
    file.write_text(line(1), encoding="utf-8")
    with ExitStack() as stack:
        listener = stack.enter_context(closing(Listener(broker.port, "sensors")))

        def arrived(a: float) -> None:
            listener.wait(lambda: [message["a"] for message in listener.messages["press"]][-1:] == [a])

        process = subprocess.Popen(
            [*COMMAND, "ingest", written(tmp_path, broker), file, "--follow", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        stack.enter_context(process)
        stack.callback(process.kill)
        arrived(1)
        with file.open("a", encoding="utf-8") as more:
            for part in (line(2)[:9], line(2)[9:] + line(2.5)[:5]):
                more.write(part)
                more.flush()
        arrived(2)
        other.write_text(line(3), encoding="utf-8")
        other.replace(file)
        arrived(3)
        file.write_text('{"a":4}\n', encoding="utf-8")  # shorter: begun anew
        arrived(4)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, b"edged: interrupted\n")
    assert json.loads(out) == {"published": 4, "topic": "sensors/press"}


@pytest.mark.parametrize(
    ("stream", "options", "problem"),
    [
        ({"topic": "sensors/+"}, [], "stream.topic: this is more than one topic"),
        ({"topic": ["a", "b"]}, [], "stream.topic: this is more than one topic"),
        ({}, ["--topic", "sensors/other"], "--topic: 'sensors/other' is no topic of the stream"),
        ({"topic": "sensors/+"}, ["--topic", "sensors/+"], "--topic: 'sensors/+' is no topic of the stream"),
        ({"codec": "cbor"}, [], "stream.codec: messages in cbor are no lines of text"),
    ],
)
def test_what_cannot_be_published_is_a_mistake_of_usage(
    tmp_path: Path, stream: dict[str, Any], options: list[str], problem: str
) -> None:
    answer = edged("ingest", written(tmp_path, None, **stream), "-", *options)
    assert (answer.code, problem in answer.problem) == (2, True), answer


def test_lines_for_one_of_several_topics_and_for_labels(broker: Broker, tmp_path: Path) -> None:
    path = written(
        tmp_path, broker, topic=["sensors/+"], label={"topic": "labels/#", "path": "label", "join": "id"}
    )
    assert fed(line(1), path, "-", "--topic", "sensors/x").code == 0
    assert (
        fed('{"id": "1-2", "label": "ok"}', path, "-", "--topic", "labels/x", "--json").json["published"] == 1
    )


def test_without_a_broker_it_fails_and_a_line_that_is_too_long_ends_it(
    broker: Broker, tmp_path: Path
) -> None:
    answer = fed(line(1), written(tmp_path, None), "-")
    assert (answer.code, answer.out) == (1, "")
    path = written(tmp_path, broker, max_payload=64)
    answer = fed(line(1) + line(2) + '{"a": ' + "1" * 100 + "}\n" + line(3), path, "-", "--json")
    assert (answer.code, answer.json["published"]) == (1, 2)
    assert "line 3: more than 64 bytes (raise stream.max_payload)" in answer.err


def test_a_broker_that_rejects_is_a_failure(make_broker: MakeBroker, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic read #\n", encoding="utf-8")
    broker = make_broker("allow_anonymous true", f"acl_file {rules}")
    answer = fed(line(1), written(tmp_path, broker), "-", "--json")
    assert (answer.code, answer.json["published"]) == (1, 0)
    assert "sensors/press: the broker rejects messages" in answer.err
