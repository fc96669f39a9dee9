"""Whether a value has the form that a schema asks for: the few keywords that the tables use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.domain.messages.schema_helpers import Schema

SHOWN = 60  # characters of a value in a message


def check(schema: Schema, value: Any, where: str = "") -> None:
    """Compare a value, as it was read from JSON, with a schema of the tables.

    Parameters
    ----------
    schema
        With `type`, `enum`, `properties`, `required`, `additionalProperties`, `items`, `maxItems`,
        `minItems`, `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `maxLength`, `minLength`.
    value
        What is judged.
    where
        What it is called in the message.

    Raises
    ------
    ConfigError
        With the path of the first thing that is wrong.

    Examples
    --------
    >>> check({"type": "object", "properties": {"steps": {"type": "integer"}}}, {"steps": 1.5})
    Traceback (most recent call last):
        ...
    edged.errors.ConfigError: steps: 1.5 is no integer
    """
    kinds = schema.get("type")
    if kinds is not None:
        _check_type([kinds] if isinstance(kinds, str) else kinds, value, where)
    if "enum" in schema and value not in schema["enum"]:
        raise ConfigError(f"{_shown(value)} is none of {', '.join(map(_word, schema['enum']))}", where=where)
    if isinstance(value, dict):
        _check_fields(schema, value, where)
    elif isinstance(value, list):
        _check_length(schema, len(value), "Items", where)
        for place, item in enumerate(value):
            check(schema.get("items", {}), item, f"{where}[{place}]")
    elif isinstance(value, str):
        _check_length(schema, len(value), "Length", where)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_range(schema, value, where)


def _check_type(kinds: list[str], value: Any, where: str) -> None:
    if not any(_TYPES[kind](value) for kind in kinds):
        raise ConfigError(f"{_shown(value)} is no {' or '.join(kinds)}", where=where)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
}


def _check_fields(schema: Schema, value: dict[str, Any], where: str) -> None:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            raise ConfigError("this is required", where=_joined(where, name))
    for name, inner in value.items():
        if name in known:
            check(known[name], inner, _joined(where, name))
        elif schema.get("additionalProperties") is False:
            remedy = f"known: {', '.join(known)}" if known else "it takes none"
            raise ConfigError("unknown option", where=_joined(where, name[:SHOWN]), remedy=remedy)


def _check_length(schema: Schema, size: int, unit: str, where: str) -> None:
    things = "entries" if unit == "Items" else "characters"
    if size > schema.get(f"max{unit}", size):
        raise ConfigError(f"it has {size} {things}, {schema[f'max{unit}']} at most", where=where)
    if size < schema.get(f"min{unit}", 0):
        raise ConfigError(f"it has {size} {things}, {schema[f'min{unit}']} at least", where=where)


def _check_range(schema: Schema, value: float, where: str) -> None:
    for keyword, wrong, word in _RANGES:
        if keyword in schema and wrong(value, schema[keyword]):
            raise ConfigError(f"{_shown(value)} is not {word} {schema[keyword]:g}", where=where)


_RANGES: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
    ("minimum", lambda value, bound: value < bound, "at least"),
    ("maximum", lambda value, bound: value > bound, "at most"),
    ("exclusiveMinimum", lambda value, bound: value <= bound, "above"),
    ("exclusiveMaximum", lambda value, bound: value >= bound, "below"),
)


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _word(value: Any) -> str:
    return "null" if value is None else str(value)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
