"""What is wrong with a configuration file, in words: file, line, key, what was received and what to do."""

from __future__ import annotations

from functools import cache
from typing import Any, get_origin

from pydantic import ValidationError

from edged.config import Config
from edged.config.streams import KEY
from edged.config.values import MISSING_FILE, NAME, Section
from edged.config.yaml_file import Places
from edged.errors import ConfigError, ConfigFileError, did_you_mean


def all_problems(
    problem: ValidationError,
    places: Places,
    model: type[Section] = Config,
    hint: str = "`edged config schema` lists every key",
) -> ConfigFileError:
    """What is wrong with a file that should hold `model`: each key once, in the order of the file.

    Each has its place, what was received and what to do: at worst `hint`.
    """
    found: dict[str, dict[str, Any]] = {}
    for error in sorted(problem.errors(), key=_rank):
        # The branches of a union have an error each.
        found.setdefault(".".join(_keys_of([str(part) for part in error["loc"]], model)), dict(error))
    inner = [key for key in found if not any(other.startswith(f"{key}.") for other in found)]
    problems = [_problem(found[key], key, places, model, hint) for key in inner]
    return ConfigFileError(sorted(problems, key=lambda one: places.line(one.where)))


def _rank(error: Any) -> tuple[bool, bool, int]:
    """Sort unknown keys first, then values of the right type, which are of the branch that was meant."""
    kind = error["type"]
    return kind != "extra_forbidden", kind.endswith(("_type", "literal_error", "_parsing")), len(error["loc"])


def _problem(
    error: dict[str, Any], dotted: str, places: Places, model: type[Section], hint: str
) -> ConfigError:
    where = places.of(dotted)
    if error["type"] == "missing":
        return ConfigError("this key is required", where=where, remedy=_EXAMPLES.get(dotted, hint))
    if error["type"] == MISSING_FILE:
        key = dotted.rstrip(".0123456789")  # of a list its own
        remedy = _MAKING.get(key.rpartition(".")[2], "create it or correct the path")
        return ConfigError(error["msg"], where=places.of(key), remedy=remedy)
    if error["type"] == "extra_forbidden":
        *above, key = dotted.split(".")
        known = _known_keys(above, model)
        remedy = did_you_mean(key, known) or "known here: " + ", ".join(known)
        return ConfigError("unknown key", where=where, remedy=remedy)
    return ConfigError(_words(error, secret="password" in dotted), where=where, remedy=hint)


def _words(error: dict[str, Any], *, secret: bool) -> str:
    """What is wrong with a value, and the value itself, where it is short and no secret."""
    pattern = error.get("ctx", {}).get("pattern")
    said = PATTERNS.get(pattern) or _WORDS.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    if error["type"] == "too_short":
        least = error["ctx"]["min_length"]
        said = f"expected a list of {least} or more, got {len(error['input'])}"
    given = repr(error.get("input"))
    plain = isinstance(error.get("input"), str | int | float | None) and len(given) <= SHORT
    if secret or not plain or error["type"] == "value_error" or given in said:
        return said
    return f"{said[:1].lower()}{said[1:].replace('Input', 'input')}, not {given}"


SHORT = 60
PATTERNS = {
    NAME: "expected a letter or digit, then letters, digits, `_`, `.` and `-`: at most 63 characters",
    r"^[a-z]+(\.[a-z]+)*$": "expected the name of a command, such as config.set",
    r"^[A-Za-z0-9]+ExecutionProvider$": "expected a provider of onnxruntime, such as CPUExecutionProvider",
    r"^[^#+\s]+$": "expected levels of a topic, without spaces, `#` and `+`",
    r"^[^#+/\s]+$": "expected one level of a topic, without spaces, `#`, `+` and `/`",
    r"^/[^\s#]*$": "expected a path that begins with / and has neither spaces nor `#`",
    r"^[^+/#\x00]+$": "expected one level of a topic, without `#`, `+` and `/`",
}
"""Patterns of values in words."""

_WORDS = {"model_type": "expected a section: keys with values", "model_attributes_type": "expected a section"}


def _section_of(model: Any, key: str) -> Any:
    """The section that a key of a section holds, alone or in a list, or None where it holds a value."""
    annotation = model.model_fields[key].annotation
    options = [annotation, *getattr(annotation, "__args__", ())]
    plain = [o for o in options if isinstance(o, type) and get_origin(o) is None]
    return next((o for o in plain if issubclass(o, Section)), None)


@cache
def _members() -> frozenset[str]:
    """Names that pydantic gives to members of unions: sections, and types of single values."""
    kinds, names = [Section], {"str", "int", "float", "bool"}
    while kinds:
        kinds += (kind := kinds.pop()).__subclasses__()
        names.add(kind.__name__)
    return frozenset(names)


def _keys_of(location: list[str], model: Any) -> list[str]:
    """Keys of the file from pydantic's location, which also names members of unions."""
    kept: list[str] = []
    for key in location:
        if model is None:
            break
        if "[" in key or key in _members():
            continue
        kept.append(key)
        if not key.isdigit():  # a position in a list of sections
            model = _section_of(model, key) if key in model.model_fields else None
    return kept


def _known_keys(keys: list[str], model: Any) -> list[str]:
    own = [KEY] if not keys and model is Config else []
    for key in keys:
        if not key.isdigit():
            model = _section_of(model, key)
    return [*model.model_fields, *own]


_MAKING = {"bundle": "build one with `edged artifacts build`", "keys": "make a pair with `edged keys new`"}
_EXAMPLES = {
    "device": "add `device: {id: press-7}`",
    "device.id": "add `id: press-7`",
    "stream": "add `stream: {topic: sensors/#, features: [temp, vib]}`",
    "stream.features": "add `features: [temp, vib]` or `features: 8`",
}
