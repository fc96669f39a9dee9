from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.config import StreamConfig
from edged.domain.stream.sample import LabelReading
from edged.errors import RejectedSampleError
from edged.mqtt.codecs import label_codec


def decode(message: Any, topic: str = "labels/press-7", *, join: str = "id", **stream: Any) -> LabelReading:
    label = {"topic": "labels/#", "join": join}
    config = StreamConfig(**{"features": 2, "classes": ["ok", "worn"], "label": label, **stream})
    payload = message if isinstance(message, bytes) else json.dumps(message).encode()
    found = label_codec(config).decode(topic, payload)
    assert isinstance(found, LabelReading)
    return found


def reason(message: Any, **stream: Any) -> str:
    with pytest.raises(RejectedSampleError) as caught:
        decode(message, **stream)
    return caught.value.reason


def test_a_label_by_sample_id() -> None:
    assert decode({"id": "a-1", "label": "worn"}) == LabelReading(1.0, id="a-1")
    assert decode({"id": 5, "label": 0}) == LabelReading(0.0, id="5")


def test_a_label_by_key_and_time() -> None:
    message = {"key": "press-7", "ts": 1_700_000_000, "label": 1}
    assert decode(message, join="key_time") == LabelReading(1.0, key="press-7", ts=1_700_000_000.0)


def test_by_key_and_time_the_labels_own_id_does_not_count() -> None:
    message = {"id": "label-9", "key": "press-7", "ts": 1_700_000_000, "label": 1}
    assert decode(message, join="key_time").id is None


def test_an_id_alone_is_enough_in_either_way_of_joining() -> None:
    assert decode({"id": "a-1", "label": 1}, join="key_time") == LabelReading(1.0, id="a-1")


def test_the_key_may_come_from_the_topic() -> None:
    reading = decode({"ts": 5, "label": 1}, join="key_time", key="topic:1")
    assert reading == LabelReading(1.0, key="press-7", ts=5.0)


def test_the_label_field_is_called_as_in_the_samples() -> None:
    assert decode({"id": "a", "state": "ok"}, label="machine.state").label == 0.0


def test_regression_targets() -> None:
    assert decode({"id": "a", "label": [1, 2]}, classes=None, targets=2).label == (1.0, 2.0)


@pytest.mark.parametrize(
    ("message", "join", "expected"),
    [
        ({"label": 1}, "id", "missing_field"),
        ({"id": "a"}, "id", "missing_field"),
        ({"id": "a", "label": None}, "id", "missing_field"),
        ({"key": "a", "ts": 5, "label": 1}, "id", "missing_field"),
        ({"key": "a", "label": 1}, "key_time", "missing_field"),
        ({"ts": 5, "label": 1}, "key_time", "missing_field"),
        ({"id": "a", "label": "gone"}, "id", "label"),
        ({"id": [], "label": 1}, "id", "id"),
        ({"key": [], "ts": 5, "label": 1}, "key_time", "key"),
        ({"key": "a", "ts": "soon", "label": 1}, "key_time", "timestamp"),
        (b"[", "id", "not_json"),
        (b"5", "id", "wrong_type"),
        (b"x" * 70_000, "id", "too_big"),
    ],
)
def test_what_is_no_label(message: Any, join: str, expected: str) -> None:
    assert reason(message, join=join) == expected


@given(
    st.dictionaries(
        st.sampled_from(["id", "key", "ts", "label"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.lists(st.floats(), max_size=3),
    ),
    st.sampled_from(["id", "key_time"]),
    st.sampled_from([{"classes": 3}, {"classes": None}, {"classes": None, "targets": 2}]),
)
def test_fields_of_any_type_never_escape(message: dict[str, Any], join: str, task: dict[str, Any]) -> None:
    try:
        reading = decode(message, join=join, **task)
    except RejectedSampleError:
        return
    assert reading.id is not None or (reading.key is not None and reading.ts is not None)
