"""The fleet page in Chromium: `make test-web`.

`EDGED_WEB` names the folder of an environment with `playwright` and `axe-playwright-python`; Chromium is a
program of the system. With `EDGED_SCREENSHOTS` pictures are left in that folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.fleet.coordinator.control import instruct
from edged.workbench.demo.broker import free_port
from tests.device.several.plant import Plant, plant_running
from tests.fleet.conftest import Site
from tests.fleet.page.simulated import Simulated, client, metrics, states
from tests.fleet.page.ui import fleet_ui
from tests.fleet.senders import Senders, base_weights
from tests.mosquitto import Mosquitto
from tests.running_device import Device, running

for folder in Path(os.environ.get("EDGED_WEB", "")).glob("lib/python3*/site-packages"):
    site.addsitedir(str(folder))
playwright = pytest.importorskip("playwright.sync_api", reason="run `make test-web`")
expect = playwright.expect

if TYPE_CHECKING:
    from tests.conftest import MakeBroker

DEVICES = 200
SHOTS = os.environ.get("EDGED_SCREENSHOTS")
THEMES = ("light", "dark")
SIZES = {"desk": (1280, 800), "phone": (360, 740)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("chromium is not installed: run `make test-web`")
    with playwright.sync_playwright() as started:
        options = [
            "--disable-dev-shm-usage",
            "--disable-gpu",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ]
        chromium = started.chromium.launch(executable_path=path, args=options)
        yield chromium
        chromium.close()


@contextmanager
def opened(browser: Any, url: str, theme: str = "light", size: str = "desk") -> Iterator[Any]:
    """A page that must say nothing on its console: no error, no word of the policy."""
    width, height = SIZES[size]
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": height})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda problem: said.append(str(problem)))
    page.goto(url)
    yield page
    # Chromium tells of each attempt to connect that fails; nothing else may be there.
    assert [line for line in said if "WebSocket connection to" not in line] == []
    context.close()


def connect(page: Any, user: str = "", password: str = "") -> None:
    page.get_by_label("Username", exact=True).fill(user)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_role("button", name="Connect", exact=True).click()


def websockets(make_broker: MakeBroker, *lines: str) -> tuple[Mosquitto, str]:
    """A broker with a listener for browsers, and the address of that."""
    port = free_port()
    extra = lines or ("allow_anonymous true",)
    broker = make_broker(*extra, f"listener {port} 127.0.0.1", "protocol websockets")
    return broker, f"ws://127.0.0.1:{port}/"


def row(page: Any, name: str) -> Any:
    return page.locator("#rows tr").filter(has=page.get_by_role("button", name=name, exact=True))


def state(page: Any, name: str) -> Any:
    return row(page, name).locator("td.state")


def picture(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/fleet-{name}.png")


def violations(page: Any) -> Any:
    from axe_playwright_python.sync_playwright import Axe

    return [(found["id"], found["nodes"][0]["html"]) for found in Axe().run(page).response["violations"]]


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mosquitto, Simulated, str]]:
    """Two hundred devices on a broker with websockets that serves the page, and the way to it."""
    from edged.fleet.page.server import PageSettings, write_files

    folder, port = tmp_path_factory.mktemp("site"), free_port()
    write_files(PageSettings(), folder)
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)
    listener = (f"listener {port} 127.0.0.1", "protocol websockets", f"http_dir {folder}")
    broker = Mosquitto(tmp_path_factory.mktemp("broker"), free_port(), ("allow_anonymous true", *listener))
    broker.start()
    simulated = Simulated(broker.port, DEVICES, quiet=2)
    yield broker, simulated, f"http://127.0.0.1:{port}/index.html"
    simulated.close()
    broker.stop()


def shown_after(page: Any) -> float:
    """Seconds from pressing *Connect* to all devices with what the broker keeps of each."""
    page.reload()
    began = time.monotonic()
    connect(page)
    expect(page.locator("#rows tr")).to_have_count(DEVICES, timeout=10_000)
    expect(page.locator("#chips")).to_contain_text("Drifting 20Unhealthy 4")
    return time.monotonic() - began


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", THEMES)
def test_two_hundred_devices(plant: Any, browser: Any, theme: str, size: str) -> None:
    _, simulated, url = plant
    with opened(browser, url, theme, size) as page:
        expect(page.get_by_role("button", name="Connect", exact=True)).to_be_visible()
        assert violations(page) == []
        took = [shown_after(page) for _ in range(3)]  # other work on the machine is none of the page's
        sys.stderr.write(
            f"{DEVICES} devices, {theme}, {size}: {', '.join(f'{each:.2f}' for each in took)} s\n"
        )
        assert min(took) <= 2.0
        simulated.report()
        expect(page.locator("#chips")).to_contain_text(f"Online {DEVICES - 2}")
        expect(page.locator("#chips")).to_contain_text("Waiting 2")
        assert page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0]
        assert violations(page) == []
        picture(page, f"list-{theme}-{size}")
        page.get_by_label("Select press-9", exact=True).check()
        page.locator("#command").click()
        page.locator("#send-command").select_option("rollback")
        expect(page.locator("#send-signed")).to_contain_text("press-9")
        assert violations(page) == []
        picture(page, f"send-{theme}-{size}")
        page.keyboard.press("Escape")
        simulated.event(7, "candidate_rejected", reasons=["no gain"], numbers={"p": 0.4}, run=9)
        page.get_by_role("button", name="press-7", exact=True).click()
        expect(page.locator("#detail-verdict")).to_contain_text("no gain")
        expect(page.locator("#detail-events")).to_contain_text("candidate_rejected")
        expect(page.locator("#detail-facts")).to_contain_text("disk full")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0]
        picture(page, f"detail-{theme}-{size}")


def test_filters_and_sorting(plant: Any, browser: Any) -> None:
    _, simulated, url = plant
    with opened(browser, url) as page:
        connect(page)
        expect(page.locator("#rows tr")).to_have_count(DEVICES)
        simulated.report()
        for chip, count in (("Drifting", 20), ("Unhealthy", 4), ("Training", 5), ("Waiting", 2)):
            page.get_by_role("button", name=f"{chip} {count}", exact=True).click()
            expect(page.locator("#rows tr")).to_have_count(count)
        page.get_by_role("button", name=f"All {DEVICES}", exact=True).click()
        page.get_by_label("Search").fill("disk full press-5")
        expect(page.locator("#rows th")).to_have_text(["press-57"])
        page.get_by_label("Search").fill("")
        first = page.locator("#rows th").first
        expect(first).to_have_text("press-1")
        heads = page.locator("#heads")
        heads.get_by_role("button", name="Live quality").click()
        expect(first).to_have_text("press-100")
        heads.get_by_role("button", name="Live quality").click()
        expect(first).to_have_text("press-57")
        expect(page.locator("th[data-column=quality]")).to_have_attribute("aria-sort", "descending")
        page.get_by_label("Sort by").select_option("health")
        expect(first).to_have_text("press-7")


def test_each_device_gives_its_own_answer(plant: Any, browser: Any) -> None:
    _, _, url = plant
    with opened(browser, url) as page:
        connect(page)
        for n in (1, 2, 3):
            page.get_by_label(f"Select press-{n}", exact=True).check()
        page.get_by_role("button", name="Send command to 3 devices").click()
        page.locator("#send-command").select_option("train")
        page.get_by_role("button", name="Send train to 3 devices").click()
        said = {n: page.locator("#answer-list li").filter(has_text=f"press-{n} ") for n in (1, 2, 3)}
        expect(said[1]).to_have_text("press-1 train: successful – run 4, promoted –")
        expect(said[2]).to_have_text("press-2 train: refused – no earlier model")
        expect(said[3]).to_have_text("press-3 train: sent – received by the broker")
        expect(said[3]).to_have_text("press-3 train: no response – no message for 30 s", timeout=40_000)
        expect(page.locator("#answered")).to_have_text("1 succeeded, 2 failed, 0 pending.")


def test_by_keyboard_alone(plant: Any, browser: Any) -> None:
    _, _, url = plant
    with opened(browser, url) as page:
        for _ in range(3):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#rows tr")).to_have_count(DEVICES)
        page.get_by_label("Search").focus()
        page.keyboard.type("press-12")
        expect(page.locator("#rows tr").first).to_contain_text("press-12")
        for _ in range(2 + 1 + 10):  # sorting; all; ten heads
            page.keyboard.press("Tab")
        page.keyboard.press("Space")
        expect(page.get_by_label("Select press-12", exact=True)).to_be_checked()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#detail-name")).to_have_text("press-12")
        page.keyboard.press("Escape")
        expect(page.locator("#detail")).to_be_hidden()
        expect(page.get_by_role("button", name="press-12", exact=True)).to_be_focused()


def test_whatever_devices_send_is_text(plant: Any, browser: Any) -> None:
    broker, _, url = plant
    name, wrong = "<img src=x onerror=alert(1)>", "<script>alert(1)</script>"
    bad = client(broker.port)
    bad.loop_start()
    base = f"edged/{name}"
    retained = ["status", *states(1, 0.0)]
    for topic in retained:
        bad.publish(
            f"{base}/{topic}", json.dumps({"state": wrong, "version": [wrong], "last": 7}), 1, retain=True
        )
    bad.publish("edged/odd/state/model", b"[1, 2", 1, retain=True).wait_for_publish(10)
    with opened(browser, url) as page:
        connect(page)
        expect(row(page, name)).to_contain_text(wrong)
        for told in (
            {"live": 5, "host": [], "training": {"running": 3}},
            {"live": {wrong: 1}, "event": wrong},
        ):
            for topic in ("metrics", "events", "response/train", "progress/x"):
                bad.publish(f"{base}/{topic}", json.dumps(told), 1).wait_for_publish(10)
        expect(row(page, name)).to_contain_text(f"1 {wrong}")
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.locator("#detail-events")).to_contain_text(wrong)
        assert page.locator("img, main script").count() == 0
        page.keyboard.press("Escape")
        for topic in retained:
            bad.publish(f"{base}/{topic}", b"", 1, retain=True).wait_for_publish(10)
        bad.publish(f"{base}/status", b"", 1).wait_for_publish(10)
        expect(page.locator("#rows tr")).to_have_count(DEVICES)
    bad.publish("edged/odd/state/model", b"", 1, retain=True).wait_for_publish(10)
    bad.disconnect()
    bad.loop_stop()


WILLED = """
import json, sys, time
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
c = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
topic = f"edged/{sys.argv[2]}/status"
told = {"version": "0.9.0", "boot": 1}
c.will_set(topic, json.dumps(told | {"state": "offline"}), 1, True)
c.connect("127.0.0.1", int(sys.argv[1]), keepalive=int(sys.argv[3]))
c.loop_start()
c.publish(topic, json.dumps(told | {"state": "online", "ts": time.time()}), 1, True).wait_for_publish(10)
print("there", flush=True)
time.sleep(600)
"""


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever comes, and also where it has been stopped."""
    try:
        yield
    finally:
        process.kill()


