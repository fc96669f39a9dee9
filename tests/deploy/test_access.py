"""The broker's files in deploy/mosquitto: what must work works, and what must not does not."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.deploy.site import Guest, Protocol, Site, script

MARKS = itertools.count()
DENIED = "Not authorized"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One broker for all of it."""
    site = Site(tmp_path_factory.mktemp("site"))
    site.start()
    yield site
    site.stop()


def device(site: Site, name: str = "press-7", **options: Any) -> Guest:
    """A device with its certificate."""
    return Guest(
        site.devices, ca=site.keys / "broker-ca.pem", certificate=site.keys / "devices" / name, **options
    )


def person(site: Site, name: str = "operator", **options: Any) -> Guest:
    """One of the roles."""
    return Guest(
        site.operators, ca=site.keys / "broker-ca.pem", certificate=site.keys / "operators" / name, **options
    )


def mark() -> bytes:
    return b"mark %d" % next(MARKS)


# --- what must work ---


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
@pytest.mark.parametrize(
    "topic",
    [
        "status",
        "state/model",
        "metrics",
        "predictions",
        "events",
        "response/train",
        "progress/t1",
        "weights/3/0",
    ],
)
def test_a_device_publishes_on_its_topics(site: Site, topic: str, protocol: Protocol) -> None:
    with person(site, "viewer") as viewer, device(site, protocol=protocol) as press:
        viewer.subscribe("edged/#")
        payload = mark()
        assert press.publish(f"edged/press-7/{topic}", payload) == "Success"
        viewer.got(f"edged/press-7/{topic}", payload)


def test_a_device_hears_its_commands_and_its_sensors(site: Site) -> None:
    with device(site) as press, person(site) as operator, person(site, "sensors") as sensors:
        for topic in ("edged/press-7/request/+", "sensors/press-7/#", "homeassistant/status"):
            assert press.subscribe(topic).startswith("Granted")
        payload = mark()
        operator.publish("edged/press-7/request/train", payload)
        press.got("edged/press-7/request/train", payload)
        assert press.subscribe("edged/press-7/weights/in/+/+").startswith("Granted")
        operator.publish("edged/press-7/weights/in/t1/0", payload)
        press.got("edged/press-7/weights/in/t1/0", payload)
        sensors.publish("sensors/press-7/vibration", payload)
        press.got("sensors/press-7/vibration", payload)
        with person(site, "homeassistant") as home:
            home.publish("homeassistant/status", payload)
            press.got("homeassistant/status", payload)
            home.subscribe("homeassistant/device/#")
            for place in ("main-edged/config", "key-0123456789abcdef-edged/config", "config"):
                press.publish(f"homeassistant/device/press-7/{place}", payload)
                home.got(f"homeassistant/device/press-7/{place}", payload)


FLEET = "edged/fl/plant"
OWN = ("up/1/press-7", "up/1/press-7/0", "state/press-7", "eval/1/press-7")


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_device_and_the_coordinator_of_its_fleet(site: Site, protocol: Protocol) -> None:
    with device(site, protocol=protocol) as press, person(site, "fleet") as coordinator:
        for topic in ("up/#", "state/+", "eval/+/+"):
            coordinator.subscribe(f"{FLEET}/{topic}")
        for topic in OWN:
            payload = mark()
            assert press.publish(f"{FLEET}/{topic}", payload) == "Success"
            coordinator.got(f"{FLEET}/{topic}", payload)
        for topic in ("round", "model/abc/0", "ack/1"):
            press.subscribe(f"{FLEET}/{topic}")
            payload = mark()
            assert coordinator.publish(f"{FLEET}/{topic}", payload) == "Success"
            press.got(f"{FLEET}/{topic}", payload)


@pytest.mark.parametrize("name", ["viewer", "homeassistant"])
def test_who_looks_sees_devices_but_not_what_they_send_to_a_fleet(site: Site, name: str) -> None:
    with person(site, name) as looks, device(site) as press:
        looks.subscribe("edged/#")
        secrets = [mark() for _ in OWN]
        for topic, secret in zip(OWN, secrets, strict=True):
            assert press.publish(f"{FLEET}/{topic}", secret) == "Success"
        last = mark()
        press.publish("edged/press-7/state/model", last)
        looks.got("edged/press-7/state/model", last)
        assert not set(secrets) & {payload for _, payload in looks.came}


