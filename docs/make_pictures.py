# ruff: noqa: INP001, S310  a program, not a package; it asks its own devices
"""The pictures of the device page in docs/http.md.

Run it as `EDGED_WEB=.venv-web .venv/bin/python docs/make_pictures.py`; `make test-web` makes .venv-web.
It runs real devices on a broker of its own and opens their pages in Chromium: an empty device, one that
learns, one that is well, one in trouble, and one with an alarm; each on a desk and on a phone. `--dark` takes
the dark theme, `-o` another folder.
"""

from __future__ import annotations

import argparse
import json
import os
import site
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as mqtt
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from edged.clock import SystemClock
from edged.device.web.http.authentication import PAIRED
from edged.storage.web_access import Pairing
from edged.workbench.demo.broker import embedded_broker, free_port

CHROMIUM = os.environ.get("EDGED_CHROMIUM", "/usr/bin/chromium")
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
SIZES = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
STATES: dict[str, Path] = {}
"""State directories of the devices, by the addresses of their pages."""
PATIENCE = 120.0  # seconds for a device to come into the state of a picture
PRESS = {
    "stream": {"topic": "sensors/#", "key": "topic:1", "features": ["temp", "vib.x", "vib.y"],
               "classes": ["ok", "worn"], "label": "state"},
    "labels": {"request_share": 0.02},
}  # fmt: skip
PUMP = {
    "stream": {"topic": "pumps/#", "key": "topic:1", "features": ["flow", "power", "temp"],
               "task": "reconstruct"},
    "training": {"new_labels": 150},
    "anomaly": {"sensitivity": "high"},
}  # fmt: skip


class Plant:
    """Sends what the machines of the pictures send."""

    def __init__(self, port: int) -> None:
        self._rng = np.random.default_rng(7)
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self.drifted = 0.0

    def press(self, count: int, labelled: float, keys: Sequence[str] = ("press-7", "press-8")) -> None:
        """Samples of presses, a share of them with labels."""
        for _ in range(count):
            for key in keys:
                worn = self._rng.random() < 0.5
                temp, x, y = self._rng.normal([(52 if worn else 47) + self.drifted, 0.3 + 0.25 * worn, 0.2],
                                              [2.0, 0.1, 0.05])  # fmt: skip
                told = {"temp": round(temp, 2), "vib": {"x": round(x, 3), "y": round(y, 3)}}
                if self._rng.random() < labelled:
                    told["state"] = "worn" if worn else "ok"
                self._send(f"sensors/{key}", told)

    def pump(self, count: int, fault: float = 0.0) -> None:
        """Samples of a pump, whose power rises by `fault` above what its flow explains."""
        for _ in range(count):
            flow = self._rng.normal(12.0, 1.5)
            power = 3.0 * flow + self._rng.normal(0, 0.5) + fault
            temp = 20 + 0.5 * power + self._rng.normal(0, 0.5)
            told = {"flow": round(flow, 2), "power": round(power, 2), "temp": round(temp, 2)}
            self._send("pumps/pump-3", told)

    def renamed(self, count: int) -> None:
        """Messages of presses whose sender has renamed a field."""
        for _ in range(count):
            self._send("sensors/press-7", {"Temp": 50.1, "vib": {"x": 0.4, "y": 0.2}})

    def _send(self, topic: str, told: dict[str, Any]) -> None:
        self._client.publish(topic, json.dumps(told), qos=1).wait_for_publish(10)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def device(name: str, folder: Path, broker: int, sections: dict[str, Any]) -> Iterator[str]:
    """One `edged run`; the address of its page."""
    port, path = free_port(), folder / f"{name}.yaml"
    settings = {
        "device": {"id": name},
        "mqtt": {"host": "127.0.0.1", "port": broker},
        "storage": {"dir": str(folder / name)},
        "web": {"listen": f"127.0.0.1:{port}"},
        "report": {"every": "1s"},
    }
    path.write_text(yaml.safe_dump(settings | sections), encoding="utf-8")
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "edged", "run", str(path)], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}/"
        STATES[url] = folder / name
        yield url
    finally:
        process.terminate()
        process.wait(30)