# Of a stopped one the broker says that it is gone: mosquitto looks for that every five seconds only.
@pytest.mark.parametrize(
    ("number", "keepalive", "within"), [(signal.SIGKILL, 30, 5.0), (signal.SIGSTOP, 10, 21.0)]
)
def test_who_is_gone_is_offline(
    plant: Any, browser: Any, number: signal.Signals, keepalive: int, within: float
) -> None:
    broker, simulated, url = plant
    command = [sys.executable, "-c", WILLED, str(broker.port), "willed", str(keepalive)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as device,
        ended(device),
        opened(browser, url) as page,
    ):
        assert device.stdout is not None
        assert device.stdout.readline() == b"there\n"
        connect(page)
        expect(state(page, "willed")).to_have_text("waiting")
        device.send_signal(number)
        began = time.monotonic()
        expect(state(page, "willed")).to_have_text("offline", timeout=30_000)
        took = time.monotonic() - began
        sys.stderr.write(f"{number.name}, keepalive {keepalive} s: offline after {took:.1f} s\n")
        assert took <= within
        page.get_by_role("button", name="willed", exact=True).click()
        expect(page.locator("#detail-state")).to_contain_text("offline since")
    simulated.clear("willed")


def test_online_at_the_broker_and_silent(plant: Any, browser: Any) -> None:
    """A broker that keeps `online` for a device that says nothing is not believed for long."""
    _, simulated, url = plant
    with opened(browser, url) as page:
        connect(page)
        expect(page.locator("#rows tr")).to_have_count(DEVICES)
        simulated.report()
        expect(page.locator("#chips")).to_contain_text(f"Online {DEVICES - 2}")
        end = time.monotonic() + 18
        while time.monotonic() < end:
            for n in (1, 2, 3):
                simulated.say(n, "metrics", metrics(n, simulated.seq, time.time()))
            page.wait_for_timeout(1000)
        expect(page.locator("#chips")).to_contain_text(f"Silent {DEVICES - 3}")
        expect(state(page, "press-1")).to_have_text("online")
        page.get_by_role("button", name="press-4", exact=True).click()
        expect(page.locator("#detail-state")).to_contain_text(
            "marked online at the broker, but no message since"
        )
        simulated.say(4, "metrics", metrics(4, simulated.seq, time.time()))
        expect(page.locator("#detail-state")).to_contain_text("online, last seen")


