"""Labels that come by themselves, as `stream.label` describes them: a bare word, or a field of a message."""

from __future__ import annotations

import json
from typing import Any

from edged.config import StreamConfig
from edged.config.features import LabelConfig
from edged.domain.labels.held_labels import ends, label_of
from edged.domain.stream.sample import HoldReading, LabelReading
from edged.errors import RejectedSampleError
from edged.mqtt.codecs.objects import Parse, check_size, id_at, key_of, optional, the_object, time_at
from edged.mqtt.field_access import MISSING, Message, field, missing, parse_key


class LabelTopicCodec:
    """Decodes messages that bring a label by the rules of `label`; `parse` reads those that are objects."""

    def __init__(self, stream: StreamConfig, label: LabelConfig, parse: Parse) -> None:
        self._schema = stream.to_schema()
        self._largest = stream.max_payload
        self._parse = parse
        self._hold, self._path = label.hold, label.path
        self._value = field(label.path or "label")
        self._key = key_of(label.key or stream.key)
        self._own_key, self._ts, self._id = field("key"), field(stream.ts or "ts"), field("id")

    def decode(self, topic: str, payload: bytes) -> LabelReading | HoldReading:
        """The label in a message: of a sample with `id`, of a key at `ts`, or of a key from now on.

        Where no path is configured the payload is the label, or an object with the field `label`.

        Raises RejectedSampleError with its reason; the message can never become a label.
        """
        check_size(payload, self._largest)
        if self._path is not None or payload.lstrip()[:1] == b"{":
            return self.reading(topic, the_object(self._parse(payload, self._largest)))
        try:
            text = payload.decode().strip()
        except UnicodeDecodeError:
            raise RejectedSampleError("label", "the payload is no text") from None
        if text[:1] in ('"', "["):
            try:
                return self._of_key(json.loads(text), self._key(topic, {}))
            except (ValueError, RecursionError):
                raise RejectedSampleError("label", f"{text[:40]!r} is no label") from None
        return self._of_key(text, self._key(topic, {}))

    def reading(self, topic: str, message: Message) -> LabelReading | HoldReading:
        """The label in a message with fields; see `decode`."""
        value = self._value(message)
        if value is MISSING or (value is None and not self._hold):
            raise missing(self._path or "label", message)
        sample_id = id_at(self._id, message) if self._path is None else None
        if sample_id is not None:
            return LabelReading(label_of(value, self._schema), id=sample_id)
        own = optional(self._own_key, message) if self._path is None else None
        key = self._key(topic, message) if own is None else parse_key(own)
        return self._of_key(value, key, time_at(self._ts, message))

    def _of_key(self, value: Any, key: str, ts: float | None = None) -> LabelReading | HoldReading:
        if self._hold:
            return HoldReading(key, None if ends(value, self._schema) else label_of(value, self._schema), ts)
        return LabelReading(label_of(value, self._schema), key=key, ts=ts)
