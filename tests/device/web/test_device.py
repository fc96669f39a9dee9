"""A daemon that is asked over HTTP: predictions, samples, labels, training and a swap; metrics and events."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.device.web.http.bodies import MAX_STREAMS
from edged.workbench.demo.broker import free_port
from tests.device.web.client import INFER, MODEL, Client, rows, store, token_files, web_device
from tests.running_device import START_SECONDS, running, wait_until

if TYPE_CHECKING:
    from tests.device.web.conftest import Site
    from tests.mosquitto import Mosquitto

pytestmark = pytest.mark.slow


class Stream:
    """An open event stream, read on a thread of its own."""

    def __init__(self, client: Client, path: str = "/api/events", **headers: str) -> None:
        self.events: list[tuple[str, Any]] = []
        self.last = ""
        self._changed = threading.Condition()
        self._link = client.connection()
        self._link.request("GET", path, None, client.headers | headers)
        self.response = self._link.getresponse()
        self.status = self.response.status
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        name = ""
        try:
            for raw in self.response:
                field, _, value = raw.decode().rstrip("\n").partition(": ")
                if field == "id":
                    self.last = value
                elif field == "event":
                    name = value
                elif field == "data":
                    with self._changed:
                        self.events.append((name, json.loads(value)))
                        self._changed.notify_all()
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass  # closed
        self.ended.set()

    def named(self, name: str) -> list[Any]:
        return [values for event, values in self.events if event == name]

    def wait(self, condition: Any, seconds: float = 20.0) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, seconds), self.events[-5:]

    def close(self) -> None:
        if self._link.sock is not None:
            with suppress(OSError):
                self._link.sock.shutdown(socket.SHUT_RDWR)  # ends the reading, too
        self._thread.join(20)
        self._link.close()


def figures(client: Client) -> dict[str, float]:
    """`/metrics`, by name and labels."""
    lines = client("GET", "/metrics").body.decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_the_same_answer_in_every_form(site: Site) -> None:
    client, x = site.using("infer"), np.array([[0.5, -1.5], [2.0, 3.0]], np.float32)
    plain = client("POST", INFER, rows(x.tolist(), id="q-1"))
    told = plain.json
    assert (told["model_name"], told["model_version"], told["id"]) == (MODEL, "1", "q-1")
    outputs = {output["name"]: output["data"] for output in told["outputs"]}
    expected = np.array(outputs["output"], np.float32)
    assert np.allclose(expected.reshape(2, 2).sum(axis=1), 1, atol=1e-6)
    assert outputs["label"] == [("low", "high")[at] for at in expected.reshape(2, 2).argmax(axis=1)]
    assert site.unix("POST", INFER, rows(x.tolist(), id="q-1")).json == told
    packed = gzip.compress(json.dumps(rows(x.tolist(), id="q-1")).encode())
    answer = client(
        "POST",
        f"/v2/models/{MODEL}/versions/1/infer",
        packed,
        content_encoding="gzip",
        accept_encoding="gzip",
    )
    raw = gzip.decompress(answer.body) if "content-encoding" in answer.headers else answer.body
    assert json.loads(raw) == told


def test_large_answers_are_compressed_on_request(site: Site) -> None:
    client, body = site.using("infer"), rows([[0.1, 0.2]] * 100)
    plain, short = client("POST", INFER, body), client("POST", INFER, body, accept_encoding="gzip")
    assert short.headers["content-encoding"] == "gzip"
    assert gzip.decompress(short.body) == plain.body
    assert len(short.body) < len(plain.body)


def test_an_inference_request_stores_nothing(site: Site) -> None:
    client = site.using("infer")
    before = figures(site.using("scrape"))
    client("POST", INFER, rows([[1.0, 2.0]] * 3))
    asked = figures(site.using("scrape"))
    assert asked["edged_samples_total"] == before["edged_samples_total"]
    assert asked["edged_predictions_total"] == before["edged_predictions_total"] + 3
    known = len(site.listener.messages["predictions"])
    ids = store(client, [[1.0, 2.0], [3.0, 4.0]], "press")
    # What is answered is on the disk.
    stored = figures(site.using("scrape"))
    assert stored["edged_samples_total"] == before["edged_samples_total"] + 2
    site.listener.wait(lambda: len(site.listener.messages["predictions"]) >= known + 2)
    published = site.listener.messages["predictions"][known:]
    assert [(p["id"], p["key"]) for p in published] == [(name, "press") for name in ids]


def test_a_label_joins_what_was_stored(site: Site) -> None:
    client = site.using("infer")
    one = store(client, [[1.0, 2.0]])[0]
    labelled = client("POST", "/api/commands/label", {"id": one, "label": "high"})
    assert labelled.status == 200
    assert labelled.json["data"].items() >= {"labelled": 1, "unknown": 0}.items()
    assert client("POST", "/api/commands/label", {"id": "nobody", "label": "high"}).status == 409
    wrong = client("POST", "/api/commands/label", {"id": one, "label": "purple"})
    assert wrong.status == 400
    assert "purple" in wrong.json["error"]


def test_an_event_stream_tells_how_things_stand_and_what_happens(site: Site) -> None:
    stream = Stream(site.using("read"))
    assert stream.status == 200
    assert stream.response.getheader("content-type", "").startswith("text/event-stream")
    stream.wait(lambda: stream.named("state/model") and stream.named("metrics"))
    assert stream.named("state/model")[0]["version"] == 1
    store(site.using("infer"), [[1.0, 2.0]], "k")
    stream.wait(lambda: stream.named("predictions"))
    assert stream.named("predictions")[-1][-1]["key"] == "k"
    site.using("control")("POST", "/api/commands/pause", {"what": "training"})
    stream.wait(lambda: any(state["on_hold"] for state in stream.named("state/training")))
    site.using("control")("POST", "/api/commands/resume", {"what": "training"})
    stream.wait(lambda: not stream.named("state/training")[-1]["on_hold"])
    stream.close()
    chosen = Stream(site.using("read"), "/api/events?topics=events&since=0")
    chosen.wait(lambda: chosen.named("events"))
    assert chosen.named("events")[0]["event"] == "started"
    assert {name for name, _ in chosen.events} == {"events"}
    chosen.close()


def test_a_stream_that_comes_back_gets_what_it_has_missed(site: Site) -> None:
    first = Stream(site.using("read"), "/api/events?topics=events&since=0")
    first.wait(lambda: first.named("events"))
    first.close()
    site.listener.publish("sensors/a", b"no json")
    site.listener.wait(lambda: site.listener.events("sample_quarantined"))
    second = Stream(site.using("read"), "/api/events?topics=events", **{"last-event-id": first.last})
    second.wait(lambda: second.named("events"))
    assert second.named("events")[0]["event"] == "sample_quarantined"
    second.close()


def test_open_streams_are_counted_and_bounded(site: Site) -> None:
    wait_until(lambda: figures(site.using("scrape"))["edged_http_event_streams"] == 0)
    streams = [Stream(site.using("read")) for _ in range(MAX_STREAMS)]
    assert [stream.status for stream in streams] == [200] * MAX_STREAMS
    wait_until(lambda: figures(site.using("scrape"))["edged_http_event_streams"] == MAX_STREAMS)
    assert site.using("read")("GET", "/api/events").status == 503
    for stream in streams:
        stream.close()
    wait_until(lambda: figures(site.using("scrape"))["edged_http_event_streams"] == 0)


def test_metrics_name_the_model_that_serves(site: Site) -> None:
    site.using("infer")("POST", INFER, rows([[1.0, 2.0]]))
    site.using("infer")("POST", INFER, b"{")
    found = figures(site.using("scrape"))
    assert found['edged_model_info{version="1",source="bundle"}'] == 1
    name = f'{{model="{MODEL}",version="1"'
    assert found[f'edged_inference_requests_total{name},outcome="ok"}}'] >= 1
    assert found[f'edged_inference_requests_total{name},outcome="rejected"}}'] >= 1
    times = f"edged_inference_duration_seconds_bucket{name},le="
    counts = [count for key, count in found.items() if key.startswith(times)]
    assert counts == sorted(counts)
    assert counts[-1] == found[f"edged_inference_duration_seconds_count{name}}}"]
    assert found["edged_healthy"] == found["edged_mqtt_connected"] == 1
    assert found["edged_flash_written_bytes_total"] >= 0


class Asker(threading.Thread):
    """Asks over one connection that stays open, as fast as it is answered, until it is told to stop."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self.stopping = threading.Event()
        self.versions: list[str] = []
        self.wrong: list[Any] = []

    def run(self) -> None:
        link = self._client.connection()
        body = json.dumps(rows([[0.5, 1.0]]))
        while not self.stopping.is_set():
            link.request("POST", INFER, body, self._client.headers)
            response = link.getresponse()
            answer = json.loads(response.read())
            if response.status == 200:
                self.versions.append(answer["model_version"])
            else:
                self.wrong.append(answer)
        link.close()


