"""Every format ends in the same readings, by the same rules."""

from __future__ import annotations

import json
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cbor2
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.clock import VirtualClock
from edged.config import StreamConfig
from edged.domain.stream.sample import LabelReading, Reading
from edged.errors import RejectedSampleError, UnavailableError
from edged.lazy_imports import hidden
from edged.mqtt.codecs import label_codec, sample_codec
from tests.formats import SENML, STREAMS, TS, introductions, senml, stream, topic, written

ARRAYS = ["float32", "float16", "int16"]
WITH_FIELDS = [name for name in STREAMS if name not in ARRAYS]


def reader(name: str, **more: Any) -> Callable[[bytes], list[Reading]]:
    """From payloads to readings, after whatever must be heard before."""
    codec = sample_codec(stream(name, **more))
    for place, payload in introductions(name):
        assert codec.decode(place, payload) == []

    def read(payload: bytes) -> list[Reading]:
        found = codec.decode(topic(name), payload)
        return [found] if isinstance(found, Reading) else found

    return read


def _strictly(readings: list[Reading]) -> None:
    """Raise also for a label that was refused alone."""
    for reading in readings:
        if reading.refused_label is not None:
            raise RejectedSampleError("label", reading.refused_label)


def reason(name: str, payload: bytes, **more: Any) -> str:
    read = reader(name, **more)
    with pytest.raises(RejectedSampleError) as caught:
        _strictly(read(payload))
    assert len(str(caught.value).splitlines()) == 1
    return caught.value.reason


def refused(**stream: Any) -> str:
    with pytest.raises(ValueError, match=r"codec|column") as caught:
        StreamConfig(**stream)
    return str(caught.value)


# One law for all.


@pytest.mark.parametrize("name", WITH_FIELDS)
@settings(deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
    state=st.sampled_from(["ok", "worn", None]),
    no=st.sampled_from(["a-1", "7", None]),
)
def test_a_message_is_the_same_reading_in_every_format(
    name: str, values: list[float], state: str | None, no: str | None
) -> None:
    label = None if state is None else float(state == "worn")
    expected = [Reading("m1", values, TS, label, no)]
    assert reader(name)(written(name, values, state, no)) == expected


@pytest.mark.parametrize("name", ARRAYS)
@settings(deadline=None)
@given(values=st.lists(st.integers(-2048, 2048), min_size=3, max_size=3))
def test_arrays_carry_what_their_type_can_hold(name: str, values: list[float]) -> None:
    (reading,) = reader(name)(written(name, values))
    assert (reading.key, list(reading.values), reading.ts) == ("press-7", values, None)


@pytest.mark.parametrize("name", STREAMS)
def test_sizes_are_checked_before_anything_else(name: str) -> None:
    assert reason(name, b"\xff" * 65_537) == "too_big"


@pytest.mark.parametrize("name", ["cbor", "senml-cbor", "sparkplug", "float32", "float16", "csv"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused_wherever_it_stands(name: str, value: float) -> None:
    for at in range(3):
        values = [1.0, 2.0, 3.0]
        values[at] = value
        assert reason(name, written(name, values)) == "not_finite"


@pytest.mark.parametrize(
    "name", ["json", "cbor", "msgpack", "influx", "senml", "senml-cbor", "sparkplug", "csv"]
)
def test_numbers_that_float32_cannot_hold_are_refused(name: str) -> None:
    assert reason(name, written(name, [1.0, 1e39, 2.0])) == "not_finite"


REASONS = {
    "too_big", "too_deep", "missing_field", "wrong_type", "shape", "not_finite", "key", "timestamp", "id",
    "label", "not_json", "not_cbor", "not_msgpack", "not_line_protocol", "not_senml", "not_csv",
    "not_sparkplug", "no_birth",
}  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from("xab"), inner),
    max_leaves=12,
)
messages = st.dictionaries(
    st.sampled_from(["machine", "when", "temp", "vib.x", "vib", "state", "part"]), values
)
records = st.lists(
    st.dictionaries(st.sampled_from([*SENML]), values | st.sampled_from(["temp", "x", 1])), max_size=4
)