def test_accounts_on_this_machine(site: Site) -> None:
    with Guest(site.port, account="press-7") as press, Guest(site.port, account="sensors") as sensors:
        press.subscribe("sensors/press-7/#")
        payload = mark()
        sensors.publish("sensors/press-7/a", payload)
        press.got("sensors/press-7/a", payload)


# --- what a device must not publish ---

NOT_TO_WRITE = {
    "another device's state": "edged/press-8/state/model",
    "another device's status": "edged/press-8/status",
    "another device's events": "edged/press-8/events",
    "another device's answers": "edged/press-8/response/train",
    "another device's weights": "edged/press-8/weights/1/manifest",
    "a chunk to another device": "edged/press-8/weights/in/t1/0",
    "a chunk to itself": "edged/press-7/weights/in/t1/0",
    "another device's discovery": "homeassistant/device/press-8/main-edged/config",
    "a command to another device": "edged/press-8/request/wipe",
    "a command to itself": "edged/press-7/request/rollback",
    "another device's update": "edged/fl/plant/up/1/press-8",
    "a part of another's update": "edged/fl/plant/up/1/press-8/0",
    "another's state in the fleet": "edged/fl/plant/state/press-8",
    "another's report in the fleet": "edged/fl/plant/eval/1/press-8",
    "a round": "edged/fl/plant/round",
    "a model of the fleet": "edged/fl/plant/model/abc/0",
    "a receipt": "edged/fl/plant/ack/1",
    "another root": "plant/press-7/status",
    "no device": "edged/status",
    "a topic of nobody": "edged/press-7/unknown",
    "a name with its own before it": "edged/press-77/status",
    "sensor data": "sensors/press-7/vibration",
    "Home Assistant's birth": "homeassistant/status",
    "the broker's own figures": "$SYS/broker/uptime",
}


@pytest.mark.parametrize(("protocol", "retain"), [("5", False), ("3.1.1", False), ("5", True)])
def test_what_a_device_must_not_publish(site: Site, protocol: Protocol, retain: bool) -> None:
    """MQTT 5 says so; 3.1.1 has no word for it, so the message is acknowledged and gone."""
    forged, last = {topic: mark() for topic in NOT_TO_WRITE.values()}, mark()
    with person(site) as operator, person(site, "homeassistant") as home:
        for watcher in (operator, home):
            watcher.subscribe("edged/#")
        operator.subscribe("$SYS/broker/uptime")
        home.subscribe("homeassistant/#")
        operator.subscribe("sensors/#")
        for case, topic in NOT_TO_WRITE.items():
            with device(site, protocol=protocol) as press:  # Mosquitto 2.0 may hang up after that
                answer = press.publish(topic, forged[topic], retain=retain)
                assert answer == (DENIED if protocol == "5" else "Success"), case
        with device(site) as again:
            assert again.publish("edged/press-7/events", last) == "Success"
        for watcher in (operator, home):
            watcher.got("edged/press-7/events", last)
            assert set(forged.items()) & set(watcher.came) == set()
    if retain:  # nor is it kept for those who come later
        with person(site) as later, device(site) as press:
            later.subscribe("edged/#")
            last = mark()
            press.publish("edged/press-7/events", last)
            later.got("edged/press-7/events", last)
            assert set(forged.items()) & set(later.came) == set()


# --- what a device must not read ---

NOT_TO_READ = {
    "another device's states": ("edged/press-8/#", "edged/press-8/state/model"),
    "another device's commands": ("edged/+/request/+", "edged/press-8/request/train"),
    "everything": ("#", "edged/press-8/events"),
    "another device's updates": ("edged/fl/plant/up/#", "edged/fl/plant/up/1/press-8"),
    "another device's sensors": ("sensors/#", "sensors/press-8/a"),
    "what others announce": ("homeassistant/#", "homeassistant/device/press-8/main-edged/config"),
    "a share of another's commands": ("$share/g/edged/press-8/request/+", "edged/press-8/request/train"),
}


