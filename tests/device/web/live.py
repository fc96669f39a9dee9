"""Other people's programs against a device: `make test-web`.

`EDGED_WEB` names the folder of an environment with `tritonclient[http]` and `schemathesis`; promtool,
Prometheus and curl are programs of the system. `EDGED_OPEN_INFERENCE` may name the published description of
the protocol (`open_inference_rest.yaml` of kserve/open-inference-protocol), which is tried, too, then.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from edged.workbench.demo.broker import free_port
from tests.device.web.client import INFER, MODEL, Client, rows, web_device
from tests.device.web.description import description
from tests.mosquitto import Mosquitto
from tests.running_device import Device, running, wait_until

DEPLOY = Path(__file__).parents[3] / "deploy" / "prometheus"
SCRAPES = float(os.environ.get("EDGED_SCRAPE_SECONDS", "60"))


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Device, Client]]:
    folder, port = tmp_path_factory.mktemp("device"), free_port()
    broker = Mosquitto(tmp_path_factory.mktemp("broker"), free_port(), ("allow_anonymous true",))
    broker.start()
    made = web_device(folder, broker.port, port, {"unix_socket": str(folder / "edged.sock")})
    with running(made, broker.port):
        yield made, Client(port)
    broker.stop()


def program(name: str) -> str:
    """A program of the environment that the tests name."""
    path = Path(os.environ.get("EDGED_WEB", "")) / "bin" / name
    if not path.exists():
        pytest.fail(f"{path} is not there: run `make test-web`")
    return str(path)


def run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=350, env=environment, **options
    )


def test_tritonclient_in_all_its_forms(device: tuple[Device, Client]) -> None:
    script = Path(__file__).with_name("triton.py")
    done = run(program("python"), str(script), f"127.0.0.1:{device[1].port}", MODEL)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"forms": 24, "refused": 10}


def schemathesis(path: Path, port: int, *options: str) -> str:
    url = f"http://127.0.0.1:{port}"
    done = run(
        program("schemathesis"), "run", str(path), "--url", url, "--seed", "1", *options, cwd=path.parent
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_schemathesis_finds_nothing(device: tuple[Device, Client], tmp_path: Path) -> None:
    path = tmp_path / "edged.json"
    path.write_text(json.dumps(description(MODEL, 2, ["output", "label", "confidence"])))
    assert "10 selected" in schemathesis(path, device[1].port, "--max-examples", "40")


@pytest.mark.timeout(400)
def test_schemathesis_finds_nothing_by_the_reference(device: tuple[Device, Client], tmp_path: Path) -> None:
    told = json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text(encoding="utf-8"))
    for operations in told["paths"].values():
        for operation in operations.values():
            operation.pop("security", None)  # this device is open; wrong tokens would be slowed down
            given = operation.get("parameters", [])
            operation["parameters"] = [one for one in given if one["name"] not in ("model", "version")]
    path, text = tmp_path / "openapi.json", json.dumps(told)
    path.write_text(text.replace("{model}", MODEL).replace("{version}", "1"))
    # What a body must hold besides depends on the stream, and an event stream has no end.
    done = schemathesis(
        path, device[1].port, "--exclude-path", "/api/events",
        "--exclude-checks", "positive_data_acceptance", "--max-examples", "5",
    )  # fmt: skip
    assert f"{len(told['paths']) - 1} selected" in done


def test_schemathesis_finds_nothing_by_the_published_description(
    device: tuple[Device, Client], tmp_path: Path
) -> None:
    published = os.environ.get("EDGED_OPEN_INFERENCE")
    if published is None:
        pytest.skip("EDGED_OPEN_INFERENCE names no published description")
    text = Path(published).read_text(encoding="utf-8")
    for name, value in (("MODEL_NAME", MODEL), ("MODEL_VERSION", "1")):
        text = text.replace(f"${{{name}}}", value)
    told = yaml.safe_load(text)
    for operations in told["paths"].values():
        operations.pop("parameters", None)  # they are in the paths now
    path = tmp_path / "published.yaml"
    path.write_text(yaml.safe_dump(told))
    # It cannot say which tensors this model takes: what fits it may still be refused.
    schemathesis(path, device[1].port, "--exclude-checks", "positive_data_acceptance")


def test_curl_over_the_unix_socket(device: tuple[Device, Client]) -> None:
    socket, body = device[0].folder / "edged.sock", json.dumps(rows([[1.0, 2.0]]))
    done = run("curl", "-sS", "--unix-socket", str(socket), "-d", body, f"http://localhost{INFER}")
    assert json.loads(done.stdout)["model_version"] == "1"


def test_promtool_accepts_metrics_rules_and_configuration(device: tuple[Device, Client]) -> None:
    page = device[1]("GET", "/metrics").body.decode()
    checked = run("promtool", "check", "metrics", input=page)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    for command in (("test", "rules", "edged.rules.test.yml"), ("check", "config", "prometheus.yml")):
        done = run("promtool", *command, cwd=DEPLOY)
        assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_scrapes_and_evaluates(device: tuple[Device, Client], tmp_path: Path) -> None:
    client, port = device[1], free_port()
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{client.port}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DEPLOY / "edged.rules.yml", tmp_path)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: _asked(port, "up") == [1.0], 30)
        ends, sent = time.monotonic() + SCRAPES, 0
        while time.monotonic() < ends:
            assert client("POST", INFER, rows([[0.1, 0.2]])).status == 200
            sent += 1
            time.sleep(0.05)
        wait_until(
            lambda: (_asked(port, 'edged_inference_requests_total{outcome="ok"}') or [0])[0] >= sent, 30
        )
        assert _asked(port, "min_over_time(up[1m])") == [1.0]
        assert (_asked(port, "scrape_duration_seconds") or [1])[0] < 0.5
        told = _get(port, "/api/v1/rules")["groups"][0]["rules"]
        assert {rule["health"] for rule in told} == {"ok"}
        assert [rule["name"] for rule in told if rule["state"] == "firing"] == []
    finally:
        process.terminate()
        process.wait(20)


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.loads(answer.read())["data"]


def _asked(port: int, query: str) -> list[float]:
    try:
        result = _get(port, f"/api/v1/query?query={urllib.parse.quote(query)}")["result"]
    except OSError:
        return []
    return [float(one["value"][1]) for one in result]
