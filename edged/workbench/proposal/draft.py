"""A proposed stream, and the configuration that `edged init` writes: YAML with a reason on each line.

A stream has features, a key, moments at which a sample is made, and labels. No I/O.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import yaml

from edged.errors import one_of
from edged.workbench.proposal.machines import LABEL_DOMAINS, Machine, ProposedField, place
from edged.workbench.proposal.survey import ENOUGH, MOST_WORDS, Topic

BY_HAND = ("normal", "fault")
"""Classes for labels that nobody has given yet."""

_KEY = re.compile(
    r"(.*\.)?(key|device|sensor|machine|asset|host|node|station|unit|deveui)(_?(id|name))?", re.IGNORECASE
)
_TIME = re.compile(r"(.*\.)?(timestamp|time|ts|t|datetime|last_seen|date)", re.IGNORECASE)
_UNIX = 1e9
_AGES = (60, 300, 900, 3600, 6 * 3600, 24 * 3600)
_BEATS = 10  # messages that may fail to come before a value counts as missing
_STEADY_REPEATS = 0.2  # share of messages that say nothing new: such a sensor reports by the clock
_CLOCK = "1min"

COMMENT_AT = 34  # column of the comments, further right only behind a longer line

Learning = Literal["field", "hand", "normal"]


class DraftLine(NamedTuple):
    """One key of the stream with its value, and why it is proposed."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True)
class Labels:
    """How the model learns: from the field `candidate`, from labels given by hand, or what is normal.

    Without `classes` a field's label is a number.
    """

    learning: Learning
    classes: tuple[str, ...] | int = ()
    candidate: ProposedField | None = None

    @classmethod
    def of(cls, candidate: ProposedField) -> Labels:
        """Labels of a field: its words are the classes, or its numbers where they are few and whole."""
        known = candidate.field
        if known.kind == "number" and (not known.whole or len(known.words) > MOST_WORDS):
            return cls("field", (), candidate)
        words = sorted(known.words, key=lambda word: (known.kind == "number" and float(word), word))
        counted = words == [str(i) for i in range(len(words))]
        return cls("field", len(words) if counted else tuple(words), candidate)


