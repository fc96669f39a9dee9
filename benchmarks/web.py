"""What HTTP costs, and how fast it is: requests a second, latency idle and while training, memory, start.

The real daemon, MLP 64-128-64-6, JSON requests of one row, wrk with 16 connections and with one. The daemon
(and its trainer) has one core, wrk another. Beside it, in turns, a bare Starlette application on uvicorn with
httptools that reads the same JSON and runs the same model inside its event loop: no checks, no threads.

`cpu_us` is the processor time of the serving process for a request: it says what a core can do where other
programs take some of it. Memory (VmRSS) and start (until it is ready; processor time until a second later)
are those of the daemon with the section `web` less those without.

`python benchmarks/web.py [--seconds S] [--rounds N] [--starts N] [--json] [--out FILE]`; needs wrk, taskset.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from output import finish, options
from resident import resident_mb

from edged.workbench.demo.broker import embedded_broker, free_port

FEATURES, CLASSES = 64, 6
PATH = "/v2/models/bench/infer"
TICKS = os.sysconf("SC_CLK_TCK")
BARE = """
import json, sys
import numpy as np, onnxruntime, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[2], options)
given = session.get_inputs()[0]
async def infer(request):
    row = json.loads(await request.body())["inputs"][0]["data"]
    x = np.zeros((1, given.shape[1]), np.float32)  # behind the row: columns of context
    x[0, :len(row)] = row
    y = session.run(None, {given.name: x})[0]
    outputs = [{"name": "output", "datatype": "FP32", "shape": list(y.shape), "data": y.ravel().tolist()}]
    return Response(json.dumps({"model_name": "bench", "outputs": outputs}), media_type="application/json")
