"""What topics carry: their fields, with kinds, rates, ranges and words. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from edged.domain.line_protocol import parse as parse_lines
from edged.domain.stream.value_words import KNOWN_WORDS, number_of
from edged.errors import RejectedSampleError
from edged.mqtt.codecs.parsers import parse_lenient
from edged.mqtt.field_access import parse_time

Kind = Literal["number", "on/off", "word", "time", "text", "numbers", "nothing"]

MOST_WORDS = 12  # a field of more is text
LONGEST_WORD = 32
MOST_FIELDS = 200  # of one topic
MOST_TOPICS = 2000
DEEPEST = 4
LARGEST = 1024**2
ENOUGH = 5  # values that say something about a field
BARE = ""
"""Path of a payload that is the value itself."""

_ZONE = re.compile(r"([Zz]|[+-]\d\d(:?\d\d)?)$")


@dataclass
class SeenField:
    """The values of one field: `seen` of them, `missing` of which say that there is none."""

    path: str
    seen: int = 0
    missing: int = 0
    low: float = math.inf
    high: float = -math.inf
    whole: bool = True  # all numbers are integers
    rises: int = 0  # times a number was larger than the one before
    falls: int = 0
    quoted: int = 0  # numbers that came as text
    width: int = 0  # of an array of numbers
    zoned: bool = True  # all times name their zone
    words: dict[str, int] = field(default_factory=dict)
    kinds: dict[Kind, int] = field(default_factory=dict)
    _last: float | None = None

    def add(self, value: Any) -> None:
        """Count one value as JSON has it, or the text of a bare payload."""
        self.seen += 1
        kind = _kind_of(value)
        if kind == "nothing":
            self.missing += 1
            return
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if kind == "number":
            self.quoted += isinstance(value, str)
            self._add_number(number_of(value))
        elif kind == "numbers":
            self.width = len(value)
        elif kind == "time":
            self.zoned = self.zoned and _ZONE.search(str(value)) is not None
        elif len(self.words) <= MOST_WORDS:
            word = str(value).lower() if isinstance(value, bool) else value[: LONGEST_WORD + 1]
            self.words[word] = self.words.get(word, 0) + 1

    def _add_number(self, number: float) -> None:
        if self._last is not None:
            self.rises += number > self._last
            self.falls += number < self._last
        self._last = number
        self.low, self.high = min(self.low, number), max(self.high, number)
        self.whole = self.whole and number.is_integer()
        if self.whole and len(self.words) <= MOST_WORDS:
            word = f"{number:.0f}"
            self.words[word] = self.words.get(word, 0) + 1

    @property
    def kind(self) -> Kind:
        """The one kind of all values; `text` where they differ, `nothing` where all are missing."""
        if len(self.kinds) != 1:
            return "text" if self.kinds else "nothing"
        kind = next(iter(self.kinds))
        if kind != "word":
            return kind
        present = self.seen - self.missing
        many = len(self.words) > MOST_WORDS or (present >= ENOUGH and len(self.words) > present / 2)
        return "text" if many or any(len(word) > LONGEST_WORD for word in self.words) else "word"

    @property
    def counts_up(self) -> bool:
        """Whether it is a counter: a whole number that rises with nearly every message and never falls."""
        present = self.seen - self.missing
        return self.whole and not self.falls and present > ENOUGH and self.rises >= 0.8 * (present - 1)

    @property
    def shown(self) -> str:
        """Format the range of the values, or the words, for people."""
        kind = self.kind
        if kind == "number":
            return f"{self.low:.6g}" if self.low == self.high else f"{self.low:.6g} to {self.high:.6g}"
        if kind == "numbers":
            return f"array of {self.width}"
        words = sorted(self.words) if kind in ("word", "on/off") else list(self.words)[:1]
        return ", ".join(words) if kind != "time" else ""


def merged(fields: Sequence[SeenField]) -> SeenField:
    """The values of the same field of several topics together."""
    if len(fields) == 1:
        return fields[0]
    one = SeenField(fields[0].path, width=fields[0].width)
    for each in fields:
        for name in ("seen", "missing", "rises", "falls", "quoted"):
            setattr(one, name, getattr(one, name) + getattr(each, name))
        one.low, one.high = min(one.low, each.low), max(one.high, each.high)
        one.whole, one.zoned = one.whole and each.whole, one.zoned and each.zoned
        for counts, more in ((one.words, each.words), (one.kinds, each.kinds)):
            for what, count in more.items():
                counts[what] = counts.get(what, 0) + count  # type: ignore[index,call-overload]
    return one


@dataclass
class Topic:
    """The messages of one topic. Times are monotonic seconds; retained messages count in `messages` alone."""

    name: str
    messages: int = 0
    retained: int = 0
    unread: int = 0  # payloads that are neither JSON nor UTF-8 text
    lines: int = 0  # payloads in InfluxDB's line protocol
    repeats: int = 0  # live messages that say the same as the one before
    first: float = 0.0
    last: float = 0.0
    fields: dict[str, SeenField] = field(default_factory=dict)
    _before: bytes | None = None

    def add(self, payload: bytes, at: float | None, *, retained: bool = False) -> None:
        """Count one message; `at` is None where nobody knows when it came."""
        self.messages += 1
        self.retained += retained
        if at is not None and not retained:
            self.first, self.last = self.first or at, at
        self.repeats += payload == self._before and not retained
        self._before = payload
        records = None if len(payload) > LARGEST else _line_records(payload)
        self.lines += records is not None
        values = records if records is not None or len(payload) > LARGEST else _values(payload)
        if values is None:
            self.unread += 1
            return
        for path, value in values:
            known = self.fields.get(path)
            if known is None:
                if len(self.fields) >= MOST_FIELDS:
                    continue
                known = self.fields[path] = SeenField(path)
            known.add(value)

    @property
    def live(self) -> int:
        """Messages that came while we listened."""
        return self.messages - self.retained

    @property
    def interval(self) -> float | None:
        """Mean seconds between live messages; None where too few came to say."""
        return (
            (self.last - self.first) / (self.live - 1) if self.live > 1 and self.last > self.first else None
        )

    @property
    def bare(self) -> bool:
        """Whether the payload is the value itself."""
        return set(self.fields) == {BARE}

    def whole(self, path: str) -> bool:
        """Whether every message has brought a value of this field."""
        found = self.fields[path]
        return not found.missing and found.seen == self.messages


class Survey:
    """All topics that were heard, by name; the first `MOST_TOPICS` of them."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.messages = 0

    def add(self, topic: str, payload: bytes, at: float | None = None, *, retained: bool = False) -> None:
        """Count one message; `at` is monotonic seconds, None where nobody knows when it came."""
        self.messages += 1
        known = self.topics.get(topic)
        if known is None:
            if len(self.topics) >= MOST_TOPICS:
                return
            known = self.topics[topic] = Topic(topic)
        known.add(payload, at, retained=retained)


