"""Messages with named fields, in whatever format they are written: samples and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edged.config import StreamConfig
from edged.config.features import FixedKey
from edged.domain.stream.sample import Decoded, LabelReading, Reading
from edged.errors import RejectedSampleError
from edged.mqtt.field_access import (
    MISSING,
    Getter,
    Message,
    features_of,
    field,
    missing,
    parse_id,
    parse_key,
    parse_time,
    topic_level,
)

POSITIONAL = "x"
MOST_RECORDS = 1000  # messages in one

KeyOf = Callable[[str, Any], str]
Parse = Callable[[bytes, int], Any]
"""From a payload of at most so many bytes to what is in it."""


class ReadingFields:
    """Finds what a reading is made of among the fields of a message, which the stream names."""

    def __init__(self, stream: StreamConfig) -> None:
        self._features = features_of(stream.names or POSITIONAL, stream.width)
        self._key = key_of(stream.key)
        self._ts = None if stream.ts is None else field(stream.ts)
        self._id = None if stream.id is None else field(stream.id)
        self._label = None if stream.label_path is None else field(stream.label_path)
        self._plain = self._ts is None and self._id is None and self._label is None
        self._parse_label = stream.to_schema().parse_label

    def reading(self, topic: str, message: Message, ts: float | None = None) -> Reading:
        """The reading in a message; `ts` is its time where no field holds one.

        A missing or null time, id or label is no error: the reading has none. Of a label that the stream does
        not know the reading only says why.

        Raises RejectedSampleError with its reason; the message can never become a sample.
        """
        values = self._features(message)
        key = self._key(topic, message)
        if self._plain:
            return Reading(key, values, ts)
        label, refused = optional(self._label, message), None
        if label is not None:
            try:
                label = self._parse_label(label)
            except RejectedSampleError as problem:
                label, refused = None, problem.what
        at = ts if self._ts is None else time_at(self._ts, message)
        return Reading(key, values, at, label, id_at(self._id, message), refused)


class ObjectCodec:
    """Decodes sample messages of one object or several, by `parse`."""

    def __init__(self, stream: StreamConfig, parse: Parse) -> None:
        self._largest = stream.max_payload
        self._parse = parse
        self._reading = ReadingFields(stream).reading
        self._list = stream.records
        self._brought = [field(name) for name in stream.names or (POSITIONAL,)]

    def decode(self, topic: str, payload: bytes) -> Decoded:
        """The reading in a message, or the readings of several objects in it, without those of other sensors.

        Raises RejectedSampleError with its reason; the message can never become a sample.
        """
        message = self._parse(payload, self._largest)
        if self._list is None and type(message) is dict:
            return self._reading(topic, message)
        records = records_of(message, self._list)
        # A batch of Telegraf has the metrics of all its plugins; of nothing but others the first says so.
        ours = [record for record in records if self._concerns(record)] or records[:1]
        return [self._reading(topic, record) for record in ours]

    def _concerns(self, message: Message) -> bool:
        return any(getter(message) is not MISSING for getter in self._brought)


class ObjectLabelCodec:
    """Decodes messages on the topic of labels: `{"id", "label"}` or `{"key", "ts", "label"}`.

    The label's field is the last part of `stream.label.path`, else `label`. With
    `join: key_time` the key is taken from the message, or as for samples when that has none.
    """

    def __init__(self, stream: StreamConfig, parse: Parse) -> None:
        self._largest = stream.max_payload
        self._parse = parse
        self._name = "label" if stream.label_path is None else stream.label_path.rpartition(".")[2]
        matched = stream.matched_label
        self._by_time = matched is not None and matched.join == "key_time"
        from_topic = (stream.key_spec or "").startswith("topic:")
        self._topic_key = key_of(stream.key_spec) if from_topic else None
        self._label, self._id, self._ts = field(self._name), field("id"), field("ts")
        self._key = field("key")
        self._parse_label = stream.to_schema().parse_label

    def decode(self, topic: str, payload: bytes) -> LabelReading:
        """The label in a message.

        Raises RejectedSampleError with its reason; the message can never become a label.
        """
        message = the_object(self._parse(payload, self._largest))
        value = optional(self._label, message)
        if value is None:
            raise missing(self._name, message)
        label = self._parse_label(value)
        key, ts = self._key_at(topic, message), time_at(self._ts, message)
        if self._by_time and key is not None and ts is not None:
            return LabelReading(label, key=key, ts=ts)
        sample_id = id_at(self._id, message)
        if sample_id is None:
            name = "ts" if self._by_time and key is not None else "key" if self._by_time else "id"
            raise missing(name, message)
        return LabelReading(label, id=sample_id)

    def _key_at(self, topic: str, message: Message) -> str | None:
        value = optional(self._key, message)
        if value is not None:
            return parse_key(value)
        return None if self._topic_key is None else self._topic_key(topic, message)


def check_size(payload: bytes, largest: int) -> None:
    """Reject a payload of more than `largest` bytes; RejectedSampleError with reason `too_big`."""
    if len(payload) > largest:
        raise RejectedSampleError("too_big", f"{len(payload)} bytes, at most {largest} are taken")


def records_of(message: Any, path: str | None, most: int = MOST_RECORDS) -> list[Message]:
    """The messages in a payload: an object, or an array of them; of each those in its list at `path`.

    An object without such a list is a message itself.

    >>> records_of({"metrics": [{"x": 1}, {"x": 2}]}, "metrics")
    [{'x': 1}, {'x': 2}]

    Raises RejectedSampleError: `shape` for no object or more than `most`, `wrong_type` for anything else than
    objects.
    """
    found = message if type(message) is list else [message]
    if path is not None:
        list_at = field(path)
        found = [record for whole in found for record in _list_in(the_object(whole), path, list_at)]
    if not 0 < len(found) <= most:
        raise RejectedSampleError("shape", f"{len(found)} records, 1 to {most} are taken")
    return [the_object(record) for record in found]


def _list_in(message: Message, path: str, list_at: Getter) -> list[Any]:
    found = list_at(message)
    if found is MISSING:
        return [message]
    if type(found) is not list:
        raise RejectedSampleError("wrong_type", f"field {path!r} must be an array of objects")
    return found


def the_object(message: Any) -> Message:
    """Return the message if it is an object; RejectedSampleError with reason `wrong_type`."""
    if type(message) is not dict:
        raise RejectedSampleError("wrong_type", "a message must be an object with named fields")
    return message


def key_of(spec: str | FixedKey | None) -> KeyOf:
    """How the key is found: the whole topic, one level of it, a field, or a text for all."""
    if spec is None:
        return _whole_topic
    if not isinstance(spec, str):
        fixed = spec.fixed
        return lambda _, __: fixed
    if spec.startswith("topic:"):
        return topic_level(spec)
    getter = field(spec)
    return lambda _, message: parse_key(getter(message))


def _whole_topic(topic: str, _: Any) -> str:
    return topic if len(topic) <= 256 else parse_key(topic)


def optional(getter: Getter | None, message: Message) -> Any:
    """The value at a path; None where it is missing, or no path is given."""
    value = None if getter is None else getter(message)
    return None if value is MISSING else value


def time_at(getter: Getter | None, message: Message) -> float | None:
    """The time at a path in Unix seconds; None without one. RejectedSampleError with reason `timestamp`."""
    value = optional(getter, message)
    return None if value is None else parse_time(value)


def id_at(getter: Getter | None, message: Message) -> str | None:
    """The sender's id at a path; None without one. RejectedSampleError with reason `id`."""
    value = optional(getter, message)
    return None if value is None else parse_id(value)
