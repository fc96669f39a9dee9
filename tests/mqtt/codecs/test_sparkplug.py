"""Sparkplug B: births, what changed since, what is missing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from edged.clock import VirtualClock
from edged.domain.stream.sample import Reading
from edged.errors import RejectedSampleError, UnavailableError
from edged.lazy_imports import hidden
from edged.mqtt.codecs import sample_codec
from edged.mqtt.codecs.sparkplug import MOST_DEVICES, PATIENCE
from edged.mqtt.sparkplug.payload import BOOLEAN, INT16, INT64, REBIRTH, Metric, SparkplugTopic, parse_topic
from tests.formats import NODE, TS, birth, data, stream, wire


class Host:
    """The codec, its clock, and what it asks for."""

    def __init__(self, **more: Any) -> None:
        self.clock = VirtualClock(1000.0)
        self.asked: list[tuple[str, bytes]] = []
        self.codec = sample_codec(stream("sparkplug", **more), clock=self.clock, publisher=self)

    @property
    def connected(self) -> bool:
        return True

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        assert (qos, retain) == (0, False)
        self.asked.append((topic, payload))
        return True

    def take(self, kind: str, payload: bytes, device: str = "vib", node: str = NODE) -> list[Reading]:
        found = self.codec.decode(node.format(kind) + (f"/{device}" if device else ""), payload)
        assert isinstance(found, list)
        return found

    def refuse(self, kind: str, payload: bytes, device: str = "vib", node: str = NODE) -> str:
        with pytest.raises(RejectedSampleError) as caught:
            self.take(kind, payload, device, node)
        return caught.value.reason


@pytest.fixture
def host() -> Host:
    """With the births of a node and its device heard."""
    host = Host()
    assert host.take("NBIRTH", birth("NBIRTH", 0), "") == []
    assert host.take("DBIRTH", birth("DBIRTH", 1, temp=20.0, state="ok")) == []
    return host


XYZ = {"temp": 1.0, "vib.x": 2.0, "vib.y": 3.0}


def test_what_has_not_changed_is_as_it_was(host: Host) -> None:
    assert host.take("DDATA", data({"vib.x": 5.0}, 2)) == [Reading("m1", [20.0, 5.0, 0.0], TS, 0.0)]
    assert host.take("DDATA", data({"vib.y": 7.0, "state": "worn", "part": "a"}, 3)) == [
        Reading("m1", [20.0, 5.0, 7.0], TS, 1.0, "a")
    ]
    assert host.take("DDATA", data({"temp": 21.0}, 4, TS + 1)) == [
        Reading("m1", [21.0, 5.0, 7.0], TS + 1, 1.0)
    ]


def test_a_message_without_a_feature_is_no_reading(host: Host) -> None:
    assert host.take("DDATA", data({"state": "worn"}, 2)) == []
    assert host.take("DDATA", data({"other": 1.0}, 3)) == []
    assert host.take("DDATA", data({"temp": 1.0}, 4))[0].label == 1.0


def test_each_moment_in_a_message_is_a_reading(host: Host) -> None:
    metrics = [Metric("temp", float(i), None, TS + i) for i in (2, 0, 1)]
    payload = wire.write([m._replace(datatype=10) for m in metrics], ts=TS, seq=2)
    assert [(r.ts, r.values) for r in host.take("DDATA", payload)] == [
        (TS + i, [float(i), 0.0, 0.0]) for i in range(3)
    ]


def test_a_short_message_does_not_become_any_number_of_readings() -> None:
    host = Host(max_payload=1200)  # 100 readings of three numbers
    host.take("DBIRTH", birth())

    def moments(count: int) -> bytes:
        return wire.write([Metric("", 1, 4, i / 1000, 0) for i in range(1, count + 1)], ts=TS, seq=2)

    assert len(moments(101)) <= 1200
    assert len(host.take("DDATA", moments(100))) == 100
    assert host.refuse("DDATA", moments(101)) == "shape"


def test_historical_values_move_nothing(host: Host) -> None:
    past = data({**XYZ, "machine": "m1"}, 2, TS - 60, historical=True)
    assert host.take("DDATA", past) == [Reading("m1", [1.0, 2.0, 3.0], TS - 60)]
    assert host.take("DDATA", data({"vib.x": 9.0}, 3))[0].values == [20.0, 9.0, 0.0]
    assert host.refuse("DDATA", data({"temp": 1.0}, 4, TS - 50, historical=True)) == "missing_field"


NODE_VIB = "plant/press-7/vib"


def test_without_a_metric_for_it_the_key_says_who_it_was() -> None:
    host = Host(key=None)
    host.take("NBIRTH", birth("NBIRTH", 0), "")
    host.take("DBIRTH", birth())
    assert host.take("DDATA", data({"temp": 1.0}, 2))[0].key == NODE_VIB
    assert host.take("NDATA", data({"temp": 1.0}, 3), "")[0].key == "plant/press-7"
    host = Host(key="topic:3")
    host.take("DBIRTH", birth())
    assert host.take("DDATA", data({"temp": 1.0}, 2))[0].key == "press-7"


def test_numbers_have_the_sign_that_the_birth_says() -> None:
    host = Host(features=["a"], label=None, id=None, key=None, classes=None)
    host.take("DBIRTH", wire.write([Metric("a", 0, 1, None, INT16)], ts=TS, seq=0))
    payload = wire.write([Metric("", 0xFFFE, 1, None, 8)], ts=TS, seq=1)
    untyped = payload.replace(b"\x20\x08", b"")
    assert untyped != payload
    assert host.take("DDATA", untyped)[0].values == [-2.0]
    assert host.take("DDATA", payload)[0].values == [65534.0]


@pytest.mark.parametrize("value", [None, "text", True])
def test_values_that_are_no_numbers_are_refused(host: Host, value: Any) -> None:
    kind = BOOLEAN if value is True else 12
    payload = wire.write([Metric("temp", value, None, TS, kind)], ts=TS, seq=2)
    assert host.refuse("DDATA", payload) == "wrong_type"


def test_a_missing_birth_is_asked_for_but_not_at_every_message() -> None:
    host = Host()
    for _ in range(3):
        assert host.refuse("DDATA", data(XYZ, 5)) == "no_birth"
    ((topic, payload),) = host.asked
    assert topic == "spBv1.0/plant/NCMD/press-7"
    (metric,) = wire.read(payload).metrics
    assert (metric.name, metric.value, metric.datatype) == (REBIRTH, True, BOOLEAN)
    host.clock.step(PATIENCE)
    assert host.refuse("NDATA", data(XYZ, 6), "") == "no_birth"
    assert host.refuse("NDATA", data(XYZ, 6), "", "spBv1.0/plant/{}/other") == "no_birth"
    assert [t for t, _ in host.asked] == [topic, topic, "spBv1.0/plant/NCMD/other"]


def test_a_gap_is_asked_about_and_the_numbers_go_round(host: Host) -> None:
    for seq in [*range(2, 256), 0, 1, 2]:
        host.take("DDATA", data({"temp": 1.0}, seq))
    assert host.asked == []
    assert host.take("DDATA", data({"temp": 1.0}, 4)) != []
    host.take("DDATA", data({"temp": 1.0}, 9))
    assert len(host.asked) == 1


def test_a_death_ends_what_was_known(host: Host) -> None:
    host.take("DDEATH", wire.write([], ts=TS, seq=2))
    assert host.refuse("DDATA", data(XYZ, 3)) == "no_birth"
    assert host.take("NDATA", data(XYZ, 4), "") != []
    host.take("DBIRTH", birth(seq=5))
    host.take("NDEATH", wire.write([Metric("bdSeq", 1, None, None, INT64)], ts=TS, seq=None), "")
    assert host.take("DDATA", data(XYZ, 6)) != [], "that was the will of another session"
    host.take("NDEATH", wire.write([Metric("bdSeq", 0, None, None, INT64)], ts=TS, seq=None), "")
    assert host.refuse("NDATA", data(XYZ, 7), "") == host.refuse("DDATA", data(XYZ, 7)) == "no_birth"


def test_births_are_remembered_within_bounds() -> None:
    host = Host()
    for number in range(MOST_DEVICES + 10):
        host.take("DBIRTH", birth(), f"d{number}")
    assert host.refuse("DDATA", data(XYZ, 2), "d9") == "no_birth"
    assert host.take("DDATA", data(XYZ, 2), "d10") != []
    for number in range(MOST_DEVICES + 10):
        host.refuse("DDATA", data(XYZ, 2), "d", f"spBv1.0/plant/{{}}/n{number}")
    codec: Any = host.codec
    assert len(codec._births) == len(codec._nodes) == MOST_DEVICES  # noqa: SLF001


@pytest.mark.parametrize("topic", ["spBv1.0/plant/NCMD/press-7", "spBv1.0/plant/DCMD/press-7/vib",
                                   "spBv1.0/STATE/scada"])  # fmt: skip
def test_commands_and_states_are_passed_over(topic: str) -> None:
    assert Host().codec.decode(topic, b'{"online": true}') == []


@pytest.mark.parametrize(
    "topic",
    ["sensors/a", "spBv1.0", "spBv1.0/plant/DDATA", "spBv1.0/plant/NDATA/n/d", "spBv1.0/plant/DDATA/n",
     "spBv1.0/plant/XDATA/n", "spBv1.0/plant/DDATA/n/d/e", "spBv1.0//NDATA/n"],
)  # fmt: skip
def test_other_topics_are_refused(topic: str) -> None:
    with pytest.raises(RejectedSampleError, match="topic"):
        Host().codec.decode(topic, data(XYZ, 1))


@pytest.mark.parametrize(
    "payload", [b"\x0b" * 5000, b"\x12\xff\xff\xff\xff\x07", b"\x12\x04\x0a\x02\xff\xff", b"{}"]
)
def test_what_is_no_payload(host: Host, payload: bytes) -> None:
    assert host.refuse("DDATA", payload) == "not_sparkplug"


# Written with the published definition, compiled by protoc; with properties, a data set, a template, a file.
PUBLISHED = bytes.fromhex(
    "08fad195ffbc31122c0a0474656d70100418fad195ffbc31200942034201644a0f0a04756e69741207080c420343656c"
    "650000a441120c0a057669622e78200150fe01120f0a057669622e79200350fdffffff0f12110a057374617465200c30"
    "017a04776f726e12190a057461626c6520108a010d0801120163180322040a02080512230a056d6f746f722013920117"
    "0a013112120a05696e6e6572200a69000000000000f03f120d0a0466696c6520128201020001120d1009200d280158fa"
    "d195ffbc31120a0a04676f6e65200a380118072201752a0162"
)


def test_the_published_definition_is_read(host: Host) -> None:
    assert wire.read(PUBLISHED).metrics == [
        Metric("temp", 20.5, 4, TS, 9),
        Metric("vib.x", -2, datatype=1),
        Metric("vib.y", -3, datatype=3),
        Metric("state", "worn", datatype=12),
        Metric("table", datatype=16),
        Metric("motor", datatype=19),
        Metric("file", b"\x00\x01", datatype=18),
        Metric("", 1_700_000_000_250, 9, datatype=13, historical=True),
        Metric("gone", datatype=10),
    ]
    assert host.take("DDATA", PUBLISHED) == [Reading("m1", [20.5, -2.0, -3.0], TS, 1.0)]


def test_topics() -> None:
    for topic in (SparkplugTopic("g", "NDATA", "n"), SparkplugTopic("g", "DDATA", "n", "d")):
        assert parse_topic(topic.name) == topic


def test_protobuf_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "google.protobuf")
    with hidden("google.protobuf"), pytest.raises(UnavailableError, match=r"edged\[sparkplug\]"):
        Host()