def known(name: str, payload: bytes) -> None:
    """It becomes finite readings or is refused with a known reason."""
    readings, found = [], "none"
    try:
        readings = reader(name)(payload)
    except RejectedSampleError as problem:
        found = problem.reason
    for reading in readings:
        assert np.isfinite(np.array(reading.values, np.float32)).all()
        assert reading.key.encode()
    assert found in {"none", *REASONS}


@given(messages)
@settings(max_examples=50, deadline=None)
def test_any_fields_become_finite_readings_or_are_refused(message: dict[str, Any]) -> None:
    known("cbor", cbor2.dumps(message))
    known("msgpack", msgpack.packb(message))


@given(records)
@settings(max_examples=50, deadline=None)
def test_any_records_become_finite_readings_or_are_refused(found: list[dict[str, Any]]) -> None:
    known("senml-cbor", senml(found, cbor=True))
    known("senml", json.dumps(found, default=str).encode())


@pytest.mark.parametrize("name", STREAMS)
@settings(deadline=None)
@given(payload=st.binary(max_size=200))
def test_any_bytes_become_finite_readings_or_are_refused(name: str, payload: bytes) -> None:
    known(name, payload)


# CBOR and MessagePack.

MESSAGE = {"machine": "m1", "when": TS, "temp": 1, "vib": {"x": 2.5, "y": -3}}
EXPECTED = [Reading("m1", [1.0, 2.5, -3.0], TS)]


def test_paths_lead_through_maps() -> None:
    assert reader("cbor")(cbor2.dumps(MESSAGE)) == EXPECTED
    assert reader("msgpack")(msgpack.packb(MESSAGE)) == EXPECTED


@pytest.mark.parametrize(("tag", "when"), [(0, "2023-11-14T22:13:20.25Z"), (1, TS)])
def test_times_of_cbor_are_taken(tag: int, when: Any) -> None:
    payload = cbor2.dumps({**MESSAGE, "when": cbor2.CBORTag(tag, when)})
    assert reader("cbor")(payload) == EXPECTED
    assert reader("cbor")(b"\xd9\xd9\xf7" + payload) == EXPECTED


def test_times_of_messagepack_are_taken() -> None:
    when = msgpack.Timestamp(1_700_000_000, 250_000_000)
    assert reader("msgpack")(msgpack.packb({**MESSAGE, "when": when})) == EXPECTED


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", "not_cbor"),
        (b"\xa1\x61x", "not_cbor"),
        (b"\xff", "not_cbor"),
        (cbor2.dumps(MESSAGE) + b"\x00", "not_cbor"),
        (cbor2.dumps(MESSAGE) * 2, "not_cbor"),
        (b"\x62\xff\xff", "not_cbor"),
        (b"\xa1\x01\x02", "not_cbor"),
        (cbor2.dumps([1]), "wrong_type"),
        (cbor2.dumps({**MESSAGE, "temp": "1"}), "wrong_type"),
        (cbor2.dumps({**MESSAGE, "temp": True}), "wrong_type"),
        (cbor2.dumps({**MESSAGE, "temp": None}), "wrong_type"),
        (cbor2.dumps({**MESSAGE, "temp": b"1"}), "wrong_type"),
        (cbor2.dumps({**MESSAGE, "temp": 2**70}), "wrong_type"),
        (cbor2.dumps({**MESSAGE, "temp": cbor2.CBORTag(35, "(a+)+$")}), "wrong_type"),
        (cbor2.dumps({**MESSAGE, "temp": cbor2.CBORTag(7777, 1)}), "wrong_type"),
        (cbor2.dumps({**MESSAGE, "machine": float("nan")}), "key"),
        (cbor2.dumps({**MESSAGE, "machine": b"m1"}), "key"),
        (cbor2.dumps({**MESSAGE, "when": float("nan")}), "timestamp"),
        (cbor2.dumps({**MESSAGE, "part": 1.5}), "id"),
        (cbor2.dumps({**MESSAGE, "state": float("nan")}), "label"),
        (cbor2.dumps({"machine": "m1"}), "missing_field"),
    ],
)
def test_what_is_refused_of_cbor(payload: bytes, expected: str) -> None:
    assert reason("cbor", payload) == expected


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", "not_msgpack"),
        (b"\x81\xa1x", "not_msgpack"),
        (b"\xc1", "not_msgpack"),
        (msgpack.packb(MESSAGE) + b"\x00", "not_msgpack"),
        (b"\xa2\xff\xff", "not_msgpack"),
        (b"\x81\x01\x02", "not_msgpack"),
        (msgpack.packb([1]), "wrong_type"),
        (msgpack.packb({**MESSAGE, "temp": "1"}), "wrong_type"),
        (msgpack.packb({**MESSAGE, "temp": msgpack.ExtType(7, b"1")}), "wrong_type"),
        (msgpack.packb({**MESSAGE, "when": float("inf")}), "timestamp"),
        (msgpack.packb({"machine": "m1"}), "missing_field"),
    ],
)
def test_what_is_refused_of_messagepack(payload: bytes, expected: str) -> None:
    assert reason("msgpack", payload) == expected


