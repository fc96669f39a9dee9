from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.config import StreamConfig
from edged.domain.stream.sample import Reading
from edged.errors import ConfigError, RejectedSampleError
from edged.mqtt.codecs.objects import ObjectCodec
from edged.mqtt.codecs.parsers import parse_any

REASONS = {
    "too_big", "not_json", "too_deep", "missing_field", "wrong_type", "shape", "not_finite",
    "key", "timestamp", "id", "label",
}  # fmt: skip


def codec(features: Any = 3, **stream: Any) -> ObjectCodec:
    return ObjectCodec(StreamConfig(features=features, **stream), parse_any)


def decode(message: Any, features: Any = 3, topic: str = "sensors/press-7/vib", **stream: Any) -> Reading:
    payload = message if isinstance(message, bytes) else json.dumps(message).encode()
    found = codec(features, **stream).decode(topic, payload)
    assert isinstance(found, Reading)
    return found


def reason(message: Any, features: Any = 3, topic: str = "sensors/press-7/vib", **stream: Any) -> str:
    with pytest.raises(RejectedSampleError) as caught:
        decode(message, features, topic, **stream)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value.reason


# Features.


def test_a_positional_array() -> None:
    assert decode({"x": [1, 2.5, -3e2]}) == Reading("sensors/press-7/vib", [1.0, 2.5, -300.0])
    assert all(type(value) is float for value in decode({"x": [1, 2, 3]}).values)


def test_named_fields_in_model_order_whatever_their_order_in_the_message() -> None:
    assert decode({"b": 2, "a": 1, "other": "ignored"}, ["a", "b"]).values == [1.0, 2.0]


def test_paths_into_objects_and_arrays() -> None:
    message = {"vib": {"x": 1, "y": 2}, "axes": [{"rms": 3}, {"rms": [4, 5]}]}
    assert decode(message, ["vib.y", "vib.x", "axes.0.rms", "axes.1.rms.1"]).values == [2, 1, 3, 5]


def test_a_key_with_dots_that_is_there_literally_counts_first() -> None:
    assert decode({"vib.x": 7, "vib": {"x": 1}}, ["vib.x"]).values == [7]


def test_a_path_chooses_an_object_of_an_array_by_a_field() -> None:
    tags = [{"name": "a.b", "value": 1}, {"name": "c", "error": 2014}, {"name": 7, "value": [2, 3]}, 4, None]
    message = {"node": "n", "tags": tags, "tags[name=c].value": 9}
    names = ["tags[name=a.b].value", "tags[name=7].value.1", "tags[name=c].value", "[node=n].tags.0.value"]
    assert decode(message, names).values == [1, 3, 9, 1]
    assert decode({"a[b": 1, "c[d=]": 2}, ["a[b", "c[d=]"]).values == [1, 2]


@pytest.mark.parametrize(
    "name",
    ["tags[name=c].value", "tags[name=b].value", "tags[value=1].name.x", "node[name=a].value", "tags[x=y]"],
)
def test_a_choice_that_finds_nothing_is_a_missing_field(name: str) -> None:
    message = {"node": "n", "tags": [{"name": "a", "value": 1}, {"name": "c", "error": 2014}, {"name": [[]]}]}
    assert reason(message, ["node", name]) == "wrong_type"  # of the field before
    assert reason(message, [name]) == "missing_field"


def test_a_number_is_a_name_inside_an_object() -> None:
    assert decode({"a": {"0": 5}}, ["a.0"]).values == [5]


def test_one_single_named_feature() -> None:
    assert decode({"temp": 21.5}, ["temp"]).values == [21.5]