def test_without_the_broker_nothing_is_claimed(make_broker: MakeBroker, browser: Any) -> None:
    port = free_port()
    broker = make_broker("allow_anonymous true", f"listener {port} 127.0.0.1", "protocol websockets")
    simulated = Simulated(broker.port, 3)
    with fleet_ui("--broker-ws", f"ws://127.0.0.1:{port}/") as ui, opened(browser, ui.url) as page:
        connect(page)
        expect(page.locator("#rows tr")).to_have_count(3)  # it has subscribed
        simulated.report()
        expect(state(page, "press-1")).to_have_text("online")
        simulated.close()
        broker.kill()
        expect(page.locator("#connection")).to_contain_text("Disconnected")
        expect(state(page, "press-1")).to_have_text("unknown")
        broker.start()
        expect(page.locator("#connection")).to_contain_text("Connected", timeout=20_000)
        simulated = Simulated(broker.port, 3)
        simulated.report()
        expect(state(page, "press-1")).to_have_text("online")
        simulated.close()


def test_who_may_not(make_broker: MakeBroker, browser: Any, tmp_path: Path) -> None:
    accounts, rules = tmp_path / "accounts", tmp_path / "rules"
    subprocess.run(["mosquitto_passwd", "-b", "-c", accounts, "viewer", "s3cret"], check=True)
    subprocess.run(["mosquitto_passwd", "-b", accounts, "press-1", "s3cret"], check=True)
    rules.write_text("user viewer\ntopic read edged/#\nuser press-1\ntopic edged/press-1/#\n")
    for path in (accounts, rules):
        path.chmod(0o644)
    broker, place = websockets(
        make_broker, "allow_anonymous false", f"password_file {accounts}", f"acl_file {rules}"
    )
    with fleet_ui("--broker-ws", place) as ui, opened(browser, ui.url) as page:
        connect(page, "viewer", "wrong")
        expect(page.locator("#connection")).to_contain_text("Connection rejected")
        expect(page.locator("#login")).to_be_visible()
        told = ["-t", "edged/press-1/status", "-m", '{"state": "online"}', "-r", "-q", "1"]
        account = ["-p", str(broker.port), "-u", "press-1", "-P", "s3cret"]
        subprocess.run(["mosquitto_pub", *account, *told], check=True)
        connect(page, "viewer", "s3cret")
        expect(row(page, "press-1")).to_be_visible()
        page.get_by_label("Select press-1", exact=True).check()
        page.get_by_role("button", name="Send command to 1 device").click()
        page.locator("#send-command").select_option("train")
        page.get_by_role("button", name="Send train to 1 device").click()
        expect(page.locator("#answer-list")).to_contain_text("not sent")
        expect(page.locator("#answer-list")).to_contain_text("Not authorized")