def writer(site: Site, topic: str) -> Guest:
    """Who may publish on the topic."""
    if topic.startswith("sensors/"):
        return person(site, "sensors")
    return person(site) if "/request/" in topic else device(site, "press-8")


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_what_a_device_must_not_read(site: Site, protocol: Protocol) -> None:
    """Mosquitto grants the subscription and delivers nothing: its files have no rules for subscribing."""
    secrets, last = {case: mark() for case in NOT_TO_READ}, mark()
    with device(site, protocol=protocol) as press, person(site) as operator:
        for pattern, _ in NOT_TO_READ.values():
            press.subscribe(pattern)
        press.subscribe("edged/press-7/request/+")
        for case, (_, topic) in NOT_TO_READ.items():
            with writer(site, topic) as other:
                assert other.publish(topic, secrets[case]) == "Success", case
        operator.publish("edged/press-7/request/ping", last)
        press.got("edged/press-7/request/ping", last)
        came = {payload for _, payload in press.came}
        assert [case for case, secret in secrets.items() if secret in came] == []


def test_a_device_does_not_read_the_brokers_figures(site: Site) -> None:
    """They are retained, so whoever may read them has them at once."""
    with person(site) as operator:
        operator.subscribe("$SYS/broker/version")
        operator.wait(lambda: operator.came)
        with device(site) as press:
            press.subscribe("$SYS/broker/version")
            press.subscribe("edged/press-7/request/+")
            last = mark()
            operator.publish("edged/press-7/request/ping", last)
            press.got("edged/press-7/request/ping", last)
            assert [topic for topic, _ in press.came if topic.startswith("$SYS")] == []


# --- who is not let in ---


def without_certificate(site: Site, _: Path) -> Guest:
    return Guest(site.devices, ca=site.keys / "broker-ca.pem")


def in_plain_text(site: Site, _: Path) -> Guest:
    return Guest(site.devices)


def with_an_operators_certificate(site: Site, _: Path) -> Guest:
    stem = site.keys / "operators" / "operator"
    return Guest(site.devices, ca=site.keys / "broker-ca.pem", certificate=stem)


def with_a_devices_certificate_among_operators(site: Site, _: Path) -> Guest:
    stem = site.keys / "devices" / "press-7"
    return Guest(site.operators, ca=site.keys / "broker-ca.pem", certificate=stem)


def with_the_brokers_own_certificate(site: Site, _: Path) -> Guest:
    return Guest(site.devices, ca=site.keys / "broker-ca.pem", certificate=site.keys / "broker")


def with_a_certificate_of_its_own_making(site: Site, folder: Path) -> Guest:
    certificate, _ = Authority(folder, "own").issue("press-7")
    return Guest(site.devices, ca=site.keys / "broker-ca.pem", certificate=certificate.with_suffix(""))


def without_account(site: Site, _: Path) -> Guest:
    return Guest(site.port)


def with_a_wrong_password(site: Site, _: Path) -> Guest:
    return Guest(site.port, account="press-7", password="wrong")  # noqa: S106  it is


def with_an_unknown_account(site: Site, _: Path) -> Guest:
    return Guest(site.port, account="press-8")


STRANGERS = (
    without_certificate,
    in_plain_text,
    with_an_operators_certificate,
    with_a_devices_certificate_among_operators,
    with_the_brokers_own_certificate,
    with_a_certificate_of_its_own_making,
    without_account,
    with_a_wrong_password,
    with_an_unknown_account,
)


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda make: make.__name__)
def test_who_is_not_let_in(site: Site, tmp_path: Path, stranger: Callable[[Site, Path], Guest]) -> None:
    with stranger(site, tmp_path) as guest:
        guest.wait(lambda: guest.left is not None)
        assert not guest.let_in
        assert guest.came == []