app = Starlette(routes=[Route("/v2/models/bench/infer", infer, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), http="httptools", loop="asyncio", access_log=False, log_level="error")
"""


class Process:
    """A server on the first core."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._process = subprocess.Popen(["taskset", "-c", "0", *command], env=os.environ | environment)
        self.pid = self._process.pid

    def cpu(self) -> float:
        """Seconds of processor time so far, without children."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)


class Load:
    """wrk on another core."""

    def __init__(self, folder: Path) -> None:
        tensor = {"name": "x", "shape": [1, FEATURES], "datatype": "FP32"}
        x = np.random.default_rng(0).normal(size=FEATURES).round(4).tolist()
        body = json.dumps({"inputs": [tensor | {"data": x}]})
        self._script = folder / "post.lua"
        self._script.write_text(f"wrk.method = 'POST'\nwrk.body = '{body}'\n", encoding="ascii")

    def run(self, process: Process, port: int, connections: int, seconds: float) -> dict[str, float]:
        """Requests a second, latencies in microseconds, processor time for a request."""
        before = process.cpu()
        done = subprocess.run(
            ["taskset", "-c", str((os.cpu_count() or 1) - 1), "wrk", "-t1", f"-c{connections}",
             f"-d{seconds:g}s", "--latency", "-s", str(self._script), f"http://127.0.0.1:{port}{PATH}"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        if "Non-2xx" in done or "Socket errors" in done:
            raise SystemExit(done)
        count = int(_found(r"(\d+) requests in", done))
        return {
            "per_s": float(_found(r"Requests/sec:\s+([\d.]+)", done)),
            "p50_us": _microseconds(_found(r"50%\s+(\S+)", done)),
            "p99_us": _microseconds(_found(r"99%\s+(\S+)", done)),
            "cpu_us": (process.cpu() - before) / count * 1e6,
        }


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(text)
    return found[1]


def _microseconds(text: str) -> float:
    for unit, factor in (("us", 1.0), ("ms", 1e3), ("s", 1e6)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise SystemExit(f"no time: {text}")


def configuration(folder: Path, broker: int, port: int | None, bundle: Path | None = None) -> Path:
    """Of a daemon with the section `web`, or without."""
    values: dict[str, Any] = {
        "device": {"id": "bench"},
        "mqtt": {"host": "127.0.0.1", "port": broker},
        "stream": {"topic": "bench/#", "features": FEATURES, "classes": CLASSES, "label": "y"},
        "model": {"hidden": [128, 64]} if bundle is None else {"bundle": str(bundle)},
        "training": {
            "every": None,
            "new_labels": 0,
            "priority": "idle",
        },
        "log": {"level": "error"},
    }
    if port is not None:
        values["web"] = {"listen": f"127.0.0.1:{port}", "unix_socket": str(folder / "edged.sock")}
    folder.mkdir(exist_ok=True)
    path = folder / "edged.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def ask(port: int, path: str, body: Any = None) -> Any:
    """One request."""
    data = None if body is None else json.dumps(body).encode()
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        link.request("GET" if data is None else "POST", path, data, {"content-type": "application/json"})
        return json.loads(link.getresponse().read())
    finally:
        link.close()


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        if time.monotonic() > ends:
            raise SystemExit("waited in vain")
        time.sleep(0.005)


def train_for_ever(folder: Path, port: int) -> None:
    """Give it labelled samples, and have it train until it ends."""
    x = np.random.default_rng(1).normal(size=(500, FEATURES)).round(4)
    records = [{"x": row.tolist(), "y": int(row[:CLASSES].argmax())} for row in x]
    ask(port, "/v1/samples?topic=bench/http", records)
    subprocess.run(
        ["curl", "-sS", "--fail", "--unix-socket", str(folder / "edged.sock"), "-H",
         "content-type: application/json", "-d", '{"steps": 1000000}', "http://localhost/api/commands/train"],
        check=True, capture_output=True,
    )  # fmt: skip
    wait_for(lambda: (ask(port, "/api/status")["training"]["progress"] or {}).get("step", 0) > 0)


class Speed:
    """Both servers, measured in turns."""

    def __init__(self, folder: Path, broker: int, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._port, self._bare_port = free_port(), free_port()
        path = configuration(folder, broker, self._port)
        self._daemon = Process(sys.executable, "-m", "edged.daemon", str(path))
        wait_for(lambda: ask(self._port, "/v2/health/ready"))
        model = next((folder / "state" / "models").glob("*/model.onnx"))
        self._bare = Process(sys.executable, "-c", BARE, str(self._bare_port), str(model))
        self._load = Load(folder)
        self._found: dict[str, list[dict[str, float]]] = {}

    def stop(self) -> None:
        """End both."""
        self._bare.stop()
        self._daemon.stop()

    def measure(self, rounds: int) -> list[dict[str, Any]]:
        """All rows."""
        tensor = {"name": "x", "shape": [1, FEATURES], "datatype": "FP32", "data": [0.0] * FEATURES}
        wait_for(lambda: ask(self._bare_port, PATH, {"inputs": [tensor]}))
        for _ in range(rounds):
            for connections in (16, 1):
                self._run("bare", self._bare, self._bare_port, connections)
                self._run("edged", self._daemon, self._port, connections)
        rows: list[dict[str, Any]] = [
            {"what": "memory after traffic", "mb": round(resident_mb(self._daemon.pid), 1)}
        ]
        train_for_ever(self._folder, self._port)
        for _ in range(rounds):
            self._run("edged while training", self._daemon, self._port, 16)
        return rows + self._rows()

    def _run(self, what: str, process: Process, port: int, connections: int) -> None:
        runs = self._found.setdefault(f"{what}, {connections}", [])
        runs.append(self._load.run(process, port, connections, self._seconds))
        sys.stderr.write(f"{what}, {connections}: {runs[-1]}\n")

    def _rows(self) -> list[dict[str, Any]]:
        medians = {
            what: {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}
            for what, runs in self._found.items()
        }
        rows: list[dict[str, Any]] = []
        for what, row in medians.items():
            beside = medians[f"bare, {what.rpartition(' ')[2]}"]
            ratios = {f"{name}_to_bare": round(row[name] / beside[name], 3) for name in ("per_s", "cpu_us")}
            rows.append({"what": what, **row, **ratios})
        training, idle = medians["edged while training, 16"], medians["edged, 16"]
        ratio = round(training["p99_us"] / idle["p99_us"], 2)
        return [*rows, {"what": "p99 while training to p99 idle", "ratio": ratio}]


def costs(folder: Path, broker: int, bundle: Path, starts: int) -> list[dict[str, Any]]:
    """Memory and start, with and without the section, in turns."""
    took: dict[bool, list[float]] = {True: [], False: []}
    resident: dict[bool, list[float]] = {True: [], False: []}
    worked: dict[bool, list[float]] = {True: [], False: []}
    answered: list[float] = []
    for number in range(starts):
        for web in (True, False):
            home = folder / f"start-{number}-{web}"
            port = free_port() if web else None
            path = configuration(home, broker, port, bundle)
            began = time.monotonic()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:  # as systemd would
                notified.bind(str(home / "notify"))
                notified.settimeout(60)
                process = Process(
                    sys.executable, "-m", "edged.daemon", str(path), NOTIFY_SOCKET=str(home / "notify")
                )
                while b"READY=1" not in notified.recv(4096):
                    pass
            took[web].append(time.monotonic() - began)
            if port is not None:
                ask(port, "/v2")
                answered.append(time.monotonic() - began)
            time.sleep(1.0)
            worked[web].append(process.cpu())
            resident[web].append(resident_mb(process.pid))
            process.stop()
            shutil.rmtree(home)
    start, cpu, memory = (statistics.median(found[False]) for found in (took, worked, resident))
    more = statistics.median(took[True]) - start, statistics.median(worked[True]) - cpu
    return [
        {"what": "start with web less without", "ms": round(more[0] * 1e3), "of": round(start * 1e3)},
        {"what": "its processor time", "ms": round(more[1] * 1e3), "of": round(cpu * 1e3)},
        {"what": "start to the first answer", "ms": round(statistics.median(answered) * 1e3)},
        {
            "what": "memory with web less without",
            "mb": round(statistics.median(resident[True]) - memory, 1),
            "of": round(memory, 1),
        },
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-speed", action="store_true", help="memory and start alone")
    parser.add_argument("--starts", type=int, default=5)
    args = parser.parse_args()
    for program in ("wrk", "taskset", "curl"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is not installed: apt-get install {program}")
    with embedded_broker("mosquitto") as broker, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        servers = Speed(folder / "device", broker.port, args.seconds)
        try:
            rows = [] if args.no_speed else servers.measure(args.rounds)
        finally:
            servers.stop()
        rows += costs(folder, broker.port, folder / "device" / "state" / "bundle", args.starts)
    finish("web", rows, args)


if __name__ == "__main__":
    main()