@pytest.mark.parametrize(
    ("message", "features", "expected"),
    [
        ({}, 3, "missing_field"),
        ({"a": 1}, ["a", "b"], "missing_field"),
        ({"v": {"x": 1}}, ["v.x", "v.y"], "missing_field"),
        ({"v": 5}, ["v.x", "v.y"], "missing_field"),
        ({"v": [1]}, ["v.0", "v.1"], "missing_field"),
        ({"v": [1, 2]}, ["v.0", "v.-1"], "missing_field"),
        ({"x": [1, 2]}, 3, "shape"),
        ({"x": [1, 2, 3, 4]}, 3, "shape"),
        ({"x": []}, 3, "shape"),
        ({"x": 5}, 3, "wrong_type"),
        ({"x": None}, 3, "wrong_type"),
        ({"x": [1, "2", 3]}, 3, "wrong_type"),
        ({"x": [1, True, 3]}, 3, "wrong_type"),
        ({"x": [1, None, 3]}, 3, "wrong_type"),
        ({"x": [1, [2], 3]}, 3, "wrong_type"),
        ({"a": 1, "b": "2"}, ["a", "b"], "wrong_type"),
        ({"a": {"b": False}}, ["a.b"], "wrong_type"),
        ([1, 2, 3], 3, "wrong_type"),
        (b"null", 3, "wrong_type"),
        (b'"x"', 3, "wrong_type"),
    ],
)
def test_features_that_are_not_there_or_no_numbers(message: Any, features: Any, expected: str) -> None:
    assert reason(message, features) == expected


@pytest.mark.parametrize(
    ("message", "features", "problem"),
    [
        ({"temp": "hot", "vib": 3}, ["temp", "vib.x"], "field 'temp' is a string, not a number"),
        (
            {"temp": "hot", "vib": 3},
            ["vib.x", "temp"],
            "field 'vib.x' is missing: the message has temp, vib; did you mean vib?",
        ),
        ({"temp": "hot"}, ["temp", "vib"], "field 'temp' is a string, not a number"),
        ({"temp": "hot"}, ["vib", "temp"], "field 'vib' is missing: the message has temp"),
        ({"temp": 1e39, "vib": None}, ["temp", "vib"], "field 'temp' is no finite float32 number"),
        ({"x": [1, 1e39, "2"]}, 3, "number 1 is no finite float32 number"),
    ],
)
def test_of_several_problems_the_first_one_in_the_order_of_the_features_is_reported(
    message: Any, features: Any, problem: str
) -> None:
    with pytest.raises(RejectedSampleError) as rejected:
        decode(message, features)
    assert rejected.value.what == problem


@pytest.mark.parametrize(
    "token",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "1e39",
        "-3.5e38",
        "9" * 400,
        "9" * 5000,
        "1" + "0" * 39,
    ],
)
def test_numbers_that_float32_cannot_hold(token: str) -> None:
    assert reason(b'{"x": [1, 2.5, %s]}' % token.encode()) == "not_finite"
    assert reason(b'{"x": [1, 2, %s]}' % token.encode()) == "not_finite"


def test_the_largest_float32_is_taken() -> None:
    largest = float(np.finfo(np.float32).max)
    assert decode({"x": [largest, -largest, 0]}).values == [largest, -largest, 0]


# The message.


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b'{"x": [1,2,3]', b"hello", b'{"x": [1,2,3]} x', b'{"x": [1,2,3]}{}', b"\xff\xfe",
     b'{"x": 01}', b"{'x': 1}", b'{"x": [1,2,3],}', b"   ", b'\xef\xbb\xbf{"x": [1,2,3]}'],
)  # fmt: skip
def test_what_is_not_json(payload: bytes) -> None:
    assert reason(payload) == "not_json"


def test_space_around_the_message_is_allowed() -> None:
    assert decode(b' \r\n\t{"x": [1,2,3]} \n').values == [1, 2, 3]


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_refused_without_exhausting_the_stack(opening: bytes) -> None:
    payload = b'{"x": [1,2,3], "y": ' + opening * 200_000
    assert reason(payload, max_payload="4MiB") == "too_deep"


def test_size_is_checked_before_parsing() -> None:
    payload = b'{"x": [1,2,3]}'
    assert decode(payload + b" " * (64 - len(payload)), max_payload=64).values == [1, 2, 3]
    assert reason(b"\xff" * 65, max_payload=64) == "too_big"


# Several messages in one.


BATCH = {"metrics": [{"a": 1, "of": "k"}, {"b": 2}, {"a": 3, "of": "l"}]}


