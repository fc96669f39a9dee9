"""Fields of JSON from outside, of messages and files, read one by one: what does not fit is named."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields as fields_of
from functools import cache, partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from edged.errors import EdgedError, RejectedUpdateError

JsonObject = Mapping[str, object]
"""A JSON object that is passed on as it is, to print, send or store; who reads its fields needs a type."""

MALFORMED = "malformed"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
LARGEST = 2**53
_HASH = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{32}")
_KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "an object", bool: "true or false"}
_T = TypeVar("_T")


def _reject(reason: str, what: str, where: str) -> EdgedError:
    return RejectedUpdateError(reason, what, where=where)


def read_object(payload: bytes, limit: int, where: str) -> JsonFields:
    """The fields of a JSON object of at most `limit` bytes.

    Raises RejectedUpdateError when it is none, too large, or holds NaN or infinity, which are no JSON.
    """
    if len(payload) > limit:
        raise RejectedUpdateError(MALFORMED, f"{len(payload)} bytes, at most {limit} are read", where=where)
    try:
        values = _DECODER.decode(payload.decode(json.detect_encoding(payload)))
    except (ValueError, RecursionError):
        raise RejectedUpdateError(MALFORMED, "this is no JSON", where=where) from None
    return JsonFields(values, where)


def _no_number(text: str) -> float:
    raise ValueError(text)


_DECODER = json.JSONDecoder(parse_constant=_no_number)


class JsonFields:
    """One JSON object; each method gives a field of one kind or raises what `refuse` makes.

    `values`: the object; also an attribute, for what is taken as it is. `where`: what it is part of, for
    errors. `refuse`: the error for a reason (a word for counters), what is wrong, and where; else
    RejectedUpdateError.
    """

    def __init__(
        self, values: Any, where: str, refuse: Callable[[str, str, str], EdgedError] = _reject
    ) -> None:
        self._where, self._refuse = where, refuse
        if not isinstance(values, dict):
            raise refuse(MALFORMED, "this is no JSON object", where)
        self.values: Mapping[str, Any] = values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def get(self, name: str, kind: type[_T]) -> _T:
        """A field of this kind; true and false are no numbers."""
        value = self.values.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(name, _KINDS[kind])
        return value

    def inner(self, name: str) -> JsonFields:
        """The object in a field."""
        return JsonFields(self.values.get(name), f"{self._where}.{name}", self._refuse)

    def each(self, name: str) -> tuple[JsonFields, ...]:
        """The objects in a list."""
        listed = enumerate(self.get(name, list))
        return tuple(JsonFields(item, f"{self._where}.{name}[{i}]", self._refuse) for i, item in listed)

    def optional(self, name: str, read: Callable[[str], Any], default: Any = None) -> Any:
        """What `read` makes of a field; `default` where it is null or absent."""
        return default if self.values.get(name) is None else read(name)

    def name(self, name: str) -> str:
        """A name of a device or fleet, which is one level of a topic."""
        return self._matching(name, NAME, "a name")

    def names(self, name: str) -> tuple[str, ...]:
        """A list of names, none of them twice."""
        found = self.texts(name)
        if len(set(found)) != len(found) or not all(NAME.fullmatch(text) for text in found):
            raise self.wrong(name, "a list of names, each once")
        return found

    def digest(self, name: str) -> str:
        """A SHA-256 in lower hexadecimal digits."""
        return self._matching(name, _HASH, "a SHA-256")

    def token(self, name: str) -> str:
        """16 bytes in lower hexadecimal digits."""
        return self._matching(name, _ID, "16 bytes in hexadecimal")

    def text(self, name: str, longest: int = 200) -> str:
        """Read a text of at most `longest` characters."""
        value = self.values.get(name)
        if not isinstance(value, str) or len(value) > longest:
            raise self.wrong(name, f"a text of at most {longest} characters")
        return value

    def texts(self, name: str, longest: int = 200) -> tuple[str, ...]:
        """A list of short texts."""
        value = self.get(name, list)
        if not all(isinstance(text, str) and len(text) <= longest for text in value):
            raise self.wrong(name, f"a list of texts of at most {longest} characters")
        return tuple(value)

    def one_of(self, name: str, known: tuple[str, ...]) -> str:
        """Read a text that is one of the given words."""
        value = self.values.get(name)
        if value not in known:
            raise self.wrong(name, "one of " + ", ".join(known))
        return str(value)

    def count(self, name: str, least: int = 0, most: int = LARGEST, reason: str = MALFORMED) -> int:
        """A whole number from `least` to `most`."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}", reason)
        return value

    def number(self, name: str, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number from `least` to `most`."""
        value = _finite(self.values.get(name))
        if value is None or not least <= value <= most:
            raise self.wrong(name, f"a finite number from {least:g} to {most:g}")
        return value

    def wrong(self, name: str, expected: str, reason: str = MALFORMED) -> EdgedError:
        """The refusal of a field, with the begin of what is there."""
        found = "nothing" if name not in self.values else repr(self.values[name])[:40]
        return self._refuse(reason, f"expected {expected}, got {found}", f"{self._where}.{name}")

    def _matching(self, name: str, pattern: re.Pattern[str], what: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise self.wrong(name, what)
        return value


def read_dataclass(kind: Callable[..., _T], values: JsonFields) -> _T:
    """A dataclass from its object; the annotation of a field says how it is read, and none may be missing.

    `Annotated[X, read]` calls `read` with the object and the name of the field; a literal is
    one of its words, `X | None` may be null or absent, and what is no bool is a dataclass too.
    """
    return kind(*[read(values, name) for name, read in _readers(kind)])


@cache
def _readers(kind: Any) -> list[tuple[str, Callable[[JsonFields, str], Any]]]:
    hints = get_type_hints(kind, include_extras=True)
    return [(field.name, _reader(hints[field.name])) for field in fields_of(kind)]


def _reader(hint: Any) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        return hint.__metadata__[0]
    if origin in (Union, UnionType):
        read = _reader(get_args(hint)[0])
        return lambda values, name: values.optional(name, partial(read, values))
    if origin is Literal:
        return partial(JsonFields.one_of, known=get_args(hint))
    if hint is bool:
        return partial(JsonFields.get, kind=bool)
    return lambda values, name: read_dataclass(hint, values.inner(name))


# How fields of dataclasses are read.
Name = Annotated[str, JsonFields.name]
Token = Annotated[str, JsonFields.token]
Digest = Annotated[str, JsonFields.digest]
ShortText = Annotated[str, JsonFields.text]
ShortTexts = Annotated[tuple[str, ...], JsonFields.texts]
Number = Annotated[float, JsonFields.number]
NotNegative = Annotated[float, partial(JsonFields.number, least=0.0)]
Count = Annotated[int, JsonFields.count]
AtLeastOne = Annotated[int, partial(JsonFields.count, least=1)]


def _finite(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
