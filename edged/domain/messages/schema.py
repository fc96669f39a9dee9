"""JSON Schema: short forms for the tables, and whether a value has the form that they ask for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from edged.errors import ConfigError

SHOWN = 60  # characters of a value in a message

Schema = dict[str, Any]

ANYTHING: Schema = {}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
VERSION: Schema = {"type": "integer", "minimum": 1, "description": "version of a model"}
SECONDS: Schema = {"type": "number", "description": "Unix seconds"}


def fields(*required: str, more: bool = False, **properties: Schema) -> Schema:
    """An object: `required` names are there in any case, `more` allows others.

    A name that Python keeps for itself is written with `_` behind it.
    """
    properties = {name.removesuffix("_"): schema for name, schema in properties.items()}
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    if not more:
        schema["additionalProperties"] = False
    return schema


def every(perhaps: dict[str, Schema] | None = None, /, **properties: Schema) -> Schema:
    """An object in which all these fields are there, and `perhaps` those or others."""
    required = [name.removesuffix("_") for name in properties]
    return fields(*required, more=True, **properties, **(perhaps or {}))


def each(schema: Schema, *names: str) -> dict[str, Schema]:
    """Fields of one schema, by name."""
    return dict.fromkeys(names, schema)


def one_of(*values: str) -> Schema:
    """Return the schema of a text that is one of these words."""
    return {"enum": list(values)}


def listed(item: Schema, **more: Any) -> Schema:
    """Schema of a list of such values."""
    return {"type": "array", "items": item, **more}


def or_null(schema: Schema) -> Schema:
    """Schema of the same value, or null."""
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return schema | {"type": [*kinds, "null"]}
    return schema | {"enum": [*schema["enum"], None]}


def about(description: str, schema: Schema) -> Schema:
    """The same schema with a description."""
    return schema | {"description": description}


def check(schema: Schema, value: Any, where: str = "") -> None:
    """Compare a value, as it was read from JSON, with a schema; ConfigError names what is wrong first.

    Of the keywords it knows those that the tables use: `type`, `enum`, `properties`, `required`,
    `additionalProperties`, `items`, `minItems`, `maxItems`, and the four bounds of numbers. `where`
    is what the value is called in the error.

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
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if not least <= len(value) <= most:
            bound = f"at least {least}" if len(value) < least else f"at most {most}"
            raise ConfigError(f"it has {len(value)} entries, {bound} are accepted", where=where)
        for place, item in enumerate(value):
            check(schema.get("items", {}), item, f"{where}[{place}]")
    elif _is_number(value):
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
