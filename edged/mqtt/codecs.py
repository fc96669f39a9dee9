"""From payloads to readings and labels. What cannot become one is refused with a stable reason.

Reasons: `too_big`, `not_json`, `too_deep`, `missing_field`, `wrong_type`, `shape`, `not_finite`, `key`,
`timestamp`, `id`, `label`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edged.domain.sample import LabelReading, Reading
from edged.errors import RejectedSampleError
from edged.mqtt.fields import (
    MISSING,
    Getter,
    features_of,
    field,
    parse_id,
    parse_key,
    parse_time,
    topic_level,
)

if TYPE_CHECKING:
    from edged.config import StreamConfig

POSITIONAL = "x"
_SPACE = " \t\r\n"

KeyOf = Callable[[str, Any], str]


class JsonCodec:
    """Decodes sample messages of one stream.

    >>> from edged.config import StreamConfig
    >>> JsonCodec(StreamConfig(features=["a", "b.c"])).decode("t", b'{"a": 1, "b": {"c": 2.5}}').values
    [1.0, 2.5]
    """

    def __init__(self, stream: StreamConfig) -> None:
        self._largest = stream.max_payload
        self._features = features_of(stream.names or POSITIONAL, stream.width)
        self._key = _key_of(stream.key)
        self._ts = None if stream.ts is None else field(stream.ts)
        self._id = None if stream.id is None else field(stream.id)
        self._label = None if stream.label is None else field(stream.label)
        self._plain = self._ts is None and self._id is None and self._label is None
        self._parse_label = stream.to_schema().parse_label

    def decode(self, topic: str, payload: bytes) -> Reading:
        """The reading in a message.

        A missing or null time, id or label is no error: the reading has none.

        Raises
        ------
        RejectedSampleError
            With its reason; the message can never become a sample.
        """
        message = parse(payload, self._largest)
        values = self._features(message)
        key = self._key(topic, message)
        if self._plain:
            return Reading(key, values)
        label = _optional(self._label, message)
        return Reading(
            key,
            values,
            _time_at(self._ts, message),
            None if label is None else self._parse_label(label),
            _id_at(self._id, message),
        )


class LabelCodec:
    """Decodes messages on `stream.label_topic`: `{"id", "label"}` or `{"key", "ts", "label"}`.

    The label's field is called as in `stream.label` (the last part of the path), else `label`. With
    `join: key_time` the key is taken from the message, or as for samples when that has none.
    """

    def __init__(self, stream: StreamConfig) -> None:
        self._largest = stream.max_payload
        self._name = "label" if stream.label is None else stream.label.rpartition(".")[2]
        self._by_time = stream.join == "key_time"
        from_topic = stream.key is not None and stream.key.startswith("topic:")
        self._topic_key = _key_of(stream.key) if from_topic else None
        self._label, self._id, self._ts = field(self._name), field("id"), field("ts")
        self._key = field("key")
        self._parse_label = stream.to_schema().parse_label

    def decode(self, topic: str, payload: bytes) -> LabelReading:
        """The label in a message.

        Raises
        ------
        RejectedSampleError
            With its reason; the message can never become a label.
        """
        message = parse(payload, self._largest)
        value = _optional(self._label, message)
        if value is None:
            raise _missing(self._name)
        label = self._parse_label(value)
        key, ts = self._key_at(topic, message), _time_at(self._ts, message)
        if self._by_time and key is not None and ts is not None:
            return LabelReading(label, key=key, ts=ts)
        sample_id = _id_at(self._id, message)
        if sample_id is None:
            raise _missing("ts" if self._by_time and key is not None else "key" if self._by_time else "id")
        return LabelReading(label, id=sample_id)

    def _key_at(self, topic: str, message: dict[str, Any]) -> str | None:
        value = _optional(self._key, message)
        if value is not None:
            return parse_key(value)
        return None if self._topic_key is None else self._topic_key(topic, message)


def parse(payload: bytes, largest: int) -> dict[str, Any]:
    """The JSON object in a payload of at most `largest` bytes.

    Raises
    ------
    RejectedSampleError
        `too_big`, `not_json`, `too_deep`, `not_finite` or `wrong_type`.
    """
    if len(payload) > largest:
        raise RejectedSampleError("too_big", f"{len(payload)} bytes, at most {largest} are taken")
    try:
        text = payload.decode()
        if text[:1] != "{":
            text = text.lstrip(_SPACE)
        message, end = _decode_json(text)
    except RecursionError:
        raise RejectedSampleError("too_deep", "nested too deeply") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise RejectedSampleError("not_json", f"not JSON: {problem}") from None
    except ValueError as problem:
        # An integer with more digits than Python converts.
        raise RejectedSampleError("not_finite", f"a number is out of range: {str(problem)[:80]}") from None
    if end != len(text) and text[end:].strip(_SPACE):
        raise RejectedSampleError("not_json", f"not JSON: something follows at character {end}")
    if type(message) is not dict:
        raise RejectedSampleError("wrong_type", "a message must be a JSON object")
    return message


def _refuse_constant(token: str) -> float:
    raise RejectedSampleError("not_finite", f"{token} is not a finite number, nor JSON")


_decode_json = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def _key_of(spec: str | None) -> KeyOf:
    """How the key is found: the whole topic, one level of it, or a field."""
    if spec is None:
        return _whole_topic
    if spec.startswith("topic:"):
        return topic_level(spec)
    getter = field(spec)

    def from_field(_: str, message: Any) -> str:
        return parse_key(getter(message))

    return from_field


def _whole_topic(topic: str, _: Any) -> str:
    return topic if len(topic) <= 256 else parse_key(topic)


def _optional(getter: Getter | None, message: dict[str, Any]) -> Any:
    value = None if getter is None else getter(message)
    return None if value is MISSING else value


def _time_at(getter: Getter | None, message: dict[str, Any]) -> float | None:
    value = _optional(getter, message)
    return None if value is None else parse_time(value)


def _id_at(getter: Getter | None, message: dict[str, Any]) -> str | None:
    value = _optional(getter, message)
    return None if value is None else parse_id(value)


def _missing(name: str) -> RejectedSampleError:
    return RejectedSampleError("missing_field", f"field {name!r} is missing")