@dataclass(frozen=True)
class Draft:
    """What `edged init` would write; `device` is its id."""

    device: str
    machine: Machine
    features: tuple[ProposedField, ...]
    labels: Labels

    @classmethod
    def of(cls, machine: Machine) -> Draft:
        """The proposal for a machine: all that is usable, and the field that looks most like a label."""
        every = machine.candidates()
        features = [c for c in every if not c.why]
        arrays = [c for c in features if c.field.kind == "numbers"]
        found = [c for c in every if c.label and (c.field.kind == "number" or len(c.field.words) > 1)]
        found.sort(key=lambda c: (not _is_selection(c), c.field.kind != "word"))
        labels = Labels.of(found[0]) if found else Labels("hand", BY_HAND)
        return cls(device_id(machine.name), machine, tuple(arrays[:1] or features), labels)

    # ---- what follows from the choice ------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic of most features; the busiest of several."""
        live = {topic.name: topic.live for topic in self.machine.topics}
        places = [c.topic for c in self.features]
        return max(places, key=lambda name: (places.count(name), live.get(name, 0)))

    @property
    def left_out(self) -> list[ProposedField]:
        """Fields that are neither features nor the label."""
        used = {(c.topic, c.path) for c in (*self.features, self.labels.candidate) if c is not None}
        return [c for c in self.machine.candidates() if (c.topic, c.path) not in used]

    @property
    def single(self) -> bool:
        """Whether all features are in the messages of one topic, or of alike topics."""
        return len({c.topic for c in self.features}) == 1

    @property
    def array(self) -> ProposedField | None:
        """The array that holds all features, if one does."""
        return next((c for c in self.features if c.field.kind == "numbers"), None)

    @property
    def plain(self) -> bool:
        """Whether every message is a sample as it is: one object with all features, numbers only."""
        kinds = {c.field.kind for c in self.features}
        return (
            self.single
            and kinds <= {"number", "numbers"}
            and all(c.whole and c.path and not c.field.quoted for c in self.features)
            and self._messages(self.topic) >= ENOUGH
        )

    def _messages(self, name: str) -> int:
        own = [t for t in self.machine.topics if self.machine.keys or t.name == name]
        return min((topic.messages for topic in own), default=0)

    def _topic(self, name: str) -> Topic:
        return next((t for t in self.machine.topics if t.name == name), self.machine.topics[0])

    # ---- the stream's keys -----------------------------------------------------------------

    def before_features(self) -> list[DraftLine]:
        """Propose the topic and the key."""
        machine = self.machine
        comment = f"{sum(topic.messages for topic in machine.topics)} messages"
        if machine.keys:
            comment = f"{len(machine.keys)} alike: {', '.join(machine.keys[:4])}"
        elif not self.single:
            comment = "topic of the features that name none"
        elif not machine.live:
            comment += ", all retained"
        format_ = [DraftLine("codec", "influx", "InfluxDB line protocol")] if machine.lines else []
        return [DraftLine("topic", self.topic, comment), *format_, self._key()]

    def _key(self) -> DraftLine:
        machine = self.machine
        if machine.keys:
            return DraftLine("key", f"topic:{machine.level}", "this level of the topic tells them apart")
        named = [c for c in machine.candidates() if c.topic == self.topic and _KEY.fullmatch(c.name)]
        several = next((c for c in named if c.whole and len(c.field.words) > 1), None)
        if self.single and several is not None:
            return DraftLine("key", several.path, "the field that names the machine of a message")
        if self.single and self.plain and machine.level is not None and self.labels.learning != "hand":
            return DraftLine(
                "key", f"topic:{machine.level}", f"this level of the topic names it: {machine.name}"
            )
        return DraftLine("key", {"fixed": self.device}, "all messages belong to one machine")

    def feature_entries(self) -> list[DraftLine]:
        """One item of the list of features each, without a key."""
        return [
            DraftLine(
                "",
                c.path if self._own(c) else self._mapping(name, c),
                f"{c.field.kind}, {c.field.shown}",
            )
            for name, c in zip(self.names, self.features, strict=True)
        ]

    def _own(self, candidate: ProposedField) -> bool:
        return candidate.topic == self.topic and bool(candidate.path)

    @property
    def names(self) -> list[str]:
        """Names of the features: paths in the messages of `topic`, short names of what comes on others."""
        forms = [[c.path] if self._own(c) else _names(c) for c in self.features]
        taken = Counter(name.lower() for form in forms for name in dict.fromkeys(form))
        return [next((n for n in form if taken[n.lower()] == 1), form[-1]) for form in forms]

    def _mapping(self, name: str, candidate: ProposedField) -> dict[str, str]:
        values = {"name": name}
        if candidate.topic != self.topic or not candidate.path:
            values["topic"] = candidate.topic
        if candidate.path:
            values["path"] = candidate.path
        age = None if candidate.topic == self.topic else self._max_age(candidate.topic)
        return values if age is None else values | {"max_age": age}

    def _max_age(self, name: str) -> str | None:
        """How old a value may be: ten messages late; None for sensors that report changes only."""
        topic = self._topic(name)
        if topic.interval is None or topic.live < ENOUGH or topic.repeats < _STEADY_REPEATS * topic.live:
            return None
        age = next((age for age in _AGES if age >= _BEATS * topic.interval), _AGES[-1])
        return f"{age // 3600}h" if age >= 3600 else f"{age // 60}min"

    def after_features(self) -> list[DraftLine]:
        """When a sample is made, what is done about gaps, the time, and how labels come."""
        entries = [] if self.single else [self._sample()]
        if not self.plain:
            lacking = [name for name, c in zip(self.names, self.features, strict=True) if not c.whole]
            why = f"not every message has {', '.join(lacking[:3])}" if lacking else "sensors can fail"
            why = why if self.single else "each topic has some of the values"
            comment = f"{why}: the newest value counts, and a flag marks the gap"
            entries.append(DraftLine("missing", {"fill": "last", "flags": True}, comment))
        return entries + self._time() + self._labels()

    def _sample(self) -> DraftLine:
        topic = self._topic(self.topic)
        if topic.interval is None:
            return DraftLine("sample", _CLOCK, "by the clock: these sensors only report changes")
        pairs = zip(self.names, self.features, strict=True)
        own = [(not c.whole, name) for name, c in pairs if c.topic == self.topic]
        comment = "each new value of the busiest topic makes a sample"
        return DraftLine("sample", min(own, key=lambda one: one[0])[1], comment)

    def _time(self) -> list[DraftLine]:
        # Labels by hand hold from their arrival on, by another clock than the sensor's.
        if not self.single or self.labels.learning == "hand":
            return []
        there = [c for c in self.machine.candidates() if c.topic == self.topic and c.whole and c.why]
        for c in there:
            unix = c.field.kind == "number" and c.field.low > _UNIX
            if _TIME.fullmatch(c.name) and (unix or (c.field.kind == "time" and c.field.zoned)):
                return [DraftLine("ts", c.path, "time of the measurement")]
        return []

    def _labels(self) -> list[DraftLine]:
        labels, candidate = self.labels, self.labels.candidate
        if labels.learning == "normal":
            return [
                DraftLine("task", "reconstruct", "no labels: it learns what is normal, and reports anomalies")
            ]
        classes = labels.classes if isinstance(labels.classes, int) else list(labels.classes)
        comment = "possible labels: add future ones"
        entries = [DraftLine("classes", classes, comment)] if classes else []
        if candidate is None:
            comment = f"sent by hand, each holds until the next: {self.label_command}"
            value = {"topic": self.label_topic, "hold": True}
            if not self._one_key:
                value = {"topic": "labels/+", "key": "topic:1", "hold": True}
            return [*entries, DraftLine("label", value, comment)]
        if candidate.topic == self.topic and candidate.path:
            return [*entries, DraftLine("label", candidate.path, f"in the message: {candidate.field.shown}")]
        path = {"path": candidate.path} if candidate.path else {}
        value = {"topic": candidate.topic, **path, "hold": True}
        return [*entries, DraftLine("label", value, "each label holds until the next")]

    @property
    def _one_key(self) -> bool:
        return isinstance(self._key().value, dict)

    @property
    def label_command(self) -> str:
        """How a person gives a label."""
        classes = self.labels.classes
        topic = self.label_topic if self._one_key else f"labels/{(*self.machine.keys, 'KEY')[0]}"
        return f"mosquitto_pub -t {topic} -m {1 if isinstance(classes, int) else classes[-1]}"

    @property
    def label_topic(self) -> str:
        """Return the topic on which people give labels."""
        return f"labels/{self.device}"