BOMBS = {
    "cbor": [b"\x81", b"\xa1\x61a", b"\xc1", b"\x9f", b"\xbf\x61a"],
    "msgpack": [b"\x91", b"\x81\xa1a"],
    "senml-cbor": [b"\x81", b"\x81\xa1\x61a"],
    "senml": [b"[", b'[{"n":'],
}


@pytest.mark.parametrize(("name", "opening"), [(name, o) for name in BOMBS for o in BOMBS[name]])
def test_deep_nesting_is_refused_without_exhausting_the_stack(name: str, opening: bytes) -> None:
    assert reason(name, opening * 500_000, max_payload="4MiB") == "too_deep"


ANNOUNCED_BYTES = 0x7FFF_FFFF


@contextmanager
def address_space_limit(further: int) -> Iterator[None]:
    """Let this process map so many further bytes, and no more."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + further, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


HEADERS = {
    "cbor": (0x5B, 0x7B, 0x9B, 0xBB),
    "senml-cbor": (0x9B,),
    "msgpack": (0xC6, 0xC9, 0xDB, 0xDD, 0xDF),
}


@pytest.mark.parametrize(("name", "kind"), [(name, k) for name in HEADERS for k in HEADERS[name]])
def test_a_length_that_is_only_announced_takes_no_memory(name: str, kind: int) -> None:
    size = struct.pack(">I", ANNOUNCED_BYTES) if name == "msgpack" else struct.pack(">Q", 1 << 62)
    with address_space_limit(ANNOUNCED_BYTES // 4):
        assert reason(name, bytes([kind]) + size + b"\x00" * 100) in {"not_cbor", "not_msgpack"}


def test_the_limit_of_the_address_space_is_one() -> None:
    with address_space_limit(ANNOUNCED_BYTES // 4), pytest.raises(MemoryError):
        bytearray(ANNOUNCED_BYTES)


@pytest.mark.parametrize(("name", "package"), [("cbor", "cbor2"), ("msgpack", "msgpack")])
def test_a_package_that_is_missing_is_named_with_its_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, package)
    with hidden(package), pytest.raises(UnavailableError, match=r"edged\[codecs\]") as caught:
        sample_codec(stream(name))
    assert package in caught.value.what


# SenML.


def pack(name: str, *records: dict[str, Any], **more: Any) -> list[Reading]:
    return reader(name, **more)(senml(list(records), cbor=name == "senml-cbor"))


FORMS = pytest.mark.parametrize("name", ["senml", "senml-cbor"])
AB: dict[str, Any] = {"features": ["a", "b"], "classes": None, "label": None, "id": None, "key": "bn"}


@FORMS
def test_records_are_resolved_and_put_together_by_time(name: str) -> None:
    readings = pack(
        name,
        {"bn": "m/", "bt": TS, "bv": 10, "n": "a", "v": 1, "u": "Cel"},
        {"n": "b", "v": 2, "t": 5},
        {"n": "a", "v": 3, "t": 5},
        {"n": "b", "v": 4},
        **AB,
    )
    assert readings == [Reading("m/", [11.0, 14.0], TS), Reading("m/", [13.0, 12.0], TS + 5)]


@FORMS
def test_the_base_name_tells_devices_apart(name: str) -> None:
    records = [{"bn": f"m{i}/", "bt": TS, "n": n, "v": i} for i in (1, 2) for n in "ab"]
    assert pack(name, *records, **AB) == [Reading("m1/", [1.0, 1.0], TS), Reading("m2/", [2.0, 2.0], TS)]
    features = {**AB, "features": ["m1/a", "m1/b"]}
    assert pack(name, *records[:2], **features) == [Reading("m1/", [1.0, 1.0], TS)]


@FORMS
def test_sums_and_their_base(name: str) -> None:
    assert pack(
        name,
        {"bn": "m", "bs": 100, "bt": TS},
        {"n": "a", "v": 1, "s": 5},
        **{**AB, "features": ["a", "a#sum"]},
    ) == [Reading("m", [1.0, 105.0], TS)]


@FORMS
def test_small_times_are_relative_to_now_and_none_is_now(name: str) -> None:
    codec = sample_codec(stream(name, **AB), clock=VirtualClock(1000.0))
    records = [{"bn": "m", "bt": -5, "n": n, "v": 1} for n in "ab"]
    assert codec.decode("t", senml(records, cbor=name == "senml-cbor")) == [Reading("m", [1.0, 1.0], 995.0)]
    assert pack(name, {"bn": "m", "n": "a", "v": 1}, {"n": "b", "v": 2}, **AB) == [Reading("m", [1.0, 2.0])]


@FORMS
@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"n": "a"}, "not_senml"),
        ({"n": "a", "v": 1, "vs": "x"}, "not_senml"),
        ({"n": "a b", "v": 1}, "not_senml"),
        ({"n": "-a", "v": 1}, "not_senml"),
        ({"v": 1}, "not_senml"),
        ({"n": 7, "v": 1}, "not_senml"),
        ({"bver": 11, "n": "a", "v": 1}, "not_senml"),
        ({"bver": "10", "n": "a", "v": 1}, "not_senml"),
        ({"n": "a", "v": 1, "geo_": 1}, "not_senml"),
        ({"n": "a", "v": "1"}, "wrong_type"),
        ({"n": "a", "v": True}, "wrong_type"),
        ({"n": "a", "vb": True}, "wrong_type"),
        ({"n": "a", "v": 1, "t": "x"}, "wrong_type"),
        ({"bt": "x", "n": "a", "v": 1}, "wrong_type"),
        ({"n": "c", "v": 1}, "missing_field"),
        ({"n": "a", "v": 1, "t": 1e20}, "timestamp"),
    ],
)
def test_what_is_refused_of_senml(name: str, record: dict[str, Any], expected: str) -> None:
    payload = senml([record], cbor=name == "senml-cbor")
    assert reason(name, payload, **{**AB, "features": ["a"], "key": None}) == expected


def test_a_pack_is_an_array_of_records() -> None:
    assert reason("senml", b'{"n": "a", "v": 1}') == "wrong_type"
    assert reason("senml", b"[1]") == reason("senml", b"\x81\x01") == "wrong_type"
    assert reason("senml", b"[") == "not_json"
    records = [{"bn": "m", "n": "a", "v": 1, "t": TS + i} for i in range(1001)]
    assert reason("senml", senml(records, cbor=False), **{**AB, "features": ["a"]}) == "shape"


def test_cbor_packs_without_its_package_are_refused_and_json_packs_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "cbor2")
    with hidden("cbor2"):
        assert reason("senml", written("senml-cbor", [1, 2, 3])) == "not_cbor"
        assert len(reader("senml")(written("senml", [1, 2, 3]))) == 1


# Raw arrays.


@pytest.mark.parametrize("name", ARRAYS)
def test_the_shape_is_declared(name: str) -> None:
    payload = written(name, [1, 2, 3])
    assert reason(name, payload[:-1]) == reason(name, b"") == reason(name, payload * 2) == "shape"


def test_windows_take_their_rows_in_one_message() -> None:
    read = reader("float32", window={"size": 4})
    payload = np.arange(12, dtype="<f4").tobytes()
    assert [list(r.values) for r in read(payload)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert len(read(payload[:24])) == 2
    assert reason("float32", payload + payload[:12], window={"size": 4}) == "shape"
    assert reason("float32", payload, window={"size": 4, "rate": 10}) == "shape"


# CSV.


def csv(payload: bytes, **stream: Any) -> list[Reading]:
    found = sample_codec(StreamConfig(**{"codec": "csv", "features": ["a", "b"], **stream})).decode(
        "t", payload
    )
    return [found] if isinstance(found, Reading) else found


def test_lines_of_csv() -> None:
    assert csv(b"1,2.5e0\n") == [Reading("t", [1.0, 2.5])]
    assert csv(b"1,2\r\n3,4\r\n") == [Reading("t", [1.0, 2.0]), Reading("t", [3.0, 4.0])]
    assert csv(b" 1;-2 ", delimiter=";") == csv(b"1\t-2", delimiter="tab") == [Reading("t", [1.0, -2.0])]


def test_columns_of_csv() -> None:
    columns = ["when", "x", "y", "who"]
    stream = {"features": 2, "columns": columns, "ts": "when", "label": "y", "targets": 2, "key": "who"}
    payload = b'2023-11-14T22:13:20Z,1,2,3,4,"0,7"'
    assert csv(payload, **stream) == [Reading("0,7", [1.0, 2.0], 1.7e9, (3.0, 4.0))]
    assert csv(b",1,2,3,4,007", **stream) == [Reading("007", [1.0, 2.0], None, (3.0, 4.0))]
    classes = {"columns": ["a", "b", "y"], "label": "y", "classes": ["007", "8"]}
    assert [csv(f"1,2,{cell}".encode(), **classes)[0].label for cell in ("007", "8", "")] == [0.0, 1.0, None]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", "shape"),
        (b"1", "shape"),
        (b"1,2,3", "shape"),
        (b"1,2\n\n", "shape"),
        (b"1,2\n" * 1001, "shape"),
        (b"1,", "wrong_type"),
        (b"a,b", "wrong_type"),
        (b"1,1_000", "wrong_type"),
        ("1,\u0661".encode(), "wrong_type"),
        (b"1,nan", "not_finite"),
        (b"1,-inf", "not_finite"),
        (b"1,1e999", "not_finite"),
        (b"1,1e39", "not_finite"),
        (b'1,"2', "not_csv"),
        (b'1,"2"3', "not_csv"),
        (b"1,\xff", "not_csv"),
    ],
)
def test_what_is_refused_of_csv(payload: bytes, expected: str) -> None:
    with pytest.raises(RejectedSampleError) as caught:
        csv(payload)
    assert caught.value.reason == expected


# Labels that come by themselves.


@pytest.mark.parametrize("name", WITH_FIELDS)
def test_labels_by_themselves_are_in_the_same_format_where_it_has_fields(name: str) -> None:
    writers: dict[str, Callable[[Any], Any]] = {"cbor": cbor2.dumps, "msgpack": msgpack.packb}
    message = {"id": "a-1", "state": "worn"}
    payload = writers[name](message) if name in writers else b'{"id": "a-1", "state": "worn"}'
    codec = label_codec(stream(name, label={"topic": "labels/#", "path": "state", "join": "id"}))
    assert codec.decode("labels/m1", payload) == LabelReading(1.0, id="a-1")
    with pytest.raises(RejectedSampleError):
        codec.decode("labels/m1", payload[:-2])


# Configuration.


@pytest.mark.parametrize("codec", ARRAYS)
@pytest.mark.parametrize("name", ["label", "ts", "id", "key"])
def test_arrays_have_no_fields(codec: str, name: str) -> None:
    assert name in refused(features=2, codec=codec, **{name: "x.y"})


def test_settings_that_mean_nothing_with_a_format_are_refused() -> None:
    assert "byte_order" in refused(features=2, byte_order="big")
    assert "columns" in refused(features=2, columns=["x"])
    assert "columns" in refused(features=2, delimiter=";")
    assert "features" in refused(features=2, codec="senml")
    assert "features" in refused(features=2, codec="sparkplug")
    assert "spBv1.0" in refused(features=["a"], codec="sparkplug")
    assert "ts" in refused(features=["a"], codec="senml", ts="t")
    assert "records" in refused(features=["a"], codec="csv", records="metrics")
    assert "records" in refused(features=["a"], codec="influx", records="metrics")
    assert "not a column" in refused(features=["a"], codec="csv", ts="t")
    assert "not a column" in refused(features=["a", "b"], codec="csv", columns=["a"])
