"""The session with a real broker, while all goes well."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edged.config import MqttConfig
from edged.errors import ConfigError
from edged.mqtt.client import connection
from edged.mqtt.client.message import MessageProperties
from edged.mqtt.client.session import Session
from tests.mqtt.inbox import PATIENCE, ConnectionGates, Gate, Inbox

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto
    from tests.mqtt.conftest import Connect

KEYS = Path(__file__).parent / "tls"
TLS = {"ca_file": KEYS / "ca.pem", "cert_file": KEYS / "client.pem", "key_file": KEYS / "client.key"}
TLS_LINES = (
    "allow_anonymous true",
    f"cafile {KEYS / 'ca.pem'}",
    f"certfile {KEYS / 'server.pem'}",
    f"keyfile {KEYS / 'server.key'}",
    "require_certificate true",
)
VERSIONS = pytest.mark.parametrize("protocol", ["5", "3.1.1"])


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1])
def test_messages_arrive_once_and_in_order(connect: Connect, protocol: str, qos: int) -> None:
    receiver = connect("receiver", config={"protocol": protocol})
    inbox = Inbox(receiver)
    receiver.subscribe(["s/+/data"], qos, inbox)
    assert receiver.wait_ready(PATIENCE)
    sender = connect("sender", config={"protocol": protocol})
    for number in range(500):
        assert sender.publish("s/7/data", b"%d" % number, qos=qos)
    assert inbox.payloads(500) == [b"%d" % number for number in range(500)]
    first = inbox.deliveries[0]
    assert (first.topic, first.qos, first.dup, first.retain, first.epoch) == (
        "s/7/data",
        qos,
        False,
        False,
        1,
    )
    assert all((delivery.mid > 0) == (qos == 1) for delivery in inbox.deliveries)
    assert receiver.protocol == protocol


def test_many_threads_may_publish_and_acknowledge(connect: Connect) -> None:
    receiver = connect("receiver")
    inbox = Inbox(receiver)
    receiver.subscribe(["s"], 1, inbox)
    assert receiver.wait_ready(PATIENCE)
    sender = connect("sender")

    def send(name: int) -> None:
        for number in range(200):
            assert sender.publish("s", b"%d %d" % (name, number), qos=1)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    payloads = inbox.payloads(800)
    assert len(set(payloads)) == 800
    for name in range(4):
        mine = [payload for payload in payloads if payload.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, number) for number in range(200)]


@pytest.mark.parametrize(("expiry", "kept"), [("1h", [b"away", b"back"]), (0, [b"back"])])
def test_the_broker_keeps_messages_for_as_long_as_it_is_asked_to(
    connect: Connect, expiry: str | int, kept: list[bytes]
) -> None:
    receiver = connect("receiver", config={"session_expiry": expiry}, subscribe=("s", Inbox()))
    receiver.stop()
    sender = connect("sender", subscribe=("s", seen := Inbox()))
    assert sender.publish("s", b"away", qos=1)
    seen.wait(1)  # the broker has passed it on to all who are to get it
    inbox = Inbox()
    connect("receiver", config={"session_expiry": expiry}, subscribe=("s", inbox))
    assert sender.publish("s", b"back", qos=1)
    assert inbox.payloads(len(kept)) == kept


def test_the_most_specific_subscription_gets_the_message(connect: Connect) -> None:
    session = connect("me")
    every, labels = Inbox(session), Inbox(session)
    session.subscribe(["s/#"], 0, every)
    session.subscribe(["s/+/label"], 0, labels)
    assert session.wait_ready(PATIENCE)
    session.publish("s/1/label", b"label")
    session.publish("s/1/data", b"data")
    assert labels.payloads(1) == [b"label"]
    assert every.payloads(1) == [b"data"]


def test_retained_messages_are_marked_and_come_once_for_a_lasting_session(connect: Connect) -> None:
    stored = Gate()
    connect("sender").publish("state", b"kept", qos=1, retain=True, on_done=stored)
    stored.wait()
    inbox = Inbox()
    first = connect("receiver", subscribe=("state", inbox))
    [delivery] = inbox.wait(1)
    assert delivery.retain
    first.ack([delivery])
    first.stop()
    again = Inbox()
    second = connect("receiver", subscribe=("state", again))
    second.publish("state", b"new")
    [delivery] = again.wait(1)
    assert (delivery.payload, delivery.retain) == (b"new", False)


@pytest.mark.parametrize("as_published", [True, False])
def test_whether_a_live_message_was_to_be_kept_is_seen_where_it_is_asked_for(
    connect: Connect, as_published: bool
) -> None:
    inbox, receiver = Inbox(), connect("receiver")
    receiver.subscribe(["request/+"], 1, inbox, as_published=as_published)
    assert receiver.wait_ready(PATIENCE)
    sender = connect("sender")
    sender.publish("request/train", b"{}", qos=1, retain=True)
    [delivery] = inbox.wait(1)
    assert delivery.retain is as_published
    sender.publish("request/train", b"", qos=1, retain=True)
    assert [cleared.retain for cleared in inbox.wait(2)[1:]] == [as_published]


def test_request_and_answer_with_mqtt_5_properties(connect: Connect) -> None:
    device = connect("device")

    def answer_with(inbox: Inbox) -> None:
        [request] = inbox.wait(1)
        assert request.response_topic == "answers/me"
        device.publish(request.response_topic, b"done", correlation=request.correlation)

    requests, answers = Inbox(), Inbox()
    device.subscribe(["request/+"], 1, requests)
    asker = connect("asker")
    asker.subscribe(["answers/me"], 1, answers)
    assert device.wait_ready(PATIENCE)
    assert asker.wait_ready(PATIENCE)
    asker.publish("request/train", b"{}", qos=1, properties=MessageProperties("answers/me", b"\x00\x17"))
    answer_with(requests)
    [answer] = answers.wait(1)
    assert (answer.payload, answer.correlation, answer.response_topic) == (b"done", b"\x00\x17", None)


def test_properties_are_left_out_at_3_1_1(connect: Connect) -> None:
    session = connect("me", config={"protocol": "3.1.1"})
    inbox = Inbox(session)
    session.subscribe(["t"], 1, inbox)
    assert session.wait_ready(PATIENCE)
    session.publish("t", b"a", qos=0, correlation=b"1")
    session.publish("t", b"b", qos=1, properties=MessageProperties("answers"))
    assert sorted(inbox.payloads(2)) == [b"a", b"b"]
    assert [delivery.properties for delivery in inbox.deliveries] == [None, None]


def test_a_message_of_megabytes_goes_both_ways(connect: Connect) -> None:
    session = connect("me")
    inbox = Inbox(session)
    session.subscribe(["big"], 1, inbox)
    assert session.wait_ready(PATIENCE)
    payload = bytes(range(256)) * 16_384
    session.publish("big", payload, qos=1)
    session.publish("big", payload[1:], qos=0)
    assert sorted(map(len, inbox.payloads(2))) == [len(payload) - 1, len(payload)]


def test_a_burst_larger_than_all_buffers_is_sent_without_a_pause(connect: Connect) -> None:
    inbox = Inbox()
    connect("receiver", subscribe=("t", inbox))
    sender = connect("sender")
    for _ in range(10_000):
        assert sender.publish("t", bytes(4000))
    assert len(inbox.wait(10_000)) == 10_000
    assert sender.dropped == 0


def test_pending_counts_down_as_the_broker_acknowledges(connect: Connect) -> None:
    done = Gate()
    session = connect("me")
    for number in range(100):
        session.publish("t", b"%d" % number, qos=1, on_done=done)
    for _ in range(100):
        done.wait()
    assert session.pending == 0


def test_stop_sends_what_waits_and_leaves_without_the_will(connect: Connect) -> None:
    inbox = Inbox()
    observer = connect("observer", subscribe=("#", inbox))
    session = connect("me", will=("status", b"vanished", True))
    for number in range(50):
        session.publish("last/words", b"%d" % number, qos=number % 2)
    session.publish("status", b"offline", qos=1, retain=True)
    session.stop()
    assert not session.connected
    assert session.pending == 0
    assert not session.publish("last/words", b"too late")
    observer.publish("end", b"end", qos=1)
    payloads = inbox.payloads(52)
    assert payloads[-1] == b"end"
    assert b"offline" in payloads
    assert b"vanished" not in payloads


def test_a_session_that_was_never_started_or_never_connected_can_be_stopped() -> None:
    config = MqttConfig(host="127.0.0.1", port=1)
    never = Session(config, client_id="never")
    never.stop()
    started = Session(config, client_id="started")
    started.start()
    started.stop()
    assert not started.connected
    assert not started.wait_ready(0)


def test_a_session_that_is_held_up_beyond_its_stop_closes_its_sockets_later(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_sockets() -> set[str]:
        return {link for fd in Path("/proc/self/fd").iterdir() if (link := target(fd)).startswith("socket:")}

    def target(fd: Path) -> str:
        with contextlib.suppress(OSError):
            return str(fd.readlink())
        return ""

    def hold(_: object) -> None:
        held.set()
        go_on.wait()

    held, go_on, earlier = threading.Event(), threading.Event(), set(threading.enumerate())
    before = open_sockets()
    session = Session(MqttConfig(host="127.0.0.1", port=broker.port), client_id="me")
    session.subscribe(["s"], 1, hold)
    session.start()
    (thread,) = set(threading.enumerate()) - earlier
    assert session.wait_ready(PATIENCE)
    session.publish("s", b"", qos=1)
    assert held.wait(PATIENCE)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 0.0)
    session.stop(timeout=0.01)
    assert open_sockets() > before
    go_on.set()
    thread.join(PATIENCE)
    assert open_sockets() <= before


def test_the_birth_follows_the_subscriptions(broker: Mosquitto, connect: Connect) -> None:
    """Who hears the birth may send a command at once: the broker knows our filters by then."""
    inbox, commands = Inbox(), Inbox()
    observer = connect("observer", subscribe=("status", inbox))
    session: list[Session] = []
    gates = ConnectionGates(lambda: session[0].publish("status", b"online", qos=1))
    config = MqttConfig(host="127.0.0.1", port=broker.port)
    session.append(Session(config, client_id="me", listener=gates))
    session[0].subscribe(["request/+"], 1, commands)
    session[0].start()
    assert inbox.payloads(1) == [b"online"]
    observer.publish("request/train", b"now")
    assert commands.payloads(1) == [b"now"]
    session[0].stop()


@pytest.mark.parametrize("topic", ["", "a/+", "#", "\ud800"])
def test_what_is_no_topic_is_refused_and_does_no_harm(connect: Connect, topic: str) -> None:
    session = connect("me")
    assert not session.publish(topic, b"")
    done = Gate()
    assert session.publish("t", b"", qos=1, on_done=done)
    done.wait()


def test_what_is_no_filter_is_a_configuration_error(connect: Connect) -> None:
    with pytest.raises(ConfigError, match="last level"):
        connect("me").subscribe(["a/#/b"], 1, Inbox())


def test_the_broker_keeps_messages_while_we_are_away(connect: Connect) -> None:
    inbox = Inbox()
    connect("me", subscribe=("t", inbox)).stop()
    sender, done = connect("sender"), Gate()
    for number in range(3000):
        sender.publish("t", b"%d" % number, qos=1, on_done=done)
    for _ in range(3000):
        done.wait()
    later = Inbox()
    session = connect("me", subscribe=("t", later))
    session.ack(later.wait(2000))
    assert later.payloads(3000) == [b"%d" % number for number in range(3000)]


def test_receive_maximum_opens_the_window_beyond_the_brokers_own(connect: Connect) -> None:
    """Group commits need many messages in flight; mosquitto alone would stop at 20."""
    inbox = Inbox()
    session = connect("me", subscribe=("t", inbox), config={"receive_maximum": 300})
    sender = connect("sender")
    for number in range(400):
        sender.publish("t", b"%d" % number, qos=1)
    first = inbox.wait(300)
    session.ack(first[:100])
    assert len(inbox.wait(400)) == 400


def test_tls_with_a_client_certificate(make_broker: MakeBroker, make_session: Connect) -> None:
    broker = make_broker(*TLS_LINES)
    session = make_session("me", port=broker.port, config={"host": "localhost", "tls": TLS})
    inbox = Inbox(session)
    session.subscribe(["t"], 1, inbox)
    assert session.wait_ready(PATIENCE)
    for number in range(1000):
        session.publish("t", bytes([number % 256]) * 1000, qos=number % 2)
    assert len(inbox.wait(1000)) == 1000


def test_tls_without_checking_the_host_name(make_broker: MakeBroker, make_session: Connect) -> None:
    broker = make_broker(*TLS_LINES)
    config = {"host": "127.0.0.1", "tls": {**TLS, "insecure": True}}
    assert make_session("me", port=broker.port, config=config).connected
