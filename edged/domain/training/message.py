"""Messages between the processes of one device, and records on its disk: dataclasses, to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from typing_extensions import Self

from edged.domain.json_fields import JsonObject, Rule
from edged.errors import TrainingError

SCALARS = (int, str, bool, float)
# Types of fields, and of the JSON values of other types that they are made of.
SIMPLE = {(Path, str), (float, int)}
SHOWN = 40  # characters of a wrong value that an error quotes


class Message:
    """Base of frozen dataclasses that become JSON objects.

    Fields are numbers, texts, paths, literals, optional ones (`X | None`), lists and tuples of one kind,
    sequences that are tuples, mappings by name, and further dataclasses; `object` is any JSON value. Values
    of `Annotated[X, Rule]` keep a rule: those of messages from outside do, see `edged.domain.json_fields`.
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
        try:
            made: Self = _read_fields(cls, values)
        except _Misfit as problem:
            raise TrainingError(problem.what, where=f"{cls.__name__}{problem.place}") from None
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
        problem = _Misfit.of(f"one of {', '.join(known)}", name)
        raise TrainingError(problem.what, where="type of the message")
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


class _Misfit(Exception):  # noqa: N818  never leaves this module
    """A value that is not what its field holds, and its place in the message."""

    def __init__(self, what: str, place: str = "") -> None:
        self.what, self.place = what, place

    @classmethod
    def of(cls, expected: str, value: object) -> Self:
        return cls(f"expected {expected}, got {value!r:.{SHOWN}}")

    def within(self, place: str) -> Self:
        self.place = place + self.place
        return self


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return a function from a JSON value to a value of this type, which raises _Misfit."""
    origin, inner = get_origin(kind), get_args(kind)
    read: Any = partial(_read_plain, kind)
    if origin is Annotated:
        read = partial(_read_by_rule, _reader(inner[0]), inner[1])
    elif origin in (Union, UnionType):
        read = partial(_read_union, inner, _reader(next(one for one in inner if one is not NoneType)))
    elif origin in (tuple, Sequence, list):
        read = partial(_read_list, list if origin is list else tuple, inner[0], _reader(inner[0]))
    elif origin is Mapping:
        read = partial(_read_mapping, _reader(inner[1]))
    elif origin is Literal:
        rule = Rule(f"one of {', '.join(map(str, inner))}", inner.__contains__)
        read = partial(_read_by_rule, _reader(object), rule)
    elif is_dataclass(kind):
        own = getattr(kind, "from_json", None)
        plain = own is None or own.__func__ is Message.from_json.__func__  # type: ignore[attr-defined]
        read = partial(_read_fields, kind) if plain else own
    return cast("Callable[[Any], Any]", read)


def _read_union(kinds: Collection[Any], first: Callable[[Any], Any], value: Any) -> Any:
    return value if value is None or type(value) in kinds else first(value)


def _read_by_rule(read: Callable[[Any], Any], rule: Rule, value: Any) -> Any:
    try:
        made = read(value)
    except _Misfit as problem:
        raise (problem if problem.place else _Misfit.of(rule.expected, value)) from None
    if not rule.holds(made):
        raise _Misfit.of(rule.expected, value)
    return made


def _read_list(make: Callable[[list[Any]], Any], kind: Any, read: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, list):
        raise _Misfit.of("a list", value)
    if kind in SCALARS and set(map(type, value)) <= {kind}:
        return make(value)  # thousands of offsets, in the daemon
    made: list[Any] = []
    try:
        for item in value:
            made.append(read(item))  # noqa: PERF401  what was made counts after an error
    except _Misfit as problem:
        raise problem.within(f"[{len(made)}]") from None
    return make(made)


def _read_mapping(read: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, dict):
        raise _Misfit.of("an object", value)
    return {name: _read_at(f".{name}", read, item) for name, item in value.items()}


def _read_fields(kind: Any, values: Any) -> Any:
    if not isinstance(values, dict):
        raise _Misfit.of("an object", values)
    found = {}
    for name, required, read in _fields_of(kind):
        if name in values:
            found[name] = _read_at(f".{name}", read, values[name])
        elif required:
            raise _Misfit("the field is missing", f".{name}")
    return kind(**found)


@cache
def _fields_of(kind: Any) -> list[tuple[str, bool, Callable[[Any], Any]]]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        (
            field.name,
            field.default is MISSING and field.default_factory is MISSING,
            _reader(hints[field.name]),
        )
        for field in fields(kind)
    ]


def _read_at(place: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except _Misfit as problem:
        raise problem.within(place) from None


def _read_plain(kind: Any, value: Any) -> Any:
    if kind is object or type(value) is kind:
        return value
    if (kind, type(value)) in SIMPLE:
        with suppress(OverflowError):  # a whole number that is too large
            return kind(value)
    raise _Misfit.of(getattr(kind, "__name__", str(kind)), value)
