"""Samples and labels over HTTP: on the disk before the answer, all of a request or nothing."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.storage.files.database import connect
from edged.workbench.demo.broker import free_port
from tests.commands import edged
from tests.device.web.client import TOKENS, Answer, Client, token_files
from tests.mutations import Mutations
from tests.running_device import Device, Listener, running

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto

pytestmark = pytest.mark.slow

SAMPLES, LABELS = "/v1/samples", "/v1/labels"
LINES = "application/x-ndjson"
PRESS: dict[str, Any] = {
    "topic": "sensors/press", "features": ["a", "vib.x"], "classes": ["ok", "worn"],
    "label": "y", "id": "no", "key": "m", "ts": "when",
}  # fmt: skip
CPU: dict[str, Any] = {
    "topic": "telegraf/+", "records": "metrics", "features": ["fields.usage_idle"], "key": "tags.host",
    "ts": "timestamp", "task": "reconstruct",
}  # fmt: skip


@dataclass
class Served:
    """A device with a port of its own, which does not train."""

    device: Device
    listener: Listener
    client: Client

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.client("POST", path, body, **headers)

    def stored(self) -> list[tuple[str, float, list[float], float | None]]:
        """Key, time, features and label of every sample that is committed, oldest first."""
        with closing(connect(self.device.state / "samples.db", readonly=True)) as db:
            rows = db.execute("SELECT key, ts, x, y FROM samples ORDER BY offset").fetchall()
        return [(key, ts, np.frombuffer(x, "<f4").tolist(), y) for key, ts, x, y in rows]

    def new(self, path: str, body: Any, **headers: str) -> list[Any]:
        """What a request that is accepted has stored by the time of its answer."""
        before = len(self.stored())
        answer = self.post(path, body, **headers)
        assert answer.status == 200, answer
        return self.stored()[before:]


@contextmanager
def served(
    broker: Mosquitto, folder: Path, stream: dict[str, Any], keys: tuple[Path, ...] = (), **web: Any
) -> Iterator[Served]:
    port = free_port()
    device = Device(
        folder, broker.port, {"context": []} | stream | {"key": stream.get("key")},
        web={"listen": f"127.0.0.1:{port}"} | web, commands={"keys": list(map(str, keys))},
        training={"new_labels": 10**6, "every": None},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        yield Served(device, listener, Client(port))


@pytest.fixture(scope="module")
def press(make_brokers: MakeBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(make_brokers(), tmp_path_factory.mktemp("press"), PRESS) as made:
        yield made


def sample(a: float, **more: Any) -> dict[str, Any]:
    return {"a": a, "vib": {"x": 0.5}, "m": "m1", "when": 1.7e9 + a} | more


def row(a: float, label: float | None = None) -> tuple[str, float, list[float], float | None]:
    return ("m1", 1.7e9 + a, [a, 0.5], label)


def test_one_many_and_lines_are_on_the_disk_when_they_are_answered(press: Served) -> None:
    assert press.new(SAMPLES, sample(1, y="worn")) == [row(1, 1.0)]
    assert press.new(SAMPLES, [sample(2), sample(3)]) == [row(2), row(3)]
    lines = "\n".join(json.dumps(sample(a)) for a in (4, 5)) + "\r\n\n"
    assert press.new(SAMPLES, lines.encode(), content_type=LINES) == [row(4), row(5)]
    packed = gzip.compress(json.dumps(sample(6)).encode())
    assert press.new(SAMPLES, packed, content_encoding="gzip") == [row(6)]
    assert press.post(SAMPLES, [sample(7), {"other": 1}]).json == {"accepted": 1, "passed_over": 1}
    press.listener.wait(lambda: len(press.listener.messages["predictions"]) >= 7)


def test_curl_and_a_kill_right_after_the_answer_lose_nothing(broker: Mosquitto, tmp_path: Path) -> None:
    with served(broker, tmp_path, PRESS) as made:
        url = f"http://127.0.0.1:{made.client.port}{SAMPLES}"
        done = subprocess.run(
            ["curl", "-sS", "--fail", url, "-d", json.dumps(sample(1))], capture_output=True, check=True
        )
        made.device.stop(signal.SIGKILL)
        assert json.loads(done.stdout) == {"accepted": 1, "passed_over": 0}
        assert made.stored() == [row(1)]


@pytest.mark.parametrize(
    ("body", "media", "problem"),
    [
        ([sample(1), {"a": 2, "m": "m1"}], "", ["record 2: missing_field: field 'vib.x' is missing"]),
        (
            [sample(1), sample(2, y="odd"), sample(3, when="x")],
            "",
            ["record 2: label: ", "record 3: timestamp"],
        ),
        ([{"b": 1}, {"c": 2}], "", ["record 1: missing_field: ", "record 2: missing_field: "]),
        (
            b'{"a": 1}\n\n{"a": \n[3]',
            LINES,
            ["line 1: missing_field", "line 3: not_json", "line 4: wrong_type"],
        ),
        (b"cpu,m=1 a=1 1\nnonsense\ncpu a=tt", "text/plain", ["line 2: not_line", "line 3: not_line"]),
    ],
)  # fmt: skip
def test_one_bad_record_rejects_them_all(press: Served, body: Any, media: str, problem: list[str]) -> None:
    before = press.stored()
    answer = press.post(SAMPLES, body, **({"content_type": media} if media else {}))
    assert (answer.status, press.stored()) == (400, before)
    lines = answer.json["rejected"]
    assert [line.startswith(start) for line, start in zip(lines, problem, strict=True)] == [True] * len(
        problem
    )
    assert answer.json["error"].startswith(f"{len(problem)} of ")


@pytest.mark.parametrize(
    ("body", "media", "status", "problem"),
    [
        (b"{", "application/json", 400, "not_json"),
        (b"[]", "application/json", 400, "0 records"),
        (b"", "text/plain", 400, "0 records"),
        (b"\xff\xfe", "text/plain", 400, "not_text"),
        (b"[" * 30_000, "application/json", 400, "too_deep"),
        (b"{}\n" * 1025, LINES, 400, "1 to 1024 are taken"),
        (json.dumps([{}] * 1025).encode(), "", 400, "1025 records"),
        (b"{}", "application/cbor", 415, "content-type"),
    ],
)
def test_what_is_no_request(press: Served, body: bytes, media: str, status: int, problem: str) -> None:
    answer = press.post(SAMPLES, body, content_type=media)
    assert (answer.status, problem in answer.json["error"]) == (status, True), answer


def test_bodies_that_nobody_should_send_are_answered(press: Served) -> None:
    good = [
        json.dumps([sample(1), sample(2, y="ok")]).encode(),
        b'm,m=a a=1,vib=2,y="ok" 1650006388000000000\n' * 2,
    ]
    before = len(press.stored())
    for number, body in enumerate(Mutations(good, seed=1).take(1500)):
        path = LABELS if number % 5 == 0 else SAMPLES
        media = ("application/json", LINES, "text/plain", "")[number % 4]
        answer = press.post(path, body, content_type=media)
        assert answer.status in (200, 400), answer
        before += answer.json["accepted"] if answer.status == 200 and path == SAMPLES else 0
    assert len(press.stored()) == before


def test_labels_find_their_samples_and_those_without_are_counted(press: Served) -> None:
    press.post(SAMPLES, [sample(20, no="s-20"), sample(21, no="s-21")])
    answer = press.post(LABELS, [{"id": "s-20", "y": "worn"}, {"id": "nobody", "y": "ok"}])
    assert (answer.status, answer.json) == (200, {"accepted": 2, "unmatched": 1})
    assert press.stored()[-2:] == [row(20, 1.0), row(21)]
    wrong = press.post(LABELS, b'{"id": "s-21", "y": "ok"}\n{"id": "s-21", "y": "odd"}', content_type=LINES)
    assert wrong.status == 400
    assert wrong.json["rejected"][0].startswith("line 2: label: label 'odd' is none of the 2 classes")
    lacking = press.post(LABELS, [{"id": "s-21", "y": "ok"}, {"id": "s-20"}])
    assert lacking.json["rejected"] == ["record 2: missing_field: field 'y' is missing: the message has id"]
    assert press.stored()[-1] == row(21)


def test_telegraf_sends_batches_in_both_formats(broker: Mosquitto, tmp_path: Path) -> None:
    text = "text/plain; charset=utf-8"  # as its output sends by default, whatever the format
    line = b"""cpu,host=a usage_idle=98.1,procs=120i,ok=t 1650006388000000000
