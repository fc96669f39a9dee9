"""One web server for several streams: pages, samples, models and metrics of each."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.workbench.demo.broker import free_port
from tests.device.several.plant import WIDTH, Plant, feed, ids, plant_running
from tests.running_device import wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto


def get(port: int, path: str, body: Any = None) -> tuple[int, str]:
    """Answer and text of one request."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  of this test
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def test_the_web_server_knows_every_stream(tmp_path: Path, broker: Mosquitto) -> None:
    port = free_port()
    plant = Plant(tmp_path, broker.port, "ab", web={"listen": f"127.0.0.1:{port}"})
    with plant_running(plant, broker.port) as listener:
        wait_until(lambda: get(port, "/v2/health/ready")[0] == 200)
        for name, count in (("a", 3), ("b", 5)):
            feed(listener, name, count)
            listener.wait(lambda name=name, count=count: len(ids(listener, name)) == count)  # type: ignore[misc]
        status, page = get(port, "/")  # leads to the first
        assert status == 200
        assert '<a href="/streams/b/">b</a>' in page
        assert 'href="/streams/a/" aria-current="page"' in page
        assert "rig b" in get(port, "/streams/b/")[1]
        assert get(port, "/streams/c/")[0] == 404
        wait_until(lambda: json.loads(get(port, "/streams/b/api/status")[1])["samples"] == 5)
        # Figures of all streams, each with its label; those of the device once.
        text = get(port, "/metrics")[1]
        assert 'edged_samples_total{stream="a"} 3' in text
        assert 'edged_samples_total{stream="b"} 5' in text
        assert text.count("# TYPE edged_samples_total") == 1
        assert text.count("\nedged_resident_memory_bytes ") == 1
        # A model each.
        asked = {"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [1.0, 0.0]}]}
        status, answer = get(port, "/v2/models/b/infer", asked)
        assert status == 200, answer
        assert json.loads(answer)["model_name"] == "b"
        assert get(port, "/v2/models/rig/infer", asked)[0] == 404
        # Samples over HTTP name their stream.
        sample = {"x": [0.5, 0.5], "y": "high", "id": "by-http"}
        assert get(port, "/v1/samples", sample)[0] == 400
        status, answer = get(port, "/v1/samples?stream=b", sample)
        assert status == 200, answer
        listener.wait(lambda: "by-http" in ids(listener, "b"))
        # A stream that comes later is there, one that goes is not.
        plant.values["streams"] = [plant.stream("b"), {"name": "d", "stream": {"topic": "sensors/d"}}]
        plant.reload()
        wait_until(lambda: get(port, "/streams/d/")[0] == 200)
        assert get(port, "/streams/a/")[0] == 404
