"""SenML (RFC 8428), as JSON or CBOR: a pack of records, resolved and put together to readings.

Records of one base name and one time are one reading; its fields are the records' names, with and
without the base name, `NAME#sum` for sums, and `bn` for the base name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from edged.clock import Clock, SystemClock
from edged.config import StreamConfig
from edged.domain.stream.sample import Decoded
from edged.errors import RejectedSampleError, UnavailableError
from edged.mqtt.codecs.objects import ReadingFields
from edged.mqtt.codecs.parsers import cbor_values, parse_any
from edged.mqtt.field_access import FLOAT32_MAX, parse_time

VERSION = 10
ABSOLUTE_FROM = 2**28  # seconds; smaller times are relative to now
MOST_READINGS = 1000
_LABELS = {
    -6: "bs", -5: "bv", -4: "bu", -3: "bt", -2: "bn", -1: "bver", 0: "n", 1: "u", 2: "v", 3: "vs", 4: "vb",
    5: "s", 6: "t", 7: "ut", 8: "vd",
}  # fmt: skip
_BASE = frozenset(("bs", "bv", "bu", "bt", "bn", "bver"))
_REGULAR = frozenset(("n", "u", "t", "ut"))
_OTHER_VALUES = ("vs", "vb", "vd")
_KNOWN = frozenset(_LABELS.values())
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-:./_]*", re.ASCII)

Record = dict[Any, Any]


class SenmlCodec:
    """Decodes SenML packs, JSON or CBOR by the first byte. `clock` resolves relative times.

    >>> from edged.config import StreamConfig
    >>> codec = SenmlCodec(StreamConfig(features=["temp", "rpm"], codec="senml", key="bn"))
    >>> pack = b'[{"bn": "m1/", "bt": 1.7e9, "n": "temp", "v": 20}, {"n": "rpm", "v": 90}]'
    >>> codec.decode("t", pack)
    [Reading(key='m1/', values=[20.0, 90.0], ts=1700000000.0, label=None, id=None, refused_label=None)]
    """

    def __init__(self, stream: StreamConfig, clock: Clock | None = None) -> None:
        self._largest = stream.max_payload
        self._clock = clock or SystemClock()
        self._reading = ReadingFields(stream).reading
        self._cbor: Callable[[bytes, int], Any] | None = None

    def decode(self, topic: str, payload: bytes) -> Decoded:
        """The readings in a pack, oldest first.

        Raises RejectedSampleError with its reason; no reading of the pack can become a sample.
        """
        readings: dict[tuple[str, float], Record] = {}
        for base, name, at, values in resolved(self._records(payload)):
            message = readings.setdefault((base, at), {"bn": base})
            full = base + name
            for suffix, value in values.items():
                message[full + suffix] = value
                message.setdefault((name or base) + suffix, value)
            if len(readings) > MOST_READINGS:
                raise RejectedSampleError("shape", f"more than {MOST_READINGS} readings")
        return [
            self._reading(topic, message, self._absolute(at))
            for (_, at), message in sorted(readings.items(), key=lambda item: item[0][1])
        ]

    def _records(self, payload: bytes) -> list[Record]:
        text = payload.lstrip(b" \t\r\n")[:1] in (b"[", b"{")
        pack = parse_any(payload, self._largest) if text else self._parse_cbor(payload)
        if type(pack) is not list or not all(type(record) is dict for record in pack):
            raise RejectedSampleError("wrong_type", "a SenML pack is an array of records")
        return pack if text else [_named(record) for record in pack]

    def _parse_cbor(self, payload: bytes) -> Any:
        if self._cbor is None:
            try:
                self._cbor = cbor_values(text_keys=False)
            except UnavailableError as problem:
                raise RejectedSampleError("not_cbor", problem.line()) from problem
        return self._cbor(payload, self._largest)

    def _absolute(self, at: float) -> float | None:
        if at == 0:
            return None
        return parse_time(at if at >= ABSOLUTE_FROM else max(0.0, self._clock.now() + at))


def resolved(records: list[Record]) -> Iterator[tuple[str, str, float, Record]]:
    """Of each record its base name, its own name, its time, and its value and sum by suffix of the name.

    Times are Unix seconds, or relative to now where they are below 2**28.

    Raises RejectedSampleError: `not_senml` for what the RFC does not allow, `wrong_type` and `not_finite` for
    numbers that are none.
    """
    base: Record = {"bn": "", "bt": 0, "bv": 0, "bs": 0, "bver": VERSION}
    for record in records:
        if not _BASE.isdisjoint(record):
            base |= {field: value for field, value in record.items() if field in _BASE}
            _check_version(base["bver"])
        if not _KNOWN.issuperset(record):
            _check_unknown(record)
        values = _values(record, base)
        if values:
            prefix, name = base["bn"], record.get("n", "")
            _check_name(prefix, name)
            yield prefix, name, _number(base["bt"], "bt") + _number(record.get("t", 0), "t"), values
        elif not _REGULAR.isdisjoint(record):
            raise RejectedSampleError("not_senml", "a record has neither a value nor a sum")


def _values(record: Record, base: Record) -> Record:
    """The value and the sum of a record, the base values added."""
    values: Record = {}
    if "v" in record:
        values[""] = _number(record["v"], "v") + _number(base["bv"], "bv")
    for field in _OTHER_VALUES:
        if field in record:
            if values:
                raise RejectedSampleError("not_senml", "a record has more than one value")
            values[""] = record[field]
    if "s" in record:
        values["#sum"] = _number(record["s"], "s") + _number(base["bs"], "bs")
    return values


def _check_version(version: Any) -> None:
    if type(version) is not int or not 0 < version <= VERSION:
        raise RejectedSampleError("not_senml", f"version {str(version)[:20]} is not known")


def _check_unknown(record: Record) -> None:
    for field in record:
        if type(field) is str and field.endswith("_"):
            raise RejectedSampleError("not_senml", f"field {field[:40]!r} must be understood and is not")


def _check_name(prefix: Any, name: Any) -> None:
    if type(prefix) is not str or type(name) is not str or not _NAME.fullmatch(prefix + name):
        raise RejectedSampleError("not_senml", f"{str(prefix)[:40]}{str(name)[:40]!r} is no name of a record")


def _number(value: Any, field: str) -> float:
    if type(value) is float or type(value) is int:
        if -FLOAT32_MAX <= value <= FLOAT32_MAX:  # NaN is not
            return float(value)
        raise RejectedSampleError("not_finite", f"field {field!r} is no finite float32 number")
    raise RejectedSampleError("wrong_type", f"field {field!r} is no number")


def _named(record: Record) -> Record:
    """A record of the CBOR form, whose fields are numbers, with their names."""
    return {
        _LABELS.get(field, field) if type(field) is int else field: value for field, value in record.items()
    }
