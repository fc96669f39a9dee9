"""`edged init`: from a broker with other people's topics to the first prediction, without an editor."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import paho.mqtt.client as mqtt
import pytest
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from edged.workbench.demo.broker import free_port
from tests.commands import COMMAND, SECONDS, edged
from tests.running_device import Listener, wait_until
from tests.sensor_payloads import CHIRPSTACK, HOUSE, NO_READINGS, PLUG, PUMP, SHELLY

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto as Broker

BEAT = 0.25
OTHERS = [
    ("tele/plug/SENSOR", PLUG), ("stat/plug/POWER", b"ON"),
    ("application/1/device/70b3/event/up", CHIRPSTACK), ("shellyplus1pm-a1/status/switch:0", SHELLY),
]  # fmt: skip


@contextmanager
def house(port: int, *, live: Sequence[tuple[str, bytes]] = (("zigbee2mqtt/pump", PUMP),)) -> Iterator[None]:
    """Sensors of a house on a broker: some retained, the pump live, its temperature moving."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()
    for topic, payload in [*HOUSE, *NO_READINGS, *OTHERS]:
        client.publish(topic, payload, qos=1, retain=True).wait_for_publish(10)
    ended = threading.Event()

    def send() -> None:
        beat = 0
        while not ended.wait(BEAT):
            for topic, payload in live:
                client.publish(topic, payload.replace(b"21.3", b"21.%d" % (beat % 10)), qos=1)
            beat += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)
        client.disconnect()
        client.loop_stop()


def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def test_from_a_broker_to_the_first_prediction_without_an_editor(broker: Broker, tmp_path: Path) -> None:
    began = time.monotonic()
    path = tmp_path / "edged.yaml"
    with house(broker.port):
        made = edged("init", tmp_path, "--broker", address(broker), "--seconds", 3, "--yes")
        assert made.code == 0, made.err
        assert [f"edged {what} {path}" in made.out for what in ("doctor", "run")] == [True, True]
        stream = yaml.safe_load(path.read_text(encoding="utf-8"))["stream"]
        assert (stream["topic"], stream["key"]) == ("zigbee2mqtt/pump", {"fixed": "pump"})
        assert stream["features"] == ["temperature", "humidity", "vibration", "contact", "state"]
        assert edged("config", "check", path).code == 0
        looked = edged("doctor", path, "--seconds", 2, "--json")
        assert looked.code == 0, looked.out
        found = {finding["what"]: finding for finding in looked.json}
        assert (found["messages"]["level"], found["samples"]["level"]) == ("ok", "ok")
        listener = Listener(broker.port, "edged/pump")
        daemon = subprocess.Popen([*COMMAND, "run", str(path)], stderr=subprocess.DEVNULL)
        try:
            listener.wait(lambda: listener.messages["predictions"], 200)
        finally:
            daemon.terminate()
            daemon.wait(20)
            listener.close()
    prediction = listener.messages["predictions"][0]
    assert (prediction["key"], prediction["label"] in ("normal", "fault")) == ("pump", True)
    assert time.monotonic() - began < 300


def test_the_table_shows_topics_fields_kinds_rates_and_ranges(broker: Broker, tmp_path: Path) -> None:
    with house(broker.port):
        made = edged("init", tmp_path, "--broker", address(broker), "--seconds", 2, "--yes", COLUMNS="150")
    lines = made.out.splitlines()
    pump = next(line.split() for line in lines if "zigbee2mqtt/pump" in line)
    assert pump[:4] == ["1", "zigbee2mqtt/pump", "temperature", "number"]
    assert 3 < float(pump[4].removesuffix("/s")) < 5
    assert any(line.split()[:2] == ["vibration", "on/off"] for line in lines)
    assert "other topics have no readings" in made.out
    assert "friendly_name" not in made.out


def test_topics_that_are_named_are_joined(broker: Broker, tmp_path: Path) -> None:
    filters = ["zigbee2mqtt/pump", "tele/plug/SENSOR", *(topic for topic, _ in HOUSE)]
    asked = [word for name in filters for word in ("--listen", name)]
    with house(broker.port):
        made = edged("init", tmp_path, "--broker", address(broker), "--seconds", 2, "--yes", *asked)
    assert made.code == 0, made.err
    stream = yaml.safe_load((tmp_path / "edged.yaml").read_text(encoding="utf-8"))["stream"]
    names = [f if isinstance(f, str) else f["name"] for f in stream["features"]]
    assert names[:5] == ["temperature", "humidity", "vibration", "contact", "state"]
    assert {"power", "voltage", "living_room_window"} < set(names)
    assert stream["sample"] == "temperature"
    assert edged("config", "check", tmp_path / "edged.yaml").code == 0


