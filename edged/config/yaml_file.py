"""The values in a file of YAML, and the place of each: its line, or what lies over the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from edged.errors import ConfigError

Place = tuple[str, str]
"""File and line, or another source of a value; and the name of its key there, which may be empty."""


class Places:
    """Places of the keys of the file at `path`, by dotted key; the empty key is the whole."""

    def __init__(self, path: Path, found: Mapping[str, Place]) -> None:
        self.path = path
        self._found = {"": (str(path), ""), **found}

    def over(self, others: Mapping[str, Place]) -> Places:
        """Return these places, with `others` in front of them."""
        return Places(self.path, {**self._found, **others})

    def below(self, above: str, name: str) -> dict[str, Place]:
        """The places of a section and its keys as if it were the whole, under another name."""
        inner = {
            key.removeprefix(f"{above}."): place
            for key, place in self._found.items()
            if key.startswith(f"{above}.")
        }
        shown = {key: (where, f"{name}.{key}") for key, (where, _) in inner.items()}
        return {"": (self._found[above][0], name), **shown}

    def of(self, dotted: str) -> str:
        """The place of a key, else that of a key below it, else that of the nearest section above it."""
        if dotted in self._found:
            return self._text(dotted)
        inner = next((key for key in self._found if key.startswith(f"{dotted}.")), None)
        if inner is not None:
            return self._text(inner)
        above, rest = dotted, ""
        while above and above not in self._found:
            above, _, key = above.rpartition(".")
            rest = f"{key}.{rest}" if rest else key
        return self._text(above, rest)

    def _text(self, dotted: str, *more: str) -> str:
        where, name = self._found[dotted]
        name = ".".join(filter(None, (name, *more)))
        return f"{where}: {name}" if name else where

    def line(self, where: str) -> int:
        """The line of the file that a place names; 0 where it names none."""
        line = where.removeprefix(f"{self.path}:").partition(":")[0]
        return int(line) if line.isdecimal() else 0


def read_yaml(path: Path, what: str, remedy: str) -> tuple[Places, dict[str, Any]]:
    """The mapping in a YAML file, and the places of its keys.

    Raises ConfigError when `what` cannot be read, is not UTF-8 or YAML, gives a key twice, or is no mapping;
    then `remedy`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(
            f"cannot read {what}: {problem.strerror}", where=str(path), remedy="name an existing YAML file"
        ) from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{what} is not UTF-8 text", where=str(path)) from problem
    return parse_yaml(text, path, what, remedy)


def parse_yaml(text: str, path: Path, what: str, remedy: str) -> tuple[Places, dict[str, Any]]:
    """The mapping in a text of YAML, as `read_yaml` returns it; `path` is named in errors."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except RecursionError:
        raise ConfigError(f"{what} is nested too deeply", where=str(path)) from None
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        reason = getattr(problem, "problem", None) or "cannot be parsed"
        raise ConfigError(f"not valid YAML: {reason}", where=f"{path}{line}") from problem
    if not isinstance(data, dict):
        raise ConfigError(f"{what} must be a mapping", where=str(path), remedy=remedy)
    found: dict[str, Place] = {}
    for dotted, node in _keys(root):
        place = f"{path}:{node.start_mark.line + 1}", dotted
        if dotted in found:
            raise ConfigError("this key is given twice", where=": ".join(place), remedy="remove one of them")
        found[dotted] = place
    return Places(path, found), data


def _keys(node: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys within a node, each with the node that holds its line; positions are keys of lists."""
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(node, yaml.MappingNode):
        pairs = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(str(position), value, value) for position, value in enumerate(node.value)]
    for name, key, value in pairs:
        yield f"{above}{name}", key
        yield from _keys(value, f"{above}{name}.")
