# ruff: noqa: INP001  a program, not a package
"""Writes docs/config.md from the configuration's own model; `--check` only says whether it is up to date.

Run from anywhere: `python docs/make_config_reference.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from generated import write_or_check
from pydantic import BaseModel, BeforeValidator

from edged.config import Config
from edged.config.streams import OWN
from edged.config.values import parse_duration, parse_schedule, parse_size

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

PAGE = Path(__file__).with_name("config.md")

INTRODUCTION = """\
# Configuration

One YAML file. `configs/` holds commented examples; `edged config check FILE` validates it, and
`edged config show FILE` prints it with all defaults. Only `device.id` and `stream.features` are required.

* Unknown keys are errors. Relative paths are relative to the file.
* Sizes have a unit `B`, `KB`, `MB`, `GB`, `KiB`, `MiB` or `GiB` (`512MiB`), or are bytes. Durations have
  `ms`, `s`, `m` or `min`, `h`, `d` or `w` (`6h`), or are seconds.
* An environment variable overrides any key: `EDGED_MQTT__HOST=broker` sets `mqtt.host`. The value is read
  as YAML, so a number that is text needs its own quotes.

## Several streams

Instead of `stream` a file can have a list `streams`. Each entry has a `name` and any of the sections
{own};
these override the sections at the top, key by key. All other sections, and `storage.dir`, belong at the top
and apply to the whole device. A name starts with one of `a-z` or `0-9`; `_` and `-` can follow.
[streams.md](streams.md) is the guide.

```yaml
device: {{id: plant}}
stream: {{features: [temp, vib], classes: [good, worn]}}     # of every stream below
streams:
  - {{name: pump-1, stream: {{topic: pumps/1}}}}
  - {{name: pump-2, stream: {{topic: pumps/2}}, gate: {{min_gain: 0.02}}}}
```

This page is generated from the code by `docs/make_config_reference.py`.
"""

# Largest unit first: a default is shown in the first that divides it.
SPANS = ((604800, "w"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Each section below `model` with its dotted name, subsections after their section."""
    for name, field in model.model_fields.items():
        for part in within(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield f"{prefix}{name}", part
                yield from sections(part, f"{prefix}{name}.")


def within(annotation: Any) -> Iterator[Any]:
    """The members of a union, and what lists hold."""
    for part in parts(annotation):
        inner = get_args(part)[:1] if get_origin(part) in (Annotated, list) else ()
        yield from (member for item in inner for member in within(item))
        yield part


def parts(annotation: Any) -> list[Any]:
    """The members of a union, or the annotation itself; None left out."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [member for member in members if member is not type(None)]


def quantity(field: FieldInfo) -> str:
    """`size`, `duration`, crontab, or nothing: which units the values of `field` take."""
    metadata = [*field.metadata]
    for part in parts(field.annotation):
        metadata += get_args(part)[1:] if get_origin(part) is Annotated else ()
    readers = [item.func for item in metadata if isinstance(item, BeforeValidator)]
    units = {parse_size: "size", parse_duration: "duration", parse_schedule: "duration or crontab"}
    return next((units[reader] for reader in readers if reader in units), "")


def kind(annotation: Any) -> str:
    """What a value may be, in plain words."""
    words = [kind_of_one(part) for part in parts(annotation)]
    return " or ".join(dict.fromkeys(words))


def kind_of_one(annotation: Any) -> str:
    """`kind` of one member of a union."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return kind(get_args(annotation)[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if origin is list:
        return f"list of {kind(get_args(annotation)[0])}s"
    if origin is dict:
        return f"{kind(get_args(annotation)[1])}s by name"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    words = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path"}
    return words[annotation]


def default(field: FieldInfo) -> str:
    """The default as one would write it in the file."""
    if field.is_required():
        return "**required**"
    value = field.default
    units = {"size": SIZES, "duration": SPANS, "duration or crontab": SPANS}.get(quantity(field))
    if value is None:
        return "–"
    if units is not None:
        return f"`{with_unit(value, units)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def with_unit(value: float, units: tuple[tuple[int, str], ...]) -> str:
    """`value` in the largest unit that divides it; below one second in milliseconds."""
    if 0 < value < 1:
        return f"{value * 1000:g}ms"
    factor, unit = next(((f, u) for f, u in units if value and value % f == 0), units[-1])
    return f"{value / factor:g}{unit}"


def row(section: str, name: str, field: FieldInfo) -> str:
    """One line of a section's table."""
    meaning = (field.description or "").replace("|", "\\|").replace("<", "&lt;")
    return (
        f"| `{section}.{name}` | {default(field)} | {quantity(field) or kind(field.annotation)} | {meaning} |"
    )


def table(section: str, model: type[BaseModel]) -> str:
    """A section: its heading, what it is for, and its keys; subsections have tables of their own."""
    inner = {name for name, field in model.model_fields.items() if kind(field.annotation) == "mapping"}
    rows = [row(section, name, field) for name, field in model.model_fields.items() if name not in inner]
    purpose = (model.__doc__ or "").strip().splitlines()[0]
    heads = ["| key | default | unit or values | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {section}", "", purpose, "", *heads, *rows, ""]) if rows else ""


def page() -> str:
    """The whole page."""
    names = [f"`{name}`" for name in OWN]
    own = f"{', '.join(names[:7])},\n{', '.join(names[7:])}"
    tables = (table(name, model) for name, model in sections(Config))
    return "\n".join([INTRODUCTION.format(own=own), *filter(None, tables)])


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), __file__))