def test_a_device_of_flesh_and_blood(make_broker: MakeBroker, browser: Any, tmp_path: Path) -> None:
    """`edged run`: seen, paused and resumed, killed, back."""
    broker, place = websockets(make_broker)
    device = Device(tmp_path, broker.port, {"features": 2, "classes": 2})
    with (
        fleet_ui("--broker-ws", place) as ui,
        running(device, broker.port),
        opened(browser, ui.url) as page,
    ):
        connect(page)
        expect(state(page, "rig")).to_have_text("online")
        expect(row(page, "rig").locator("td").nth(9)).to_contain_text("OK")
        for command, shown in (("pause", "paused"), ("resume", "0 runs")):
            page.get_by_role("button", name="rig", exact=True).click()
            page.locator("#detail-command").click()
            page.locator("#send-command").select_option(command)
            began = time.monotonic()
            page.get_by_role("button", name=f"Send {command} to 1 device").click()
            expect(page.locator("#answer-list li").first).to_contain_text(f"rig {command}: successful")
            page.locator("#detail-close").click()
            expect(row(page, "rig")).to_contain_text(shown)
            sys.stderr.write(f"{command}: shown after {time.monotonic() - began:.2f} s\n")
        assert device.stop(signal.SIGKILL) == -signal.SIGKILL
        expect(state(page, "rig")).to_have_text("offline", timeout=3_000)
        device.start()
        expect(state(page, "rig")).to_have_text("online", timeout=60_000)


