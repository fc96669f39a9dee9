"""Short forms for the schemas of the tables."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

ANYTHING: Schema = {}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
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


def every(**properties: Schema) -> Schema:
    """An object in which all these fields are there, and perhaps others."""
    return fields(*(name.removesuffix("_") for name in properties), more=True, **properties)


def one_of(*values: str) -> Schema:
    """Return the schema of a text that is one of these words."""
    return {"enum": list(values)}


def listed(item: Schema, **more: Any) -> Schema:
    """A list of such."""
    return {"type": "array", "items": item, **more}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return schema | {"type": [*kinds, "null"]}
    return schema | {"enum": [*schema["enum"], None]}


def about(description: str, schema: Schema) -> Schema:
    """The same with a description."""
    return schema | {"description": description}