def test_a_recorded_table_needs_no_broker(tmp_path: Path) -> None:
    rows = "\n".join(f"{40 + i % 5}.5,{i % 3},{'ok' if i % 2 else 'worn'}" for i in range(60))
    data = tmp_path / "press.csv"
    data.write_text(f"temp,vib,state\n{rows}\n", encoding="utf-8")
    made = edged("init", tmp_path / "new", "--from", data, "--yes", "--json")
    path = tmp_path / "new" / "edged.yaml"
    assert made.json["config"] == str(path)
    assert made.json["next"][0] == f"edged evaluate {path} --data {data}"
    stream = yaml.safe_load(path.read_text(encoding="utf-8"))["stream"]
    assert stream == {
        "topic": "sensors/press", "key": "topic:1", "features": ["temp", "vib"], "classes": ["ok", "worn"],
        "label": "state",
    }  # fmt: skip
    evaluated = edged("evaluate", path, "--data", data, "--pretrain", "20", "--json")
    assert evaluated.json["samples"] == 60


def test_a_capture_of_mosquitto_sub(tmp_path: Path) -> None:
    capture = tmp_path / "capture.txt"
    capture.write_bytes(b"".join(b"zigbee2mqtt/pump %s\n" % PUMP for _ in range(6)))
    assert edged("init", tmp_path, "--from", capture, "--yes").code == 0
    assert edged("config", "check", tmp_path / "edged.yaml").code == 0


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "edged.yaml"
    path.write_text("mine", encoding="utf-8")
    capture = tmp_path / "capture.txt"
    capture.write_bytes(b"zigbee2mqtt/pump %s\n" % PUMP)
    refused = edged("init", tmp_path, "--from", capture, "--yes")
    assert (refused.code, path.read_text(encoding="utf-8")) == (2, "mine")
    assert "--force" in refused.problem
    assert edged("init", tmp_path, "--from", capture, "--yes", "--force").code == 0
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["device"] == {"id": "pump"}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--yes", "--broker", "mqtt://a:b@c"], 2, "--password-file"),
        ([], 2, "add --yes"),
        (["--yes", "--from", "nowhere.csv"], 2, "nowhere.csv"),
    ],
)
def test_wrong_options_are_one_line(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    answer = edged("init", tmp_path, *arguments)
    assert (answer.code, told in answer.problem) == (code, True)


def test_no_broker_no_messages_and_nothing_usable_are_one_line(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    port = free_port()
    nobody = edged("init", tmp_path, "--broker", f"127.0.0.1:{port}", "--yes")
    assert (nobody.code, f"127.0.0.1:{port}" in nobody.problem, "--broker" in nobody.problem) == (
        1,
        True,
        True,
    )
    closed = make_broker("allow_anonymous false")
    unwelcome = edged("init", tmp_path, "--broker", f"127.0.0.1:{closed.port}", "--yes")
    assert (unwelcome.code, "--password-file" in unwelcome.problem) == (1, True)
    silent = edged("init", tmp_path, "--broker", address(make_broker()), "--yes", "--seconds", 0.5)
    assert (silent.code, "no message arrived" in silent.problem) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_user_and_password_are_written_too(make_broker: MakeBroker, tmp_path: Path) -> None:
    users = tmp_path / "users"
    password = tmp_path / "password"
    password.write_text("secret\n", encoding="utf-8")
    subprocess.run(["mosquitto_passwd", "-b", "-c", users, "me", "secret"], check=True, capture_output=True)
    users.chmod(0o644)
    broker = make_broker("allow_anonymous false", f"password_file {users}")
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set("me", "secret")
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    client.publish("zigbee2mqtt/pump", PUMP, qos=1, retain=True).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()
    broker_option = ["--broker", f"me@{address(broker)}", "--password-file", str(password)]
    made = edged("init", tmp_path, *broker_option, "--seconds", 1, "--yes")
    assert made.code == 0, made.err
    section = yaml.safe_load((tmp_path / "edged.yaml").read_text(encoding="utf-8"))["mqtt"]
    assert (section["username"], section["password_file"]) == ("me", str(password))
    found = {
        f["what"]: f["level"] for f in edged("doctor", tmp_path / "edged.yaml", "--seconds", 1, "--json").json
    }
    assert (found["broker"], found["messages"]) == ("ok", "ok")


# ---- with a person at a terminal -----------------------------------------------------------


class Person:
    """`edged init` on a terminal of its own; `answer` waits for a question and types a line."""

    def __init__(self, *arguments: object) -> None:
        self._terminal, theirs = pty.openpty()
        environment = os.environ | {"COLUMNS": "130", "TERM": "dumb"}
        self._process = subprocess.Popen(
            [*COMMAND, "init", *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        self.seen = ""
        self._read = 0

    def answer(self, question: str, line: str, *, interrupt: bool = False) -> None:
        """Wait until `question` is on the screen, behind what was answered before; type `line`, or Ctrl-C."""
        while question not in self.seen[self._read :]:
            self.seen += os.read(self._terminal, 65536).decode(errors="replace")
        self._read = len(self.seen)
        if interrupt:
            state = Path(
                f"/proc/{self._process.pid}/stat"
            )  # it waits for the answer: a signal cannot get lost
            wait_until(lambda: state.read_text(encoding="ascii").rpartition(") ")[2].startswith("S"))
            self._process.send_signal(signal.SIGINT)
        else:
            os.write(self._terminal, f"{line}\n".encode())

    def end(self) -> int:
        """Read to the end; the exit code."""
        with suppress(OSError):  # what reading gives when the other side is closed
            while part := os.read(self._terminal, 65536):
                self.seen += part.decode(errors="replace")
        os.close(self._terminal)
        return self._process.wait(SECONDS)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """What was heard in a house, in a file."""
    path = tmp_path / "capture.txt"
    messages = [("zigbee2mqtt/pump", PUMP)] * 6 + [*HOUSE, *OTHERS]
    path.write_bytes(b"".join(topic.encode() + b" " + payload + b"\n" for topic, payload in messages))
    return path


def test_enter_takes_what_is_proposed(tmp_path: Path, capture: Path) -> None:
    assert edged("init", tmp_path / "a", "--from", capture, "--yes").code == 0
    person = Person(tmp_path / "b", "--from", capture)
    for question in ("Which machine", "Features", "Number", "Names of the classes", "Name of this device"):
        person.answer(question, "")
    assert person.end() == 0, person.seen
    one, other = ((tmp_path / name / "edged.yaml").read_text(encoding="utf-8") for name in ("a", "b"))
    assert one == other


def test_a_person_chooses(tmp_path: Path, capture: Path) -> None:
    person = Person(tmp_path, "--from", capture)
    person.answer("Which machine", "9,x")
    person.answer("numbers from 1 to", "1,2")
    person.answer("Features", "0")
    person.answer("Enter numbers", "1-2,6")
    person.answer("Number", "1")
    person.answer("Names of the classes", "dry")
    person.answer("at least two names", "dry, wet")
    person.answer("Name of this device", "my pump")
    assert person.end() == 0, person.seen
    values = yaml.safe_load((tmp_path / "edged.yaml").read_text(encoding="utf-8"))
    stream = values["stream"]
    assert (values["device"], stream["classes"]) == ({"id": "my-pump"}, ["dry", "wet"])
    assert stream["features"][:2] == ["temperature", "humidity"]
    assert len(stream["features"]) == 3
    assert stream["features"][2]["topic"] != "zigbee2mqtt/pump"
    assert stream["label"] == {"topic": "labels/my-pump", "hold": True}


def test_a_field_that_is_proposed_as_the_label_is_offered_once(tmp_path: Path) -> None:
    capture = tmp_path / "capture.txt"
    capture.write_text("".join(f's/p {{"temp":{n}.5,"state":"{"ab"[n % 2]}"}}\n' for n in range(8)))
    person = Person(tmp_path / "new", "--from", capture)
    for question in ("Number", "Names of the classes", "Name of this device"):
        person.answer(question, "")
    assert person.end() == 0
    assert person.seen.count("the field state") == 1


def test_ctrl_c_writes_nothing(tmp_path: Path, capture: Path) -> None:
    person = Person(tmp_path / "new", "--from", capture)
    person.answer("Which machine", "1", interrupt=True)
    assert person.end() == 130
    assert not (tmp_path / "new").exists()
