"""Which topics belong to one machine, and which machines are alike. No I/O."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edged.errors import ConfigError
from edged.mqtt.topics import matches
from edged.workbench.proposal.survey import MOST_WORDS, SeenField, Survey, Topic, merged

LABEL_DOMAINS = frozenset({"input_select", "select"})
DOMAINS = LABEL_DOMAINS | {
    "sensor", "binary_sensor", "switch", "light", "number", "input_number", "input_boolean", "fan", "cover",
    "climate", "valve", "lock", "water_heater", "humidifier",
}  # fmt: skip
_HOME_ASSISTANT = frozenset({"homeassistant", "hass", "ha", "statestream"})
_TRAILING = frozenset({"state", "value", "data", "telemetry", "upload", "up"})

_NO_READINGS = re.compile(
    r"\$.*|zigbee2mqtt/bridge(/.*)?|homeassistant/(.*/)?config|homeassistant/status|cmnd/.*|(tele|stat)/[^/]+/"
    r"(LWT|STATE|INFO\d*|RESULT|STATUS\d*|LOGGING|MARGINS|HASS_STATE)|(.*/)?(availability|LWT|online|announce|"
    r"set|get|command|cmnd|rpc|debug|will|birth)"
)
_COUNTS = "a counter: `change: rate` would make it a rate"
A_WORD = "a word: `values` would make it a number"
_LEFT_OUT = tuple(
    (re.compile(pattern, re.IGNORECASE), why)
    for pattern, why in (
        (r"(.*[._])?(linkquality|lqi|rssi|snr|signal\w*|wifi\w*)([._].*)?", "radio signal"),
        (r"(.*[._])?batt(ery)?([._]?\w*)", "battery of the sensor"),
        (r"(.*\.)?(update|update_available|installed_version|latest_version|firmware|fw|ota)([._].*)?",
         "firmware"),
        (r"(rxInfo|txInfo|deviceInfo|device|aenergy|ret_aenergy|errors?|.*\]\.error|adr|dr|fPort)(\..*)?",
         "about the device itself"),
        (r"(.*[._])?(id|uid|uuid|mac|ip|serial|\w*eui|devaddr|index|row)", "an id"),
        (r"(.*[._])?(seq\w*|counter|fcnt|uptime\w*|heap\w*|boot\w*|total\w*|today|yesterday|cfg_rev)",
         _COUNTS),
        (r"(.*[._])?(tF|fahrenheit)", "same value in another unit"),
        (r"(.*[._])?(child_lock|power_on_behavior|calibration|\w+_calibration|\w+_precision|brightness_max)",
         "a setting"),
    )
)  # fmt: skip
_TIME = re.compile(r"(.*[._])?(timestamp|time|ts|t|date|datetime|last_\w+|epoch|unixtime)", re.IGNORECASE)
_LABEL = re.compile(
    r"(.*[._])?(labels?|class|target|condition|status|state|mode|phase|activity|fault|quality|result|verdict)",
    re.IGNORECASE,
)
_CLEAR_LABEL = re.compile(r"(.*[._])?(labels?|class|target|y)", re.IGNORECASE)
_EPOCH = 1e8  # a number below is no Unix time
_ALIKE = 0.6  # share of the fields that alike machines have in common


@dataclass(frozen=True)
class ProposedField:
    """A field of a topic, or of alike topics: then `topic` is a filter.

    `why` says why it is no feature; empty if it is one. `label` tells that it looks like a label.
    """

    topic: str
    field: SeenField
    name: str
    why: str = ""
    label: bool = False
    whole: bool = False  # every message has a value

    @property
    def path(self) -> str:
        """Where the value is in a message; empty where the payload is the value."""
        return self.field.path


@dataclass(frozen=True)
class Machine:
    """Topics that belong together.

    `level` of a topic names the machine, None where none does; `keys` are the names of alike machines.
    """

    name: str
    topics: tuple[Topic, ...]
    level: int | None = None
    keys: tuple[str, ...] = ()

    @property
    def live(self) -> int:
        """Messages that came while we listened."""
        return sum(topic.live for topic in self.topics)

    @property
    def lines(self) -> bool:
        """Whether its topics carry InfluxDB's line protocol."""
        return any(topic.lines for topic in self.topics)

    @property
    def filters(self) -> list[str]:
        """The topics; for alike machines a filter in place of each of theirs."""
        return list(dict.fromkeys(self._place(topic) for topic in self.topics))

    def _place(self, topic: Topic) -> str:
        return _pattern(topic.name, self.level) if self.keys else topic.name

    def candidates(self) -> list[ProposedField]:
        """All fields, those of alike machines once, with names that are all different."""
        found: dict[tuple[str, str], list[tuple[Topic, SeenField]]] = defaultdict(list)
        for topic in self.topics:
            for known in topic.fields.values():
                found[self._place(topic), known.path].append((topic, known))
        every = [self._candidate(where, of) for (where, _), of in found.items()]
        names = Counter(one.name for one in every)
        return [one if names[one.name] == 1 else replace(one, name=_longer(one)) for one in every]

    def _candidate(self, where: str, of: Sequence[tuple[Topic, SeenField]]) -> ProposedField:
        topic, known = of[0][0], merged([field for _, field in of])
        name = known.path or _bare_name(where, self.name)
        label = _looks_like_label(name, known, topic)
        whole = all(topic.whole(known.path) for topic, _ in of)
        return ProposedField(where, known, name, _why_not(name, known, label=label), label, whole)

    def rate(self, place: str) -> str:
        """How often messages come on a topic, or on all that a filter of alike machines covers."""
        topics = [topic for topic in self.topics if self._place(topic) == place]
        per_second = sum(1 / topic.interval for topic in topics if topic.interval)
        if per_second >= 1:
            return f"{per_second:.3g}/s"
        if per_second:
            return f"every {1 / per_second:.3g} s"
        live = sum(topic.live for topic in topics)
        return "retained" if not live else f"{live} so far"

    @property
    def busy(self) -> float:
        """How much it says: features in each message, for all messages; a retained one counts little."""
        features = Counter(c.topic for c in self.candidates() if not c.why)
        return sum((topic.live + 0.1) * features[self._place(topic)] for topic in self.topics)


