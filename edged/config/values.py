"""What values look like in the configuration: sizes, durations, names, filters, and sections of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from edged.domain.topic_filter import filter_problem

C = TypeVar("C")

_SIZES = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}
_SPANS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
LARGEST_QUANTITY = 2**53
CRON_FIELDS = 5
MISSING_FILE = "missing_file"
_QUANTITY = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*$")


def parse_size(value: Any) -> int:
    """Bytes from `512MiB`, `1.5 GB` or a plain number.

    >>> parse_size("2KiB")
    2048
    """
    return int(_quantity(value, _SIZES, "a size such as 512MiB"))


def parse_duration(value: Any) -> float:
    """Seconds from `6h`, `90s`, `250ms` or a plain number.

    >>> parse_duration("1.5h")
    5400.0
    """
    return float(_quantity(value, _SPANS | {"": 1.0}, "a duration such as 6h, 15m or 30s"))


def _quantity(value: Any, units: dict[str, Any], example: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        number, unit = value, ""
    else:
        match = _QUANTITY.match(str(value))
        if match is None or match[2].lower() not in units:
            raise ValueError(f"expected {example}, got {str(value)[:40]!r}")
        number, unit = float(match[1]), match[2].lower()
    if not 0 <= number <= LARGEST_QUANTITY:
        raise ValueError(f"expected {example}, got {str(value)[:40]!r}")
    return number * float(units[unit])


def parse_schedule(value: Any) -> float | str:
    """Return seconds from a duration, or the text of five crontab fields."""
    if not isinstance(value, str) or len(value.split()) != CRON_FIELDS:
        return float(_quantity(value, _SPANS | {"": 1.0}, "a duration such as 6h, or crontab fields"))
    from apscheduler.triggers.cron import CronTrigger

    try:
        CronTrigger.from_crontab(value)
    except ValueError as problem:
        raise ValueError(f"expected fields such as '0 3 * * *', got {value!r}: {problem}") from problem
    return value


def _topic_filter(value: str) -> str:
    problem = filter_problem(value)
    if problem is not None:
        raise ValueError(f"{value[:80]!r} is not a topic filter: {problem}")
    return value


def _beside_the_file(path: Path, info: ValidationInfo) -> Path:
    """A relative path is relative to `folder` of the context: where the configuration's file lies."""
    return path if info.context is None else info.context["folder"] / path.expanduser()


def _there(path: Path, info: ValidationInfo) -> Path:
    """Refuse a file that does not exist, where the configuration is that of this machine."""
    if info.context is not None and not path.exists():
        raise PydanticCustomError(MISSING_FILE, "{file} does not exist", {"file": str(path)})
    return path


def unique(names: list[Any]) -> list[Any]:
    """Refuse a list that names something twice."""
    if len(set(names)) != len(names):
        raise ValueError("a name appears twice")
    return names


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


OPEN = "open"  # classes that are not known yet


def number_or_names(value: Any) -> Any:
    """Let a number, a list of names or `open` pass; nothing else, and no name twice."""
    names = (
        isinstance(value, list)
        and value
        and all(isinstance(item, str | int) and not isinstance(item, bool) for item in value)
    )
    if names:
        return unique(value)
    if value == OPEN or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, list) and any(isinstance(item, bool) for item in value):
        raise ValueError("YAML reads yes, no, on and off as true and false: put the names in quotes")
    raise ValueError("expected a number, a list of names, or open")


Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Schedule = Annotated[float | str, BeforeValidator(parse_schedule)]
AnyPath = Annotated[Path, AfterValidator(_beside_the_file)]
"""A place that may be empty: edged makes it, or reads it only once."""
FilePath = Annotated[AnyPath, AfterValidator(_there)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
Name = Annotated[str, Field(pattern=NAME)]
Filter = Annotated[str, AfterValidator(_topic_filter)]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(unique)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Provider = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+ExecutionProvider$")]
Providers = Annotated[list[Provider], Field(min_length=1), BeforeValidator(_listed), AfterValidator(unique)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


def all_defaults() -> Any:
    """The default of a section, which is read as one without keys: so only the whole needs a validator."""
    return Field(default_factory=dict, validate_default=True)


class Constants(Generic[C]):
    """Gives a section `_constants`: a dataclass of values without a key, which Python alone can change."""

    _constants: C

    @property
    def constants(self) -> C:
        """Values without a key."""
        return self._constants

    def with_constants(self, **changes: Any) -> Self:
        """Return a copy with other constants, such as for an evaluation, a benchmark or a test."""
        copy: Any = cast("Any", self).model_copy()
        copy.__pydantic_private__["_constants"] = replace(cast("Any", self._constants), **changes)
        return cast("Self", copy)


class Section(BaseModel):
    """A part of the configuration: unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        defer_build=True,  # see `all_defaults`
    )
