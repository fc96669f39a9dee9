"""Several named streams in one configuration: each becomes a configuration of its own, the rest is shared.

An entry of `streams:` has a name and any of the sections in `OWN`, which lie over those of the same name at
the top of the file. State, topics and settings of a stream are found by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edged.config.yaml_file import Places
from edged.errors import ConfigError

KEY = "streams"
FOLDER = "streams"
"""In the state directory: one directory a stream, named as it is."""

OWN = (
    "stream", "model", "training", "drift", "anomaly", "gate", "labels", "serving", "storage", "outbox",
    "report", "weights",
)  # fmt: skip
"""Sections that a stream may have of its own."""
SHARED = {"storage.dir": "storage.dir at the top holds the state of all streams"}
"""Keys of these sections that belong to the device, each with its remedy."""
RESERVED = frozenset(
    ("status", "state", "metrics", "predictions", "events", "request", "response", "progress", "weights")
)
"""Names that are topics of the device itself."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_HINT = "write `streams: [{name: pump-1, stream: {topic: ..., features: [...]}}]`"


@dataclass(frozen=True)
class StreamEntry:
    """One entry of `streams:`: its name, the configuration with its sections laid over, and places."""

    name: str
    data: dict[str, Any]
    places: Places


def expand(data: Mapping[str, Any], places: Places, problems: list[ConfigError]) -> list[StreamEntry]:
    """Make an entry of each stream in `data`, the values of a file.

    What is wrong with names and sections goes to `problems`; such entries are left out.
    """
    given = data[KEY]
    shared = {key: value for key, value in data.items() if key != KEY}
    if not isinstance(given, list) or not given:
        problems.append(ConfigError("expected a list of streams", where=places.of(KEY), remedy=_HINT))
        return []
    found: list[StreamEntry] = []
    names: set[str] = set()
    for position, entry in enumerate(given):
        own = places.below(f"{KEY}.{position}", f"{KEY}[{position}]")
        wrong = list(_refusals(entry, Places(places.path, own), names))
        problems += wrong
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            names.add(entry["name"])
        if not wrong:
            sections = {key: value for key, value in entry.items() if key != "name" and value is not None}
            where, here = own.pop("")
            # A section that neither has is missing in the entry.
            missing = {key: (where, f"{here}.{key}") for key in OWN if key not in data}
            laid = places.over({**missing, **own})
            found.append(StreamEntry(entry["name"], overlaid(shared, sections), laid))
    return found


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one mapping over another, key by key.

    >>> overlaid({"gate": {"a": 1, "b": 2}, "log": {}}, {"gate": {"b": 3}})
    {'gate': {'a': 1, 'b': 3}, 'log': {}}
    """
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, dict) and isinstance(value, dict)
        merged[key] = overlaid(under, value) if both else value  # type: ignore[arg-type]  # both are mappings
    return merged


def chosen(names: list[str], wanted: str | None, path: Path) -> int:
    """The position of the stream `wanted` in `names`, the only one where none is named.

    Raises ConfigError, which lists the names, where none has that name, or one must be named.
    """
    if wanted in names:
        return names.index(wanted)
    if wanted is None and len(names) == 1:
        return 0
    listed = ", ".join(names)
    if wanted is None:
        raise ConfigError(
            "the configuration has several streams",
            where=str(path),
            remedy=f"add --stream with one of {listed}",
        )
    remedy = f"its streams are {listed}" if any(names) else "its only stream has no name: leave --stream out"
    raise ConfigError(f"the configuration has no stream {wanted!r}", where=str(path), remedy=remedy)


def _refusals(entry: Any, places: Places, names: set[str]) -> Iterator[ConfigError]:
    if not isinstance(entry, dict):
        yield ConfigError("expected a mapping with a name and sections", where=places.of(""), remedy=_HINT)
        return
    name = entry.get("name")
    where = places.of("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problem = "this key is required" if name is None else f"{name!r} is not a valid stream name"
        remedy = "start with one of a-z or 0-9, `_` and `-` can follow; at most 63 characters"
        yield ConfigError(problem, where=where, remedy=remedy)
    elif name in RESERVED:
        yield ConfigError(
            f"{name!r} is a topic of the device itself", where=where, remedy="choose another name"
        )
    elif name in names:
        yield ConfigError(f"there is another stream {name!r}", where=where, remedy="give each its own name")
    for key in entry:
        if key not in OWN and key != "name":
            remedy = (
                f"a stream has name, {', '.join(OWN)}; all other keys belong at the top, for the whole device"
            )
            yield ConfigError("unknown key", where=places.of(str(key)), remedy=remedy)
    for dotted, remedy in SHARED.items():
        section, key = dotted.split(".")
        if isinstance(entry.get(section), dict) and key in entry[section]:
            yield ConfigError("this key belongs to the device", where=places.of(dotted), remedy=remedy)