def test_requests_survive_a_swap_and_a_rollback_and_the_end_is_quick(
    site: Site, broker: Mosquitto, tmp_path: Path
) -> None:
    port = free_port()
    device = web_device(
        tmp_path, broker.port, port, {"tokens": token_files(tmp_path, ("control",))},
        model={"bundle": str(site.device.state / "bundle")},
    )  # fmt: skip
    client = Client(port)
    rng = np.random.default_rng(0)
    with running(device, broker.port) as listener:
        learn(client, rng)
        askers = [Asker(client) for _ in range(4)]
        for asker in askers:
            asker.start()
        listener.wait(lambda: listener.events("model_promoted"), START_SECONDS)
        control = client.using("control-" + "0123456789abcdef" * 2)
        wait_until(lambda: all(asker.versions and asker.versions[-1] == "2" for asker in askers))
        assert control("POST", "/api/commands/rollback", {}).status == 200
        wait_until(lambda: all(asker.versions[-1] == "1" for asker in askers))
        for asker in askers:
            asker.stopping.set()
            asker.join(20)
        assert [asker.wrong for asker in askers] == [[]] * 4
        assert {version for asker in askers for version in asker.versions} == {"1", "2"}
        found = figures(client)
        assert found['edged_training_runs_total{outcome="done"}'] >= 1
        assert found["edged_training_duration_seconds_count"] >= 1
        assert found["edged_rollbacks_total"] == 1
        ends_quickly(client, device)


