"""Messages between the processes of one device, and records on its disk: dataclasses, to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from edged.domain.json_fields import JsonObject
from edged.errors import TrainingError

if TYPE_CHECKING:
    from typing_extensions import Self


SCALARS = (int, str, bool, float)
# Types of fields, and of the JSON values of other types that they are made of.
SIMPLE = {(Path, str), (float, int)}
SHOWN = 40  # characters of a wrong value that an error quotes


class Message:
    """Base of frozen dataclasses that become JSON objects.

    Fields are numbers, texts, paths, literals, optional ones (`X | None`), tuples of one kind or sequences
    that are tuples, mappings by name, and further dataclasses; `object` is any JSON value.
    """

    def to_json(self) -> JsonObject:
        """Return the fields as JSON values."""
        return self.without()

    def without(self, *names: str) -> JsonObject:
        """Return the fields as JSON values, except these."""
        return {name: _plain(value) for name, value in vars(self).items() if name not in names}

    @classmethod
    def from_json(cls, values: object) -> Self:
        """Read the message from JSON values; unknown fields are ignored.

        Raises TrainingError when it is not an object, lacks a field without a default, or a value has another
        type.
        """
        if not isinstance(values, dict):
            raise _wrong(cls.__name__, values, cls.__name__)
        made: Self = _read_fields(cls, values, cls.__name__)
        return made


class SparseMessage(Message):
    """Base of those whose JSON leaves out optional fields (of default None) that are None."""

    def to_json(self) -> JsonObject:
        """Return the fields that are known as JSON values."""
        optional = {field.name for field in fields(self) if field.default is None}  # type: ignore[arg-type]
        known = super().to_json().items()
        return {name: value for name, value in known if value is not None or name not in optional}


def encode(message: Message) -> bytes:
    """Return one line of JSON that names the message's class as `type`."""
    tagged = {"type": type(message).__name__, **message.to_json()}
    return json.dumps(tagged, separators=(",", ":")).encode() + b"\n"


def decode(values: object, kinds: Iterable[type[Message]]) -> Message:
    """Read the JSON object of a line from `encode`, one of `kinds`; TrainingError when it is not."""
    known = {kind.__name__: kind for kind in kinds}
    name = values.get("type") if isinstance(values, dict) else values
    if not isinstance(name, str) or name not in known:
        raise _wrong(f"one of {', '.join(known)}", name, "type of the message")
    return known[name].from_json(values)


def _plain(value: Any) -> Any:
    if type(value) in SCALARS:
        return value
    if isinstance(value, Message):
        return value.to_json()
    if is_dataclass(value) or isinstance(value, Mapping):
        items = value if isinstance(value, Mapping) else vars(value)
        return {name: _plain(inner) for name, inner in items.items()}
    if isinstance(value, tuple):
        simple = set(map(type, value)) <= {*SCALARS}
        return list(value) if simple else [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def _read(kind: Any, value: object, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        known = value is None or type(value) in inner
        return value if known else _read(next(k for k in inner if k is not NoneType), value, where)
    if origin in (tuple, Sequence) and isinstance(value, list):
        simple = inner[0] in SCALARS and set(map(type, value)) <= {inner[0]}
        items = value if simple else (_read(inner[0], v, f"{where}[{at}]") for at, v in enumerate(value))
        return tuple(items)  # thousands of offsets, in the daemon
    if origin is Mapping and isinstance(value, dict):
        return {name: _read(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    if is_dataclass(kind) and isinstance(value, dict):
        own = vars(kind).get("from_json")
        return _read_fields(kind, value, where) if own is None else own.__func__(kind, value)
    if (kind, type(value)) in SIMPLE:
        return kind(value)
    if kind is object or type(value) is kind or (origin is Literal and value in inner):
        return value
    raise _wrong(kind.__name__ if isinstance(kind, type) and not inner else str(kind), value, where)


def _read_fields(kind: Any, values: Mapping[str, object], where: str) -> Any:
    hints, found = _hints(kind), {}
    for field in fields(kind):
        if field.name in values:
            found[field.name] = _read(hints[field.name], values[field.name], f"{where}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise TrainingError("the field is missing", where=f"{where}.{field.name}")
    return kind(**found)


_hints = cache(get_type_hints)


def _wrong(expected: str, value: object, where: str) -> TrainingError:
    return TrainingError(f"expected {expected}, got {value!r:.{SHOWN}}", where=where)
