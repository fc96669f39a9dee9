"""The topics of one device, and MQTT's own rules about topics and filters."""

from __future__ import annotations

from collections.abc import Sequence

from edged.domain.topic_filter import MAX_BYTES, filter_problem
from edged.errors import ConfigError

_UNSAFE = str.maketrans(dict.fromkeys("+#/\0", "-"))


class Topics:
    """All topics under `root`, which is `<mqtt.root>/<device id>`.

    `status` is retained, and the topic of the last will; `metrics` are periodic counters and gauges;
    `predictions` has one a message. `requests` and `incoming_weights` are the filters that cover the topics
    of all commands, and of all chunks of transfers; `slashed_requests` covers commands whose dot the broker
    has turned into a slash.

    >>> Topics("edged/press-7").state("model")
    'edged/press-7/state/model'
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.status = f"{root}/status"
        self.metrics = f"{root}/metrics"
        self.predictions = f"{root}/predictions"
        self.events = f"{root}/events"
        self.requests = f"{root}/request/+"
        self.slashed_requests = f"{root}/request/+/+"
        self.incoming_weights = f"{root}/weights/in/+/+"

    def state(self, name: str) -> str:
        """Retained present state: model, training, drift, buffer or config."""
        return f"{self.root}/state/{name}"

    def request(self, command: str) -> str:
        """Topic of one command."""
        return f"{self.root}/request/{command}"

    def response(self, command: str) -> str:
        """Topic of the answer to a command."""
        return f"{self.root}/response/{command}"

    def progress(self, transaction: str) -> str:
        """Progress of a long command; characters that no topic level may hold become `-`."""
        return f"{self.root}/progress/{transaction.translate(_UNSAFE) or '-'}"

    def weights(self, version: str | int, part: str | int) -> str:
        """One part of a weight update: `manifest` or a chunk number."""
        return f"{self.root}/weights/{version}/{part}"

    def incoming(self, transfer: str) -> str:
        """What the topics of a transfer's chunks begin with; a chunk's number follows."""
        return f"{self.root}/weights/in/{transfer}"


def matches(pattern: str, topic: str) -> bool:
    """Whether a topic is covered by a filter (MQTT 5.0 section 4.7).

    >>> matches("sensors/+/vib/#", "sensors/press-7/vib"), matches("#", "$SYS/broker/load")
    (True, False)
    """
    levels = _levels(pattern)
    names = topic.split("/")
    if topic.startswith("$") and levels[0] in ("+", "#"):
        return False
    for at, level in enumerate(levels):
        if level == "#":
            return True
        if at >= len(names) or level not in ("+", names[at]):
            return False
    return len(levels) == len(names)


def covers(wide: str, narrow: str) -> bool:
    """Whether every topic of the filter `narrow` is one of `wide`, too.

    >>> covers("a/#", "a/+/b"), covers("a/+", "a/#"), covers("+/b", "a/b")
    (True, False, True)
    """
    ours, theirs = _levels(wide), _levels(narrow)
    for at, level in enumerate(ours):
        if level == "#":
            return True
        if at >= len(theirs) or theirs[at] == "#" or level not in ("+", theirs[at]):
            return False
    return len(ours) == len(theirs)


def widest(filters: Sequence[str]) -> list[str]:
    """Return the filters that no other filter covers.

    >>> widest(["q/#", "q/+", "q/a", "r"])
    ['q/#', 'r']
    """
    distinct = list(dict.fromkeys(filters))
    return [f for f in distinct if not any(other != f and covers(other, f) for other in distinct)]


def specificity(pattern: str) -> tuple[int, ...]:
    """Sorts filters: the most specific first, level by level: name, then `+`, then `#`.

    >>> sorted(["a/#", "a/+", "a/b"], key=specificity)
    ['a/b', 'a/+', 'a/#']
    """
    rank = {"+": 1, "#": 2}
    return tuple(rank.get(level, 0) for level in _levels(pattern))


def check_filter(pattern: str) -> None:
    """Reject text that is not a valid topic filter.

    Raises ConfigError naming the filter and what is wrong with it.
    """
    problem = filter_problem(pattern)
    if problem is not None:
        raise ConfigError(problem, where=pattern[:80] or "topic", remedy="for example sensors/+/vibration")


def is_topic(topic: str) -> bool:
    """Whether a message can be published to this topic.

    >>> is_topic("a/b"), is_topic("a/+"), is_topic("")
    (True, False, False)
    """
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        return False
    try:
        return len(topic.encode()) <= MAX_BYTES
    except UnicodeEncodeError:
        return False


def is_one_of(topic: str, filters: Sequence[str]) -> bool:
    """Whether messages can be published to this topic, and one of the filters covers it."""
    return is_topic(topic) and any(matches(pattern, topic) for pattern in filters)


def only_topic(filters: Sequence[str]) -> str | None:
    """The one topic that these filters cover; None where they cover several.

    >>> only_topic(["a/b"]), only_topic(["a/+"])
    ('a/b', None)
    """
    return filters[0] if len(filters) == 1 and is_topic(filters[0]) else None


def _levels(pattern: str) -> list[str]:
    levels = pattern.split("/")
    if levels[0] == "$share" and len(levels) > 2:
        return levels[2:]
    return levels