def _looks_like_label(name: str, known: SeenField, topic: Topic) -> bool:
    few = 2 <= len(known.words) <= MOST_WORDS
    if known.kind == "word":
        selected = topic.bare and bool(LABEL_DOMAINS & set(topic.name.split("/")[:-1]))
        return few and (selected or _LABEL.fullmatch(name) is not None)
    beside = topic.fields.get(f"{name[:-1]}x") if name.endswith("y") else None
    axis = beside is not None and beside.kind == "number"
    return known.kind in ("number", "on/off") and _CLEAR_LABEL.fullmatch(name) is not None and not axis


def _why_not(name: str, known: SeenField, *, label: bool) -> str:
    """Why a field is no feature; empty where it is one."""
    kind = known.kind
    for pattern, why in _LEFT_OUT:
        if pattern.fullmatch(name):
            return why
    if label:
        return "looks like a label"
    if (
        kind == "number"
        and _TIME.fullmatch(name)
        and (known.low > _EPOCH or (known.rises and not known.falls))
    ):
        return "a time"
    if kind in ("number", "on/off"):
        return _COUNTS if known.counts_up else ""
    return {
        "nothing": "no value yet",
        "time": "a time",
        "word": A_WORD,
        "numbers": "" if name == "x" else "an array: its numbers are NAME.0, NAME.1, …",
    }.get(kind, "text")


def _longer(candidate: ProposedField) -> str:
    """A name that the same field of another topic does not have."""
    levels = [level for level in candidate.topic.split("/") if level not in (*_TRAILING, "+")]
    return f"{levels[-1]}_{candidate.name}" if candidate.path else "_".join(levels)


def _bare_name(topic: str, machine: str) -> str:
    """The name of a topic's value: its last level that means something, without the machine's name."""
    levels = topic.split("/")
    while len(levels) > 1 and levels[-1] in (*_TRAILING, "+"):
        levels.pop()
    return levels[-1].removeprefix(f"{machine}_") or levels[-1]


def _pattern(topic: str, level: int | None) -> str:
    if level is None:
        return topic
    levels = topic.split("/")
    return "/".join([*levels[:level], "+", *levels[level + 1 :]])


# ---- from topics to machines ---------------------------------------------------------------


def place(topic: str, *, bare: bool) -> tuple[str, int | None]:
    """The machine that a topic tells of, and the level that names it; None where more than a level does.

    >>> place("tele/plug/SENSOR", bare=False), place("plant/press-7/temp", bare=True)
    (('plug', 1), ('press-7', 1))
    """
    levels = topic.split("/")
    first, count = levels[0], len(levels)
    if first == "zigbee2mqtt" and count > 1:
        return "/".join(levels[1:]), 1 if count == 2 else None
    if first in ("tele", "stat", "shellies", "telegraf", "neuron") and count > 2:
        return levels[1], 1
    if count == 4 and levels[1] in DOMAINS and levels[3] == "state":
        return levels[0], 0
    if count > 2 and levels[1] == "status":
        return first, 0
    if first == "application" and "device" in levels[:-1]:
        at = levels.index("device") + 1
        return levels[at], at
    core = levels[:-1] if count > 1 and levels[-1] in _TRAILING else levels
    at = max(0, len(core) - 2) if bare else len(core) - 1
    return core[at], at