def test_each_stream_of_a_device_has_a_line(make_broker: MakeBroker, browser: Any, tmp_path: Path) -> None:
    """A device with three streams, of which one cannot start: seen, told to pause, removed."""
    broker, place = websockets(make_broker)
    plant = Plant(tmp_path, broker.port)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "bundle.json").write_text("{")
    plant.stream("c")["model"] = {"bundle": "broken"}
    plant.write()
    with (
        fleet_ui("--broker-ws", place) as ui,
        plant_running(plant, broker.port),
        opened(browser, ui.url) as page,
    ):
        connect(page)
        expect(row(page, "rig")).to_contain_text("3 streams")
        expect(row(page, "rig")).to_contain_text("c: ")
        for name in "ab":
            expect(state(page, f"rig/{name}")).to_have_text("online")
            expect(row(page, f"rig/{name}").locator("td").nth(4)).to_have_text("1")  # the model
        expect(state(page, "rig/c")).to_have_text("failed")
        expect(row(page, "rig/c")).to_contain_text("broken")
        page.get_by_role("button", name="rig/a", exact=True).click()
        page.locator("#detail-command").click()
        page.locator("#send-command").select_option("pause")
        page.get_by_role("button", name="Send pause to 1 device").click()
        expect(page.locator("#answer-list li").first).to_contain_text("rig/a pause: successful")
        page.locator("#detail-close").click()
        expect(row(page, "rig/a")).to_contain_text("paused")
        expect(row(page, "rig/b")).not_to_contain_text("paused")
        picture(page, "streams")
        plant.values["streams"].remove(plant.stream("b"))
        plant.reload()
        expect(row(page, "rig/b")).to_have_count(0)
        expect(row(page, "rig")).to_contain_text("2 streams")
        plant.stop(signal.SIGKILL)
        for name in ("rig", "rig/a"):
            expect(state(page, name)).to_have_text("offline", timeout=3_000)


def test_why_a_device_refuses_most_messages(make_broker: MakeBroker, browser: Any, tmp_path: Path) -> None:
    """A renamed field: list and device's view show the reason until the messages are right again."""
    broker, place = websockets(make_broker)
    device = Device(tmp_path, broker.port, {"features": ["temp", "vib"], "classes": 2})
    with (
        fleet_ui("--broker-ws", place) as ui,
        running(device, broker.port) as listener,
        opened(browser, ui.url) as page,
    ):
        connect(page)
        health, reason = row(page, "rig").locator("td").nth(9), "most messages are refused, the newest: "
        expect(health).to_contain_text("OK")
        for _ in range(5):
            listener.send("sensors/a", {"Temp": 20.5, "vib": 0.1})
        expect(health).to_contain_text(f"{reason}sensors/a: field 'temp' is missing")
        expect(health).to_have_class("bad")
        unhealthy = page.get_by_role("button", name="Unhealthy 1", exact=True)
        unhealthy.click()
        expect(unhealthy).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#rows tr")).to_have_count(1)
        picture(page, "refused-list")
        page.get_by_role("button", name="rig", exact=True).click()
        expect(page.locator("#detail-facts")).to_contain_text(f"{reason}sensors/a: field 'temp' is missing")
        expect(page.locator("#detail-facts")).to_contain_text("did you mean Temp?")
        assert violations(page) == []
        picture(page, "refused-detail")
        page.locator("#detail-close").click()
        page.get_by_role("button", name="All 1", exact=True).click()
        for _ in range(6):
            listener.send("sensors/a", {"temp": 20.5, "vib": 0.1})
        expect(health).to_have_text("OK")