def _kind_of(value: Any) -> Kind:
    """The kind of one value.

    >>> [_kind_of(value) for value in (21.5, "21.5", True, "OFF", None, "nan", "idle", [1, 2])]
    ['number', 'number', 'on/off', 'on/off', 'nothing', 'nothing', 'word', 'numbers']
    """
    if isinstance(value, float) and math.isnan(value):
        return "nothing"
    kind = _KINDS.get(type(value))
    return _kind_of_text(str(value).strip()) if kind is None else kind


_KINDS: dict[type, Kind] = {
    type(None): "nothing", bool: "on/off", int: "number", float: "number", list: "numbers",
}  # fmt: skip


def _kind_of_text(text: str) -> Kind:
    try:
        number = number_of(text)
    except RejectedSampleError:
        return "time" if _is_time(text) else "word"
    if math.isnan(number):
        return "nothing"
    return "on/off" if text.lower() in KNOWN_WORDS else "number"


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except RejectedSampleError:
        return False
    return True


def _line_records(payload: bytes) -> list[tuple[str, Any]] | None:
    """Paths and values in line protocol, as `codec: influx` reads it; None for any other payload."""
    if payload[:1] in (b"{", b"[") or b"=" not in payload:
        return None
    try:
        records = parse_lines(payload.decode())
    except (UnicodeDecodeError, RejectedSampleError):
        return None
    return [found for record in records for found in _flattened(dict(record), "", DEEPEST)] or None


def _values(payload: bytes) -> list[tuple[str, Any]] | None:
    """Paths and values in a payload, those of objects within it too; None where it cannot be read."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    try:
        message = parse_lenient(payload, LARGEST)
    except RejectedSampleError:
        if text.lstrip()[:1] in ("{", "["):
            return None
        message = text
    if isinstance(message, dict):
        return list(_flattened(message, "", DEEPEST))
    if isinstance(message, list):  # a batch: one message with several objects
        objects = [one for one in message if isinstance(one, dict)]
        return [found for one in objects for found in _flattened(one, "", DEEPEST)] or None
    return [(BARE, message)]


def _flattened(message: dict[str, Any], above: str, deeper: int) -> Iterator[tuple[str, Any]]:
    for name, value in message.items():
        path = f"{above}{name}"
        if isinstance(value, list):
            if value and all(type(item) in (int, float) for item in value):
                yield path, value
            elif deeper:
                for choice, item in _items(value[:20]):
                    yield from _flattened(item, f"{path}{choice}.", deeper - 1)
        elif isinstance(value, dict):
            if deeper:
                yield from _flattened(value, f"{path}.", deeper - 1)
        else:
            yield path, value


def _items(values: Sequence[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of an array with their path in it: by `name` where each has another, else by position.

    >>> list(_items([{"name": "speed", "value": 3}, {"name": "load", "error": 2014}]))
    [('[name=speed]', {'value': 3}), ('[name=load]', {'error': 2014})]
    >>> list(_items([{"total": 1}]))
    [('.0', {'total': 1})]
    """
    objects = [(f".{i}", item) for i, item in enumerate(values) if isinstance(item, dict)]
    names = [item.get("name") for _, item in objects]
    named = all(isinstance(name, str) and name and not set(name) & set("[]=") for name in names)
    if not named or len(set(names)) < len(names):
        yield from objects
        return
    for name, (_, item) in zip(names, objects, strict=True):
        yield f"[name={name}]", {key: value for key, value in item.items() if key != "name"}