def _entity(topic: str) -> str | None:
    """The object id of an entity of Home Assistant's statestream; None for any other topic.

    >>> _entity("homeassistant/sensor/room_temperature/state")
    'room_temperature'
    """
    levels = topic.split("/")
    if len(levels) < 4 or levels[-3] not in DOMAINS or levels[-1] != "state":
        return None
    return levels[-2] if levels[0] in _HOME_ASSISTANT or len(levels) > 4 else None


def carries_readings(topic: str, root: str) -> bool:
    """Whether a topic may be a sensor's: not of commands, availability, discovery or edged itself."""
    if topic.startswith(f"{root}/"):
        return False
    levels = topic.split("/")
    attribute = levels[0] in _HOME_ASSISTANT and (levels[-1] != "state" or _entity(topic) is None)
    return not attribute and _NO_READINGS.fullmatch(topic) is None


def machines(survey: Survey, root: str = "edged") -> list[Machine]:
    """The machines with at least one usable feature, busiest first; alike ones together as one.

    `root` is the first level of edged's own topics.
    """
    topics = [t for t in survey.topics.values() if carries_readings(t.name, root) and t.fields]
    entities: dict[str, list[Topic]] = defaultdict(list)
    placed: dict[tuple[str, str], list[Topic]] = defaultdict(list)
    levels: dict[tuple[str, str], int | None] = {}
    for topic in topics:
        entity = _entity(topic.name)
        if entity is not None:
            entities[entity.split("_")[0]].append(topic)
            continue
        name, level = place(topic.name, bare=topic.bare)
        system = "tasmota" if topic.name.split("/")[0] in ("tele", "stat") else ""
        above = system or "/".join(topic.name.split("/")[: level or 0])
        above += " in lines" * (topic.lines > 0)
        placed[above, name].append(topic)
        levels[above, name] = level
    found = [Machine(name, tuple(of), levels[above, name]) for (above, name), of in placed.items()]
    found += [Machine(_common(of), tuple(of)) for of in entities.values()]
    usable = [machine for machine in found if any(not c.why for c in machine.candidates())]
    return sorted(_families(usable, topics), key=lambda machine: (-machine.busy, machine.name))


def _common(topics: Sequence[Topic]) -> str:
    """The words that the object ids of these entities begin with."""
    words = [str(_entity(topic.name)).split("_") for topic in topics]
    same = 0
    while all(len(w) > same + (len(words) > 1) and w[same] == words[0][same] for w in words):
        same += 1
    return "_".join(words[0][: max(1, same)])


def _families(found: Sequence[Machine], topics: Sequence[Topic]) -> list[Machine]:
    """Machines of the same topics and much the same fields as one; others as they are."""
    alike: dict[object, list[list[Machine]]] = defaultdict(list)
    for machine in found:
        places = frozenset(_pattern(topic.name, machine.level) for topic in machine.topics)
        families = alike[machine.name if machine.level is None else places]
        near = next((family for family in families if _are_alike(family[0], machine)), None)
        families.append([machine]) if near is None else near.append(machine)
    return [one for families in alike.values() for family in families for one in _as_one(family, topics)]


def _are_alike(one: Machine, other: Machine) -> bool:
    ours, theirs = ({c.name for c in m.candidates() if not c.why} for m in (one, other))
    return len(ours & theirs) >= _ALIKE * len(ours | theirs)


def _as_one(family: Sequence[Machine], topics: Sequence[Topic]) -> list[Machine]:
    """Alike machines as one, unless its filters would cover topics of others."""
    first = family[0]
    above = "/".join(first.topics[0].name.split("/")[: first.level or 0])
    own = tuple(topic for machine in family for topic in machine.topics)
    one = Machine(above or first.name, own, first.level, tuple(machine.name for machine in family))
    covered = sum(any(matches(f, topic.name) for f in one.filters) for topic in topics)
    return [one] if len(family) > 1 and covered == len(own) else list(family)


def joined(several: Sequence[Machine]) -> Machine:
    """These machines as one: all their topics, under the name of the first.

    Raises ConfigError where only some of them send line protocol: a stream reads one format.
    """
    if len(several) == 1:
        return several[0]
    ways = {machine.lines: machine.topics[0].name for machine in several}
    if len(ways) > 1:
        what = f"a stream reads one format: {ways[True]} is line protocol, {ways[False]} is not"
        raise ConfigError(what, where="init", remedy="choose topics of one format")
    return Machine(several[0].name, tuple(topic for machine in several for topic in machine.topics))