mem,host=a used=41.2 1650006388000000000
"""
    batch = {"metrics": [
        {"fields": {"usage_idle": 97.5}, "name": "cpu", "tags": {"host": "b"}, "timestamp": 1650006398},
        {"fields": {"used": 1}, "name": "mem", "tags": {"host": "b"}, "timestamp": 1650006398},
    ]}  # fmt: skip
    with served(broker, tmp_path, CPU) as made:
        assert "?topic=" in made.post(SAMPLES, line, content_type=text).json["error"]
        assert made.post(f"{SAMPLES}?topic=other", line, content_type=text).status == 400
        assert made.post(f"{SAMPLES}?topic=telegraf/%2B", line, content_type=text).status == 400
        path = f"{SAMPLES}?topic=telegraf/a"
        assert made.new(path, line, content_type=text)[0][:2] == ("a", 1650006388.0)
        coarse = line.replace(b"000000000\n", b"\n")  # in seconds, as the size of the number tells
        assert made.new(path, coarse, content_type=text)[0][:2] == ("a", 1650006388.0)
        packed = gzip.compress(json.dumps(batch).encode())
        assert made.new(path, packed, content_type=text, content_encoding="gzip")[0][:2] == (
            "b",
            1650006398.0,
        )
        assert made.post(path, line * 520, content_type=text).status == 400  # too many
        assert made.post(LABELS, {"id": "a", "label": 1}).json["error"].startswith("task reconstruct")


def test_windows_and_joined_streams_are_fed_as_by_messages(broker: Mosquitto, tmp_path: Path) -> None:
    windows = PRESS | {"window": {"size": 2, "stride": 2}}
    (tmp_path / "windows").mkdir()
    with served(broker, tmp_path / "windows", windows) as made:
        assert made.new(SAMPLES, sample(1)) == []
        assert made.new(SAMPLES, [sample(2), sample(3)]) == [("m1", 1.7e9 + 2, [1, 0.5, 2, 0.5], None)]
    joined = {
        "topic": "z/pump", "key": {"fixed": "pump"}, "ts": "ts", "classes": ["off", "on"], "sample": "a",
        "features": ["a", {"name": "b", "topic": "z/other", "path": "v"}],
        "label": {"topic": "l", "hold": True},
    }  # fmt: skip
    (tmp_path / "joined").mkdir()
    with served(broker, tmp_path / "joined", joined) as made:
        assert made.new(f"{SAMPLES}?topic=z/other", {"v": "ON", "ts": 1.7e9}) == []
        made.device.stop(signal.SIGKILL)
        made.device.start()
        made.listener.wait(
            lambda: len([s for s in made.listener.messages["status"] if s["state"] == "online"]) == 2
        )
        assert made.post(f"{LABELS}?topic=l", {"label": "on", "ts": 1.7e9}).status == 200
        assert made.new(SAMPLES, {"a": 2, "ts": 1.7e9 + 1}) == [("pump", 1.7e9 + 1, [2, 1], 1.0)]
        assert made.post(SAMPLES, {"v": 1}).status == 400


def test_the_format_of_the_stream_does_not_matter(broker: Mosquitto, tmp_path: Path) -> None:
    stream = {"topic": "raw/+", "codec": "float32", "features": 2, "key": "topic:1",
              "classes": 2, "max_payload": 64}  # fmt: skip
    with served(broker, tmp_path, stream) as made:
        path = f"{SAMPLES}?topic=raw/m7"
        assert made.new(path, [{"x": [1, 2]}, {"x": [3, 4], "padding": "a" * 100}])[1][2] == [3, 4]
        assert made.stored()[0][0] == "m7"
        assert made.post(path, {"x": [1]}).json["rejected"] == [
            "record 1: shape: field 'x' has 1 numbers, expected 2"
        ]


def test_the_token_for_it_opens_nothing_else(broker: Mosquitto, tmp_path: Path) -> None:
    tokens = token_files(tmp_path, ("ingest",))
    with served(broker, tmp_path, PRESS | {"key_rate": 0.001, "key_burst": 2}, tokens=tokens) as made:
        assert made.post(SAMPLES, sample(1)).status == 401
        sender = made.client.using(TOKENS["ingest"])
        assert sender("POST", SAMPLES, [sample(1), sample(2)]).status == 200
        assert sender("POST", SAMPLES, sample(3)).status == 429
        assert sender("POST", "/api/commands/pause", {"what": "training"}).status == 403
        assert made.stored() == [row(1), row(2)]


def test_where_commands_are_signed_nobody_labels_without_the_token(broker: Mosquitto, tmp_path: Path) -> None:
    edged("keys", "new", "-o", tmp_path / "key")
    tokens = token_files(tmp_path, ("infer", "ingest"))
    with served(broker, tmp_path, PRESS, (tmp_path / "key.pub",), tokens=tokens) as made:
        answers = [
            made.client.using(TOKENS[scope])("POST", SAMPLES, sample(1)) for scope in ("infer", "ingest")
        ]
    assert [answer.status for answer in answers] == [403, 200]


def test_a_bare_label_by_curl(press: Served, broker: Mosquitto, tmp_path: Path) -> None:
    """The label that holds from now on; where labels name samples, the error says what is expected."""

    def curl(made: Served) -> dict[str, Any]:
        url = f"http://127.0.0.1:{made.client.port}{LABELS}"
        done = subprocess.run(["curl", "-sS", url, "-d", "worn"], capture_output=True, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    assert curl(press)["error"] == (
        "1 of 1 records rejected, none stored: line 1: wrong_type: received 'worn', "
        'expected an object such as {"id": "4-1207", "label": "worn"}'
    )
    held = PRESS | {"label": {"topic": "rig/state", "hold": True}, "key": {"fixed": "m1"}}
    with served(broker, tmp_path, held) as made:
        assert curl(made) == {"accepted": 1, "unmatched": 0}
        assert made.new(SAMPLES, sample(1) | {"when": time.time()})[0][3] == 1.0
