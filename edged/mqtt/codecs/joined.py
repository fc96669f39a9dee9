"""Messages that bring some features of a sample: objects with some of its fields, or one bare value.

What sensors say in words becomes a number (`value_words`). A field that is no number is left out where the
message brings others; a message that brings nothing usable is refused with the reason of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from edged.config import StreamConfig
from edged.config.features import FeatureConfig
from edged.domain.stream.sample import LabelValue, Observation, Seen
from edged.domain.stream.value_words import number_of
from edged.errors import RejectedSampleError
from edged.mqtt.codecs.labels import LabelTopicCodec
from edged.mqtt.codecs.objects import KeyOf, check_size, id_at, key_of, optional, records_of, time_at
from edged.mqtt.field_access import MISSING, Getter, Message, field, missing
from edged.mqtt.topics import matches

MOST_TOPICS = 10_000  # whose features are remembered


@dataclass(frozen=True, slots=True)
class _Source:
    """A feature as messages bring it; without a getter the payload is the value."""

    at: int
    name: str
    getter: Getter | None
    words: Mapping[str, float] | None
    key: KeyOf


@dataclass(frozen=True, slots=True)
class _Route:
    """What messages of one topic may bring. `key` is that of all fields, None where they differ."""

    bare: list[_Source]
    fields: list[_Source]
    key: KeyOf | None
    label: bool


class JoinedCodec:
    """Decodes messages of a stream whose samples are made of several of them, by `parse`.

    `parse` makes of a payload the object in it, or the list of those in it.
    """

    def __init__(self, stream: StreamConfig, parse: Callable[[bytes, int], Any]) -> None:
        self._parse = parse
        self._largest = stream.max_payload
        keys: dict[str | None, KeyOf] = {}
        for feature in stream.measured:
            keys.setdefault(feature.key, key_of(feature.key or stream.key))
        self._sources = [
            (feature.topic, _source(at, feature, keys[feature.key]))
            for at, feature in enumerate(stream.measured)
        ]
        self._topics = stream.topics
        self._list = stream.records
        self._routes: dict[str, _Route] = {}
        self._ts = None if stream.ts is None else field(stream.ts)
        self._id = None if stream.id is None else field(stream.id)
        self._label = None if stream.label_path is None else field(stream.label_path)
        self._parse_label = stream.to_schema().parse_label
        own = stream.near_label
        self._label_codec = None if own is None else LabelTopicCodec(stream, own, self._parse_one)
        self._label_topics = [] if own is None else [own.topic] if own.topic else stream.topics

    def decode(self, topic: str, payload: bytes) -> list[Seen]:
        """What a message says: a label, and an observation for each key in it.

        Raises RejectedSampleError with its reason when nothing of it is usable.
        """
        route = self._routes.get(topic) or self._route(topic)
        seen: list[Seen] = []
        refused: RejectedSampleError | None = None
        if route.label and self._label_codec is not None:
            try:
                seen.append(self._label_codec.decode(topic, payload))
            except RejectedSampleError as problem:
                if not (route.bare or route.fields):
                    raise
                refused = problem
        if route.bare:
            seen.append(self._bare(topic, payload, route.bare))
        if route.fields or not seen:
            message = self._parse(payload, self._largest)
            try:
                seen += self._of_records(topic, records_of(message, self._list), route)
            except RejectedSampleError:
                if not seen:
                    raise
        return _refuse_label(seen, refused)

    def _of_records(self, topic: str, records: list[Message], route: _Route) -> list[Seen]:
        """What each message of several says; those of other sensors are passed over, unless all are."""
        seen: list[Seen] = []
        nothing: RejectedSampleError | None = None
        for record in records:
            try:
                seen += self._observations(topic, record, route)
            except RejectedSampleError as problem:
                if problem.reason != "missing_field" or len(records) == 1:
                    raise
                nothing = nothing or problem
            if len(records) > 1 and route.label and self._label_codec is not None:
                try:
                    seen.append(self._label_codec.reading(topic, record))
                except RejectedSampleError as problem:
                    seen = _refuse_label(seen, problem)
        if nothing is not None and not seen:
            raise nothing
        return seen

    def _parse_one(self, payload: bytes, largest: int) -> Any:
        """What is in a payload; of a list of one message that message."""
        message = self._parse(payload, largest)
        with suppress(RejectedSampleError):
            records = records_of(message, self._list)
            return records[0] if len(records) == 1 else message
        return message

    def _route(self, topic: str) -> _Route:
        """The features that messages of a topic may bring."""
        if len(self._routes) >= MOST_TOPICS:
            self._routes.clear()
        here = [
            source
            for own, source in self._sources
            if any(matches(one, topic) for one in ([own] if own is not None else self._topics))
        ]
        fields = [source for source in here if source.getter is not None]
        shared = fields[0].key if len({id(source.key) for source in fields}) == 1 else None
        label = any(matches(one, topic) for one in self._label_topics)
        bare = [source for source in here if source.getter is None]
        route = self._routes[topic] = _Route(bare, fields, shared, label)
        return route

    def _bare(self, topic: str, payload: bytes, sources: list[_Source]) -> Observation:
        check_size(payload, self._largest)
        try:
            text = payload.decode().strip()
        except UnicodeDecodeError:
            raise RejectedSampleError("wrong_type", f"{sources[0].name}: the payload is no text") from None
        if len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1]
        return Observation(sources[0].key(topic, {}), [(one.at, _number(one, text)) for one in sources])

    def _observations(self, topic: str, message: Message, route: _Route) -> list[Observation]:
        found: dict[str, list[tuple[int, float]]] = {}
        shared = None if route.key is None else route.key(topic, message)
        problem: RejectedSampleError | None = None
        for source in route.fields:
            value = source.getter(message) if source.getter is not None else MISSING
            if value is MISSING:
                continue
            try:
                number = _number(source, value)
            except RejectedSampleError as refused:
                problem = problem or refused
                continue
            key = source.key(topic, message) if shared is None else shared
            found.setdefault(key, []).append((source.at, number))
        if not found:
            raise problem or _nothing(route, message)
        ts = None if self._ts is None else time_at(self._ts, message)
        if self._label is None and self._id is None:
            return [Observation(key, values, ts) for key, values in found.items()]
        label, refused_label = self._label_in(message)
        name = id_at(self._id, message)
        return [Observation(key, values, ts, label, name, refused_label) for key, values in found.items()]

    def _label_in(self, message: Message) -> tuple[LabelValue | None, str | None]:
        """The label in a sample's message, or why it was not taken."""
        value = optional(self._label, message)
        try:
            return (None if value is None else self._parse_label(value)), None
        except RejectedSampleError as problem:
            return None, problem.what


def _source(at: int, feature: FeatureConfig, key: KeyOf) -> _Source:
    path = feature.field_path
    return _Source(at, feature.name, None if path is None else field(path), feature.values, key)


def _number(source: _Source, value: Any) -> float:
    try:
        return number_of(value, source.words)
    except RejectedSampleError as problem:
        raise RejectedSampleError(problem.reason, f"{source.name}: {problem.what}") from None


def _refuse_label(seen: list[Seen], problem: RejectedSampleError | None) -> list[Seen]:
    """Let the newest observation say why the label beside it was not taken; a missing one is no problem."""
    if problem is None or problem.reason != "label":
        return seen
    for at in range(len(seen) - 1, -1, -1):
        one = seen[at]
        if isinstance(one, Observation):
            return [*seen[:at], replace(one, refused_label=problem.what), *seen[at + 1 :]]
    return seen


def _nothing(route: _Route, message: Message) -> RejectedSampleError:
    if route.fields:
        return missing(route.fields[0].name, message)
    return RejectedSampleError("missing_field", "no feature comes on this topic")