def learn(client: Client, rng: np.random.Generator) -> None:
    """Store labelled samples until a run is due; all over HTTP."""
    x = rng.normal(size=(60, 2)).round(4)
    names = store(client, x.tolist())
    labels = [{"id": n, "label": "high" if row[0] > 0 else "low"} for n, row in zip(names, x, strict=True)]
    assert client("POST", "/api/commands/label", {"labels": labels}).json["data"]["labelled"] == 60


def ends_quickly(client: Client, device: Any) -> None:
    """SIGTERM with ten open event streams."""
    streams = [Stream(client) for _ in range(10)]
    for stream in streams:
        stream.wait(lambda stream=stream: stream.events)
    began = time.monotonic()
    assert device.stop() == 0
    took = time.monotonic() - began
    for stream in streams:
        assert stream.ended.wait(5)
        stream.close()
    assert took <= 2.0, took
    assert '"level": "error"' not in device.log.read_text()


def is_live(client: Client) -> bool:
    """Whether anything answers."""
    try:
        return client("GET", "/v2/health/live").status == 200
    except OSError:
        return False


def test_an_address_that_is_taken_is_told_and_tried_again_while_all_else_goes_on(
    broker: Mosquitto, site: Site, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = int(other.getsockname()[1])
        path = tmp_path / "edged.sock"
        device = web_device(
            tmp_path, broker.port, port, {"unix_socket": str(path)},
            model={"bundle": str(site.device.state / "bundle")},
        )  # fmt: skip
        with running(device, broker.port) as listener:
            listener.send("sensors/a", {"x": [1.0, 2.0]})
            listener.wait(lambda: listener.messages["predictions"])
            wait_until(lambda: device.cli("status", str(device.path))["state"] == "degraded")
            problem = device.cli("status", str(device.path))["problem"]
            assert f"cannot listen on 127.0.0.1:{port}" in problem
            assert not path.exists(), "both or neither"
            other.close()
            wait_until(lambda: is_live(Client(port)))
            assert path.exists()
            assert Client(port)("GET", "/api/status").json["problem"] is None
            assert device.stop() == 0
    assert device.log.read_text().count("web_failed") == 1


FAILING = """
import asyncio.base_events, os
serve = asyncio.base_events.BaseEventLoop.create_server
async def create_server(*arguments, **named):
    if os.path.exists({flag!r}):
        raise OSError("nobody foresaw this")
    return await serve(*arguments, **named)
asyncio.base_events.BaseEventLoop.create_server = create_server
"""


@pytest.mark.parametrize("recovers", [True, False])
def test_what_fails_in_its_thread_is_told_and_tried_again_and_the_end_is_orderly(
    broker: Mosquitto, site: Site, tmp_path: Path, recovers: bool
) -> None:
    flag, port = tmp_path / "failing", free_port()
    flag.touch()
    (tmp_path / "sitecustomize.py").write_text(FAILING.format(flag=str(flag)))
    device = web_device(tmp_path, broker.port, port, {}, model={"bundle": str(site.device.state / "bundle")})
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with running(device, broker.port, PYTHONPATH=paths) as listener:
        wait_until(lambda: "web_failed" in device.log.read_text())
        wait_until(
            lambda: "nobody foresaw this" in str(device.cli("status", str(device.path)).get("problem"))
        )
        if recovers:
            flag.unlink()
            wait_until(lambda: is_live(Client(port)))
            assert Client(port)("GET", "/api/status").json["problem"] is None
        listener.send("sensors/a", {"x": [1.0, 2.0]})
        listener.wait(lambda: listener.messages["predictions"])
        assert device.stop() == 0
    assert "clean_stop" in (device.state / "boot.json").read_text()


def test_without_its_packages_it_is_said_what_to_install(site: Site, tmp_path: Path) -> None:
    without = tmp_path / "path"
    without.mkdir()
    (without / "sitecustomize.py").write_text("import sys; sys.modules['starlette'] = None")
    device = web_device(
        tmp_path, site.broker.port, free_port(), {}, model={"bundle": str(site.device.state / "bundle")}
    )
    device.start(PYTHONPATH=os.pathsep.join([str(without), os.environ.get("PYTHONPATH", "")]))
    assert device.process is not None
    assert device.process.wait(START_SECONDS) == 4
    assert "pip install 'edged[web]'" in device.log.read_text()
