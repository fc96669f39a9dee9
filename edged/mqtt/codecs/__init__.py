"""From payloads to readings and labels. What cannot become one is refused with a stable reason.

Reasons, of any codec: `too_big`, `too_deep`, `missing_field`, `wrong_type`, `shape`, `not_finite`, `key`,
`timestamp`, `id`, `label`; of one: `not_json`, `not_cbor`, `not_msgpack`, `not_line_protocol`, `not_senml`,
`not_csv`, `not_sparkplug`, `no_birth`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, TypeVar

from edged.clock import Clock
from edged.config import StreamConfig
from edged.config.formats import OBJECTS
from edged.domain.protocols import MessagePublisher
from edged.domain.stream.sample import HoldReading, LabelReading
from edged.mqtt.codecs import parsers
from edged.mqtt.codecs.labels import LabelTopicCodec
from edged.mqtt.codecs.objects import ObjectCodec, ObjectLabelCodec, Parse

T_co = TypeVar("T_co", covariant=True)

_PLACES = {
    "senml": ("senml", "SenmlCodec"),
    "csv": ("csv", "CsvCodec"),
    "sparkplug": ("sparkplug", "SparkplugCodec"),
    **dict.fromkeys(("float32", "float16", "int16"), ("raw_arrays", "ArrayCodec")),
}
_MAPS = ("cbor", "msgpack")  # messages are maps with text keys, as JSON objects are


class Decoder(Protocol[T_co]):
    """Decodes messages of one format."""

    def decode(self, topic: str, payload: bytes) -> T_co:
        """Decode one message of a topic."""


def sample_codec(
    stream: StreamConfig, *, clock: Clock | None = None, publisher: MessagePublisher | None = None
) -> Decoder[Any]:
    """The codec of a stream's sample messages; only its own module is imported.

    `clock`, the system's when absent, resolves relative times and stamps requests; `publisher` publishes
    requests of formats that can ask a sensor to introduce itself again.

    Raises UnavailableError when a package that the codec needs is not installed.
    """
    if stream.joined:
        from edged.mqtt.codecs.joined import JoinedCodec

        return JoinedCodec(stream, parsers.parse_lenient if stream.codec == "json" else parser_of(stream))
    if stream.codec in OBJECTS:
        return ObjectCodec(stream, parser_of(stream))
    more: dict[str, Any] = {}
    if stream.codec == "senml":
        more = {"clock": clock}
    elif stream.codec == "sparkplug":
        more = {"clock": clock, "publisher": publisher}
    module, name = _PLACES[stream.codec]
    codec: Decoder[Any] = getattr(import_module(f"edged.mqtt.codecs.{module}"), name)(stream, **more)
    return codec


def label_codec(stream: StreamConfig) -> Decoder[LabelReading | HoldReading]:
    """The codec of labels that come by themselves: that of the samples where it has fields, else JSON.

    Raises UnavailableError when a package that the codec needs is not installed.
    """
    parse = parser_of(stream) if stream.codec in _MAPS else parsers.parse_any
    if stream.near_label is not None:
        return LabelTopicCodec(stream, stream.near_label, parse)
    return ObjectLabelCodec(stream, parse)


def parser_of(stream: StreamConfig) -> Parse:
    """The parser of a format whose messages are objects; for `records_of`.

    Raises UnavailableError when a package that it needs is not installed.
    """
    if stream.codec == "cbor":
        return parsers.cbor_values(text_keys=True)
    if stream.codec == "msgpack":
        return parsers.msgpack_values()
    return parsers.parse_influx if stream.codec == "influx" else parsers.parse_any