def test_a_revoked_certificate_is_out_after_a_reload(site: Site) -> None:
    """press-9 was revoked before the broker started; press-6 while it runs."""
    script(str(site.keys), "device", "press-6")
    with device(site, "press-6") as press:
        assert press.let_in
    certificate, key = (site.keys / "devices" / f"press-6.{kind}" for kind in ("pem", "key"))
    kept = certificate.read_bytes(), key.read_bytes()
    script(str(site.keys), "revoke", "device", "press-6")
    certificate.write_bytes(kept[0])
    key.write_bytes(kept[1])
    os.kill(site.pid, signal.SIGHUP)
    for _ in range(200):
        with device(site, "press-6") as press:
            if not press.let_in or press.publish("edged/press-6/events") == "left":
                return
    pytest.fail("the revoked device is still let in")


# --- what a device must not do to the broker and to others ---


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_will_on_a_topic_of_another_device(site: Site, protocol: Protocol) -> None:
    topic, last = "edged/press-8/status", mark()
    with person(site) as operator:
        operator.subscribe("edged/#")
        press = device(site, protocol=protocol, will=topic)
        if press.let_in:
            press.vanish()
        with device(site) as again:
            again.publish("edged/press-7/events", last)
        operator.got("edged/press-7/events", last)
        assert (topic, b"forged") not in operator.came


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_packet_that_is_too_large_ends_the_connection(site: Site, protocol: Protocol) -> None:
    with person(site) as operator, device(site, protocol=protocol) as press:
        operator.subscribe("edged/press-7/#")
        assert press.publish("edged/press-7/events", bytes(1_100_000)) == "left"
        last = mark()
        with device(site) as again:
            again.publish("edged/press-7/events", last)
        operator.got("edged/press-7/events", last)
        assert all(len(payload) < 1_000_000 for _, payload in operator.came)


def test_no_device_takes_the_place_of_another(site: Site) -> None:
    """By its client id it would throw it out, and get what waits for it."""
    with device(site, "press-8", client_id="edged-press-8") as victim:
        victim.subscribe("edged/press-8/request/+")
        with device(site, "press-7", client_id="edged-press-8") as thief:
            assert thief.let_in
            last = mark()
            with person(site) as operator:
                operator.publish("edged/press-8/request/ping", last)
            victim.got("edged/press-8/request/ping", last)
            assert victim.let_in
            assert thief.came == []


# --- what people must not do ---

NOT_FOR = {
    "a viewer sends a command": ("viewer", "edged/press-7/request/train"),
    "a viewer forges a state": ("viewer", "edged/press-7/state/model"),
    "an operator forges a state": ("operator", "edged/press-7/state/model"),
    "an operator forges a prediction": ("operator", "edged/press-7/predictions"),
    "an operator forges sensor data": ("operator", "sensors/press-7/a"),
    "Home Assistant wipes": ("homeassistant", "edged/press-7/request/wipe"),
    "Home Assistant installs": ("homeassistant", "edged/press-7/request/bundle.install"),
    "a viewer opens a round": ("viewer", "edged/fl/plant/round"),
    "an operator opens a round": ("operator", "edged/fl/plant/round"),
    "a coordinator sends a command": ("fleet", "edged/press-7/request/train"),
    "a coordinator forges an update": ("fleet", "edged/fl/plant/up/1/press-7"),
    "sensors send a command": ("sensors", "edged/press-7/request/train"),
    "a name without a role": ("nobody", "edged/press-7/request/train"),
}


def test_what_people_must_not_do(site: Site) -> None:
    forged, last = {case: mark() for case in NOT_FOR}, mark()
    with device(site) as press, person(site) as operator:
        operator.subscribe("#")
        press.subscribe("edged/press-7/request/+")
        press.subscribe("sensors/press-7/#")
        for case, (name, topic) in NOT_FOR.items():
            with person(site, name) as guest:
                assert guest.publish(topic, forged[case]) == DENIED, case
        operator.publish("edged/press-7/request/ping", last)
        press.got("edged/press-7/request/ping", last)
        came = {payload for _, payload in (*press.came, *operator.came)}
        assert [case for case, payload in forged.items() if payload in came] == []