def several(message: Any, **stream: Any) -> list[Any]:
    found = codec(["a"], key="of", **stream).decode("t", json.dumps(message).encode())
    assert isinstance(found, list)
    return found


def test_an_array_of_objects_is_several_messages_and_those_of_other_sensors_are_passed_over() -> None:
    expected = [Reading("k", [1.0]), Reading("l", [3.0])]
    assert several(BATCH["metrics"]) == several(BATCH, records="metrics") == expected
    assert several([BATCH, {"metrics": [{"a": 4, "of": "m"}]}], records="metrics") == [
        *expected,
        Reading("m", [4.0]),
    ]
    assert several({"deep": [BATCH]}, records="deep.0.metrics") == expected
    assert several(BATCH["metrics"][0], records="metrics") == expected[:1], "one that is no batch"


@pytest.mark.parametrize(
    ("message", "records", "expected"),
    [
        ([], None, "shape"),
        ([{"a": 1, "of": "k"}] * 1001, None, "shape"),
        ([{"a": 1, "of": "k"}, 1], None, "wrong_type"),
        ([[{"a": 1, "of": "k"}]], None, "wrong_type"),
        ([{"b": 1}, {"c": 1}], None, "missing_field"),
        ([{"a": 1, "of": "k"}, {"a": "hot", "of": "k"}], None, "wrong_type"),
        ({"metrics": {"a": 1}}, "metrics", "wrong_type"),
        ({"metrics": []}, "metrics", "shape"),
        (3, "metrics", "wrong_type"),
    ],
)
def test_what_is_no_list_of_messages_is_refused_as_a_whole(
    message: Any, records: str | None, expected: str
) -> None:
    assert reason(message, ["a"], key="of", records=records) == expected


# Key.


def test_the_key_is_the_topic_one_of_its_levels_or_a_field() -> None:
    message = {"x": [1, 2, 3], "machine": {"name": "press-9", "no": 7}}
    assert decode(message).key == "sensors/press-7/vib"
    assert decode(message, key="topic:1").key == "press-7"
    assert decode(message, key="machine.name").key == "press-9"
    assert decode(message, key="machine.no").key == "7"


@pytest.mark.parametrize("value", [None, True, [], {}, "", "k" * 257, "\ud800", 10**400, math.inf])
def test_a_field_that_is_no_key(value: Any) -> None:
    assert reason({"x": [1, 2, 3], "k": value}, key="k") in {"key", "not_finite"}


def test_a_key_that_is_not_there() -> None:
    assert reason({"x": [1, 2, 3]}, key="k") == "key"
    assert reason({"x": [1, 2, 3]}, key="topic:3") == "key"
    assert reason({"x": [1, 2, 3]}, key="topic:1", topic="a//b") == "key"
    assert reason({"x": [1, 2, 3]}, topic="a" * 257) == "key"


@pytest.mark.parametrize("key", ["topic:", "topic:x", "topic:-1", "topic:²"])
def test_a_topic_level_that_is_no_number_is_a_configuration_error(key: str) -> None:
    with pytest.raises(ConfigError, match=r"topic:1"):
        codec(key=key)


# Time.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1_700_000_000, 1_700_000_000.0),
        (1_700_000_000.25, 1_700_000_000.25),
        (1_700_000_000_250, 1_700_000_000.25),
        (1_700_000_000_250_000, 1_700_000_000.25),
        (1_700_000_000_250_000_000, 1_700_000_000.25),
        (0, 0.0),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14t22:13:20z", 1_700_000_000.0),
        ("2023-11-14 22:13:20", 1_700_000_000.0),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000.0),
        ("2023-11-14T17:43:20-0430", 1_700_000_000.0),
        ("2023-11-14T23:13:20+01", 1_700_000_000.0),
        ("2023-11-14T22:13:20.25Z", 1_700_000_000.25),
        ("2023-11-14T22:13:20,123456789Z", 1_700_000_000.123456789),
        ("2023-11-14T22:13Z", 1_699_999_980.0),
        (None, None),
    ],
)
def test_times(value: Any, expected: float | None) -> None:
    assert decode({"x": [1, 2, 3], "ts": value}, ts="ts").ts == expected