def asked(url: str, path: str) -> Any:
    """What a device answers; nothing while it is not there."""
    try:
        with urllib.request.urlopen(url + path, timeout=5) as answer:
            return json.loads(answer.read())
    except OSError:
        return None


def until(holds: Callable[[], Any], act: Callable[[], None] = lambda: None) -> None:
    """Wait until something holds; `act` is called in between, such as for more samples."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("a device did not come into the state of the picture")
        act()
        time.sleep(0.3)


class Camera:
    """Takes each page on a desk and on a phone."""

    def __init__(self, browser: Any, out: Path, theme: str) -> None:
        self._browser, self._out, self._theme = browser, out, theme

    def take(self, url: str, name: str) -> None:
        """Write `<name>-desk.png` and `<name>-phone.png`."""
        for place, size in SIZES.items():
            context = self._browser.new_context(viewport=size, color_scheme=self._theme)
            page = context.new_page()
            page.goto(url)
            page.fill("#code", Pairing(STATES[url], SystemClock()).new_code(PAIRED["control"]))
            page.keyboard.press("Enter")
            page.wait_for_selector("#leave")
            page.wait_for_selector("#line.live", state="attached")
            page.wait_for_timeout(1200)  # the first refresh
            path = self._out / f"{name}-{place}.png"
            page.screenshot(path=str(path))
            sys.stdout.write(f"{path}\n")
            context.close()


def press_screens(camera: Camera, plant: Plant, url: str) -> None:
    """A device that is empty, learns, is well, and is in trouble."""

    def has(name: str, least: float) -> bool:
        status = asked(url, "api/status")
        found = status and (status["labels"] if name == "labels" else status["training"]["runs"])
        return found is not None and found >= least

    until(lambda: asked(url, "api/status"))
    camera.take(url, "page-empty")
    plant.press(20, 0.6)
    until(lambda: has("labels", 15))
    camera.take(url, "page-learning")
    until(lambda: has("runs", 3), lambda: plant.press(10, 0.6))
    plant.drifted = 3.0
    until(lambda: has("runs", 6), lambda: plant.press(10, 0.6))
    until(lambda: asked(url, "api/status")["training"]["progress"] is None, lambda: plant.press(2, 0.0))
    camera.take(url, "page-well")
    until(lambda: asked(url, "api/status")["problem"], lambda: plant.renamed(40))
    camera.take(url, "page-trouble")


def pump_screen(camera: Camera, plant: Plant, url: str) -> None:
    """A device with an active alarm."""

    def alarms() -> str:
        found = asked(url, "api/page?only=alarms,learned")
        return "calibrating" if not found or "model" not in found["learned"] else str(found["alarms"])

    until(lambda: "calibrating" not in alarms(), lambda: plant.pump(20))
    until(lambda: asked(url, "api/status")["training"]["runs"] >= 5, lambda: plant.pump(20))
    until(lambda: 'class="ill"' in alarms(), lambda: plant.pump(5, fault=25.0))
    camera.take(url, "page-alarm")


def main() -> None:
    """Take all pictures."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("-o", type=Path, default=Path(__file__).with_name("images"))
    options.add_argument("--dark", action="store_true")
    chosen = options.parse_args()
    for packages in Path(os.environ.get("EDGED_WEB", "")).glob("lib/python3*/site-packages"):
        site.addsitedir(str(packages))
    from playwright.sync_api import sync_playwright

    chosen.o.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as name,
        embedded_broker("mosquitto") as broker,
        sync_playwright() as started,
    ):
        folder, port = Path(name), broker.port
        browser = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        plant = Plant(port)
        try:
            camera = Camera(browser, chosen.o, "dark" if chosen.dark else "light")
            with device("press-7", folder, port, PRESS) as url:
                press_screens(camera, plant, url)
            with device("pump-3", folder, port, PUMP) as url:
                pump_screen(camera, plant, url)
        finally:
            plant.close()
            browser.close()


if __name__ == "__main__":
    main()
