"""How fast messages become durable samples, beside a subscriber that does nothing with them.

Every consumer drains the same messages from a queue that mosquitto holds for it (QoS 1, persistent
session, the same Receive Maximum), one after the other, in several rounds:

* `bare paho 5`, `bare paho 3.1.1`: paho's callback counts; paho acknowledges by itself. Ratios are
  to the faster of the two in the same round.
* `to durable storage`: session, codec, group commit (`synchronous=FULL`), acknowledgement after it.
* `with prediction and publishing`: the real daemon as a process; timed by a subscriber between the
  first and the last prediction that it receives.

With `--window N` mosquitto keeps N messages in flight, at MQTT 3.1.1 and at 5: durable samples a second with
the group commit as it is, beside `storage.commit_delay: 0`.

With `--joined` each message brings 4 of the 16 features, on one of 4 topics, and the daemon makes a sample
with every message: `joined, with prediction and publishing`.

`python benchmarks/ingest.py [--messages N] [--rounds R] [--window N | --joined] [--json] [--out FILE]`
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import paho.mqtt.client as mqtt
import yaml
from output import Row, finish, options
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edged.workbench.demo.broker import embedded_broker

FEATURES = 16
RECEIVE_MAXIMUM = 2000
TOPIC = "bench/#"
TOPICS = 4  # of joined messages
PART = FEATURES // TOPICS
BARE5, BARE3, INGEST, DAEMON = (
    "bare paho 5",
    "bare paho 3.1.1",
    "to durable storage",
    "with prediction and publishing",
)


WHOLE = {"topic": TOPIC, "features": FEATURES, "classes": 2, "label": "y"}
JOINED = {
    "topic": TOPIC,
    "key": {"fixed": "bench"},
    "features": [f"f{n}" for n in range(FEATURES)],
    "missing": {"flags": True},
    "task": "reconstruct",
}


def connect_properties() -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 3600
    properties.ReceiveMaximum = RECEIVE_MAXIMUM
    return properties


def client(client_id: str) -> mqtt.Client:
    return mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5)


def client_3(client_id: str) -> mqtt.Client:
    return mqtt.Client(
        CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv311, clean_session=False
    )


def reserve(port: int, client_id: str, protocol: str = "5") -> None:
    """Subscribe once and leave, so that the broker keeps messages for this client."""
    subscribed = threading.Event()
    one = client(client_id) if protocol == "5" else client_3(client_id)
    one.on_subscribe = lambda *_: subscribed.set()
    if protocol == "5":
        one.connect("127.0.0.1", port, clean_start=False, properties=connect_properties())
    else:
        one.connect("127.0.0.1", port)
    one.subscribe(TOPIC, qos=1)
    one.loop_start()
    if not subscribed.wait(10):
        raise SystemExit("the broker did not confirm the subscription")
    one.disconnect()
    one.loop_stop()


def whole(i: int, values: list[float]) -> tuple[str, str]:
    """Topic and payload of a message that is a sample."""
    return "bench/a", json.dumps({"x": values, "y": i % 2})


def part(i: int, values: list[float]) -> tuple[str, str]:
    """Topic and payload of a message that brings some features of a sample."""
    first = PART * (i % TOPICS)
    return f"bench/{i % TOPICS}", json.dumps({f"f{n}": values[n] for n in range(first, first + PART)})


def fill(port: int, count: int, start: int, *, joined: bool = False) -> None:
    """Publish `count` different messages at QoS 1."""
    message = part if joined else whole
    rng = np.random.default_rng(start)
    one = client("bench-publisher")
    one.max_inflight_messages_set(1000)
    one.max_queued_messages_set(0)
    one.connect("127.0.0.1", port)
    one.loop_start()
    info = None
    for i in range(count):
        values = [round(v, 4) for v in rng.normal(size=FEATURES).tolist()]
        info = one.publish(*message(i, values), qos=1)
        if i % 1000 == 999:
            info.wait_for_publish(60)
    if info is not None:
        info.wait_for_publish(60)
    one.disconnect()
    one.loop_stop()


def drain_bare(port: int, count: int, protocol: str) -> None:
    """A consumer process: prints seconds from the first to the last message."""
    done = threading.Event()
    seen: list[float] = [0, 0.0]

    def on_message(_client: object, _data: object, _message: mqtt.MQTTMessage) -> None:
        if seen[0] == 0:
            seen[1] = time.perf_counter()
        seen[0] += 1
        if seen[0] == count:
            done.set()

    one = client("bench-bare-5") if protocol == "5" else client_3("bench-bare-3")
    one.on_message = on_message
    if protocol == "5":
        one.connect("127.0.0.1", port, clean_start=False, properties=connect_properties())
    else:
        one.connect("127.0.0.1", port)
    one.loop_start()
    if not done.wait(120):
        raise SystemExit(f"only {seen[0]} of {count} came")
    elapsed = time.perf_counter() - seen[1]
    time.sleep(0.2)  # the last acknowledgements
    one.disconnect()
    one.loop_stop()
    sys.stdout.write(f"{elapsed}\n")


def drain_ingest(
    port: int,
    count: int,
    mqtt_keys: dict[str, Any],
    storage_keys: dict[str, Any],
    window: int = RECEIVE_MAXIMUM,
) -> None:
    """A consumer process: session, codec, sample log and acknowledgement, nothing after it."""
    from edged.clock import SystemClock
    from edged.config import Config, DeviceConfig, MqttConfig, StorageConfig, StreamConfig
    from edged.daemon import SWITCH_INTERVAL
    from edged.device.events import Events
    from edged.device.ingest.committer import GroupCommitter
    from edged.device.ingest.decoder import SampleDecoder
    from edged.device.ingest.ingestor import Ingestor
    from edged.device.ingest.joiner import Joiner
    from edged.device.ingest.notices import IngestNotices
    from edged.domain.stream.admission import AdmissionControl
    from edged.host.systemd import Notifier, Watchdog
    from edged.mqtt.client.session import Session
    from edged.mqtt.codecs import sample_codec
    from edged.storage.samples.log import SampleLog

    sys.setswitchinterval(SWITCH_INTERVAL)
    stream = StreamConfig(topic=TOPIC, features=FEATURES, classes=2, label="y")
    done = threading.Event()
    began: list[float] = []
    stored = [0]
    expected = count

    class Downstream:
        """Serving and learning, as far as ingest sees them."""

        def submit(self, batch: Any, received: Any) -> None:
            if not began:
                began.append(float(received[0]))
            stored[0] += len(batch)

        def wake(self) -> None:
            if stored[0] >= expected:
                done.set()

    with tempfile.TemporaryDirectory() as folder:
        log = SampleLog.open(Path(folder) / "samples.db", stream.to_schema())
        config = Config(
            device=DeviceConfig(id="bench"), stream=stream, storage=StorageConfig(**storage_keys),
            mqtt=MqttConfig(host="127.0.0.1", port=port, **mqtt_keys).with_constants(receive_maximum=window),
        )  # fmt: skip
        session = Session(config.mqtt, client_id="bench-ingest")
        clock, downstream = SystemClock(), cast("Any", Downstream())
        notices = IngestNotices(stream.to_schema(), Events(), clock)
        admission = AdmissionControl(stream.admission_rules(), FEATURES)
        decoder = SampleDecoder(stream, sample_codec(stream), admission, clock, notices)
        watchdog = Watchdog(Notifier(), ("ingest",))
        committer = GroupCommitter(
            config, log, broker=session, serving=downstream, supervisor=downstream, decoder=decoder,
            notices=notices, clock=clock, watchdog=watchdog,
        )  # fmt: skip
        ingestor = Ingestor(
            config, log, decoder=decoder, joiner=Joiner(stream, admission, clock, notices),
            serving=downstream, committer=committer, clock=clock, watchdog=watchdog,
        )  # fmt: skip
        session.subscribe([TOPIC], 1, ingestor.receive)
        ingestor.start()
        session.start()
        if not done.wait(120):
            raise SystemExit(f"only {stored[0]} of {count} were stored")
        elapsed = time.monotonic() - began[0]
        time.sleep(0.2)  # the last acknowledgements
        ingestor.stop()
        session.stop()
        rows = log.counters().samples
        log.close()
    if rows != count:
        raise SystemExit(f"{rows} of {count} are in the log")
    sys.stdout.write(f"{elapsed}\n")


class Daemon:
    """The real daemon on a state directory that lasts over the rounds."""

    def __init__(self, port: int, folder: Path, *, joined: bool = False) -> None:
        self._port = port
        self._path = folder / "edged.yaml"
        values = {
            "device": {"id": "bench"},
            "mqtt": {"host": "127.0.0.1", "port": port, "client_id": "bench-daemon"},
            "stream": JOINED if joined else WHOLE,
            "training": {"enabled": False},
            "log": {"level": "error"},
        }  # fmt: skip
        self._path.write_text(yaml.safe_dump(values), encoding="utf-8")

    def drain(self, count: int) -> float:
        """Start it on a full queue; seconds between the first and the last prediction."""
        watcher = subprocess.Popen(
            ["mosquitto_sub", "-p", str(self._port), "-t", "edged/bench/predictions", "-C", str(count),
             "-F", "%U"],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        time.sleep(0.3)
        process = subprocess.Popen([sys.executable, "-m", "edged", "run", str(self._path)])
        try:
            out, _ = watcher.communicate(timeout=120)
        finally:
            process.terminate()
            process.wait(20)
        stamps = out.decode().split()
        if len(stamps) != count:
            raise SystemExit(f"{len(stamps)} of {count} predictions came")
        return float(stamps[-1]) - float(stamps[0])


def consumer(name: str, port: int, count: int, **keys: dict[str, Any]) -> float:
    done = subprocess.run(
        [sys.executable, __file__, "--consumer", name, "--port", str(port), "--messages", str(count),
         "--keys", json.dumps(keys)],
        stdout=subprocess.PIPE, check=True, timeout=180,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def measure_window(window: int, messages: int, rounds: int) -> list[dict[str, Any]]:
    """What the group commit costs where the broker keeps `window` messages in flight."""
    found = []
    for protocol in ("3.1.1", "5"):
        rates = dict[str, list[float]](waiting=[], no_delay=[])
        with embedded_broker("mosquitto", [f"max_inflight_messages {window}"]) as broker:
            reserve(broker.port, "bench-ingest", protocol)
            for number in range(rounds):
                for name, delay in (("waiting", {}), ("no_delay", {"commit_delay": 0})):
                    fill(broker.port, messages, number * messages)
                    # At MQTT 5 mosquitto goes by the client's word.
                    keys: dict[str, Any] = {
                        "mqtt_keys": {"protocol": protocol}, "storage_keys": delay, "window": window,
                    }  # fmt: skip
                    elapsed = consumer("ingest", broker.port, messages, **keys)
                    rates[name].append(messages / elapsed)
                sys.stderr.write(f"MQTT {protocol}: {rates}\n")
        pairs = zip(rates["waiting"], rates["no_delay"], strict=True)
        found.append(
            {
                "what": f"{window} in flight, MQTT {protocol}",
                "msgs_per_s": round(statistics.median(rates["waiting"])),
                "ratio_to_no_delay": round(statistics.median(one / other for one, other in pairs), 3),
            }
        )
    return found


def measure(messages: int, rounds: int, *, joined: bool = False) -> list[dict[str, Any]]:
    served = f"joined, {DAEMON}" if joined else DAEMON
    names = (BARE5, BARE3, served) if joined else (BARE5, BARE3, INGEST, served)
    rates: dict[str, list[float]] = {name: [] for name in names}
    with embedded_broker("mosquitto") as broker, tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(broker.port, Path(folder), joined=joined)
        for name in ("bench-bare-5", "bench-bare-3", "bench-daemon", *(() if joined else ("bench-ingest",))):
            reserve(broker.port, name)
        for number in range(rounds):
            fill(broker.port, messages, number * messages, joined=joined)
            rates[BARE5].append(messages / consumer("bare5", broker.port, messages))
            rates[BARE3].append(messages / consumer("bare3", broker.port, messages))
            if not joined:
                rates[INGEST].append(messages / consumer("ingest", broker.port, messages))
            rates[served].append(messages / daemon.drain(messages))
            sys.stderr.write(
                f"round {number + 1}: " + ", ".join(f"{n} {r[-1]:,.0f}/s" for n, r in rates.items()) + "\n"
            )
    fastest = [max(pair) for pair in zip(rates[BARE5], rates[BARE3], strict=True)]
    return [
        {
            "what": name,
            "msgs_per_s": round(statistics.median(found)),
            "ratio_to_bare_paho": round(
                statistics.median(rate / bare for rate, bare in zip(found, fastest, strict=True)), 3
            ),
        }
        for name, found in rates.items()
    ]


def line(row: Row) -> str:
    beside = "bare paho" if "ratio_to_bare_paho" in row else "no delay"
    ratio = row[f"ratio_to_{beside.replace(' ', '_')}"]
    return f"{row['what']:<32} {row['msgs_per_s']:>8,}/s   {ratio:.2f} of {beside}"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--consumer", choices=("bare5", "bare3", "ingest"), help=argparse.SUPPRESS)
    parser.add_argument("--window", type=int, help="messages that the broker keeps in flight")
    parser.add_argument("--joined", action="store_true", help="messages that bring a part of a sample each")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--keys", type=json.loads, default="{}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.consumer == "ingest":
        drain_ingest(args.port, args.messages, **({"mqtt_keys": {}, "storage_keys": {}} | args.keys))
    elif args.consumer:
        drain_bare(args.port, args.messages, args.consumer.removeprefix("bare"))
    elif args.window:
        finish("ingest", measure_window(args.window, args.messages, args.rounds), args, line)
    else:
        finish("ingest", measure(args.messages, args.rounds, joined=args.joined), args, line)


if __name__ == "__main__":
    main()