@pytest.mark.parametrize(
    "value",
    [True, [], {}, -1, 1.7e20, 10**400, "", "1700000000", "yesterday", "2023-13-01T00:00:00Z", "2023-11-14",
     "2023-11-14T25:00:00Z", "1969-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "2023-11-14T22:13:20+99:00",
     "2023-11-14T22:13:20Z" + " " * 50],
)  # fmt: skip
def test_what_is_no_time(value: Any) -> None:
    assert reason({"x": [1, 2, 3], "ts": value}, ts="ts") == "timestamp"


def test_a_message_without_a_time_is_taken() -> None:
    assert decode({"x": [1, 2, 3]}, ts="when.exactly").ts is None


# Id and label.


def test_ids() -> None:
    assert decode({"x": [1, 2, 3], "id": "a-1"}, id="id").id == "a-1"
    assert decode({"x": [1, 2, 3], "id": 17}, id="id").id == "17"
    assert decode({"x": [1, 2, 3]}, id="id").id is None


@pytest.mark.parametrize("value", [True, 1.5, [], {}, "", "i" * 129, "\udfff"])
def test_what_is_no_id(value: Any) -> None:
    assert reason({"x": [1, 2, 3], "id": value}, id="id") == "id"


def test_labels() -> None:
    message = {"x": [1, 2, 3], "state": {"is": "worn"}}
    assert decode(message, classes=["ok", "worn"], label="state.is").label == 1.0
    assert decode({"x": [1, 2, 3]}, classes=["ok", "worn"], label="state.is").label is None
    assert decode({"x": [1, 2, 3], "y": [1, 2.5]}, targets=2, label="y").label == (1.0, 2.5)
    unknown = decode(message, classes=["ok", "broken"], label="state.is")
    assert (unknown.values, unknown.label) == ([1, 2, 3], None), "the sample is a good one"
    assert unknown.refused_label == "label 'worn' is none of the 2 classes ok, broken"
    assert decode({"x": [1, 2, 3], "y": "1"}, label="y").refused_label == "label of type str is no number"


# Laws.

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from("xabkit"), inner),
    max_leaves=20,
)
streams = st.sampled_from([
    {"features": 2},
    {"features": 1, "classes": 3, "label": "l", "key": "k", "ts": "t", "id": "i"},
    {"features": ["a"], "label": "b.0"},
    {"features": ["a", "b"], "key": "topic:1", "ts": "a", "id": "b"},
    {"features": ["a.b", "x.0"], "key": "x.1.k", "targets": 2, "label": "x"},
])  # fmt: skip


payloads = st.binary() | json_values.map(lambda value: json.dumps(value).encode())
messages = st.dictionaries(st.sampled_from("xktila"), json_values).map(
    lambda value: json.dumps(value).encode()
)


@given(streams, payloads | messages)
def test_anything_becomes_a_finite_reading_or_is_rejected_with_a_known_reason(
    stream: dict[str, Any], payload: bytes
) -> None:
    found = "none"
    try:
        decoded = codec(**stream).decode("a/b", payload)
    except RejectedSampleError as problem:
        found = problem.reason
    else:
        for reading in [decoded] if isinstance(decoded, Reading) else decoded:
            assert np.isfinite(np.array(reading.values, np.float32)).all()
            assert reading.key.encode()
    assert found in {"none", *REASONS}


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
def test_values_come_through_unchanged(values: list[float]) -> None:
    assert decode({"x": values}).values == values


def refuse_constant(token: str) -> float:
    raise ValueError(token)


@given(json_values.map(json.dumps), st.data())
def test_what_is_json_and_what_is_in_it_is_what_the_standard_library_says(
    text: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(text)))
    changed = text[:at] + data.draw(st.text('{}[]",:019.eE+-tn\\ \n\0é', max_size=2)) + text[at + 1 :]
    try:
        expected = repr(json.loads(changed, parse_constant=refuse_constant))
    except ValueError:
        expected = "refused"
    try:
        found = repr(parse_any(changed.encode(), 10_000))
    except RejectedSampleError:
        found = "refused"
    assert found == expected