def test_an_operator_teaches_a_device_and_sees_what_it_did(
    make_broker: MakeBroker, browser: Any, tmp_path: Path
) -> None:
    """A label from now on, an answer to a label request, and the sentence on what was learned."""
    broker, place = websockets(make_broker)
    device = Device(
        tmp_path, broker.port, {"features": ["temp", "vib"], "classes": ["ok", "worn"]},
        labels={"request_share": 0.5}, training={"new_labels": 20, "every": None},
        gate={"min_holdout": 1, "probation": 0},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    with (
        fleet_ui("--broker-ws", place) as ui,
        running(device, broker.port) as listener,
        opened(browser, ui.url) as page,
    ):
        connect(page)
        page.get_by_role("button", name="rig", exact=True).click()
        expect(page.locator("#detail-learned")).to_have_text("Nothing yet.")
        page.get_by_label("Key", exact=True).fill("a")
        page.get_by_label("Label", exact=True).select_option("worn")
        page.get_by_role("button", name="Label from now on").click()
        expect(page.locator("#teach-answer")).to_have_text("From now on: worn.")
        for _ in range(40):
            listener.send("sensors/a", {"temp": rng.normal(60, 1), "vib": rng.normal(1, 0.1)})
        page.get_by_label("Label", exact=True).select_option("ok")
        page.get_by_role("button", name="Label from now on").click()
        expect(page.locator("#teach-answer")).to_have_text("From now on: ok.")
        for _ in range(40):
            listener.send("sensors/a", {"temp": rng.normal(40, 1), "vib": rng.normal(0, 0.1)})
        page.get_by_role("button", name="End", exact=True).click()
        expect(page.locator("#teach-answer")).to_have_text("Ended.")
        expect(page.locator("#detail-learned")).to_contain_text("Learned from", timeout=30_000)
        expect(page.locator("#detail-learned")).to_contain_text("In service as model")
        for _ in range(20):
            listener.send("sensors/b", {"temp": 50.0, "vib": 0.5})
        expect(page.locator("#teach-requests li").first).to_contain_text("b, ", timeout=20_000)
        before, last = listener.messages["metrics"][-1], page.locator("#teach-requests li").first
        asked = last.inner_text()
        assert violations(page) == []
        picture(page, "teach")
        last.get_by_role("button", name="ok").click()
        expect(page.locator("#teach-requests li").first).not_to_have_text(asked)
        count = before["labels"]["count"]
        listener.wait(lambda: listener.messages["metrics"][-1]["labels"]["count"] > count)
        page.locator("#detail-close").click()
        expect(row(page, "rig")).to_contain_text("Learned from")


def test_rounds_models_refusals_and_reasons_are_on_the_page(
    make_broker: MakeBroker, browser: Any, tmp_path: Path
) -> None:
    broker, place = websockets(make_broker, "allow_anonymous true")
    sections: dict[str, Any] = {
        "choose": {"patience": "1s"}, "gate": {"stages": [1.0], "wait": "600s"},
        "round": {"devices": 3, "window": 0},
        "rollout": {"canaries": {"tags": ["canary"]}, "approval": "first"},
    }  # fmt: skip
    site = Site(tmp_path / "site", broker.port, base_weights(), **sections)
    others = Senders(broker.port, ["a", "b", "c"])
    busy = Senders(broker.port, ["busy-1", "busy-2"])
    others.states(tags=("canary",))
    busy.states(ready=False, why_not="flash <b>budget</b> used")
    with (
        fleet_ui("--broker-ws", place) as ui,
        opened(browser, ui.url, "dark", "phone") as page,
    ):
        connect(page)
        site.start()
        learning = page.locator("#learning")
        expect(learning).to_contain_text("busy-1, busy-2: flash <b>budget</b> used", timeout=20_000)
        others.publish("a", others.topics.up(1, "a"), b"nonsense")
        expect(learning).to_contain_text("malformed", timeout=20_000)
        expect(learning).to_contain_text("devices try the model", timeout=40_000)
        expect(learning).to_contain_text("Stage 1 of 2 (canaries): 3 devices asked")
        instruct(site.dir, "abandon", (1, "trial"), "ada")
        expect(learning).to_contain_text("abandoned by ada", timeout=20_000)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == SIZES["phone"][0]
        picture(page, "learning")
    others.close()
    busy.close()
    site.close()