def _names(candidate: ProposedField) -> list[str]:
    """Names for a feature, shortest first."""
    topic, path = candidate.topic, candidate.path
    short = path.rpartition(".")[2].lower() or candidate.name
    longer = [f"{place(topic, bare=not path)[0]}_{short}", f"{topic}_{path}"]
    return [short, *(re.sub(r"[^\w.-]+", "_", name).strip("_") for name in longer)]


def _is_selection(candidate: ProposedField) -> bool:
    return bool(LABEL_DOMAINS & set(candidate.topic.split("/")))


def device_id(name: str) -> str:
    """A name that a device may have.

    >>> device_id("Küche/Fenster 2")
    'K-che-Fenster-2'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-_.")[:63] or "device"


# ---- the file ------------------------------------------------------------------------------


def document(draft: Draft, mqtt: Mapping[str, Any], source: str) -> str:
    """The text of the file; `mqtt` is its section of that name, `source` says what it was made from."""
    lines = [
        f"# Written by `edged init` from {_plain(source)}.",
        "# All keys and their meaning: docs/config.md, or `edged config schema`.",
        "",
        "device:",
        _line(
            2,
            "id",
            draft.device,
            f"part of every topic, such as edged/{draft.device}/predictions",
        ),
        "",
        "mqtt:",
        *(_line(2, key, value, _WHY_MQTT.get(key, "")) for key, value in mqtt.items()),
        "",
        "stream:",
        *_entries(draft.before_features()),
        *_features(draft),
        *_entries(draft.after_features()),
        "",
        "storage:",
        _line(2, "dir", "./state", "samples, labels and models, beside this file"),
    ]
    return "\n".join(lines) + "\n"


_WHY_MQTT = {
    "host": "the broker",
    "port": "1883 without TLS, usually 8883 with it",
    "websocket": "MQTT over a WebSocket",
    "username": "user name at the broker",
    "password_file": "file with the password in its first line",
    "tls": "encrypted; the system's CA certificates are trusted",
    "insecure": "without TLS: others on the network can read and change messages",
}


def _features(draft: Draft) -> list[str]:
    array = draft.array
    if array is not None:
        return [_line(2, "features", array.field.width, "numbers in the field `x`")]
    items = [_line(4, "-", entry.value, entry.why) for entry in draft.feature_entries()]
    reasons: dict[str, list[str]] = {}
    for one in draft.left_out:
        reasons.setdefault(one.why or "not wanted", []).append(one.name)
    left_out = [f"    # left out ({why}): {_plain(one_of(names))}" for why, names in reasons.items()]
    return ["  features:", *items, *left_out]


def _entries(entries: Sequence[DraftLine]) -> list[str]:
    return [_line(2, *entry) for entry in entries]


def _line(indent: int, key: str, value: Any, why: str) -> str:
    colon = "" if key == "-" else ":"
    text = f"{' ' * indent}{key}{colon} {inline(value)}"
    return f"{text:<{COMMENT_AT - 2}}  # {_plain(why)}" if why else text


def inline(value: Any) -> str:
    """A value in YAML on one line.

    >>> inline({"fill": "last", "flags": True}), inline(["on", "ok"])
    ('{fill: last, flags: true}', "['on', ok]")
    """
    dumped = yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True)
    return dumped.removesuffix("\n").removesuffix("\n...").strip()


def _plain(text: str) -> str:
    """Text that is safe in a comment: one line, printable."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
