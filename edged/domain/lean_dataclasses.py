"""The `dataclass` of the standard library, with methods that classes share instead of compiling their own.

`dataclasses.dataclass` compiles up to six methods for each class: for the 270 of a daemon an eighth of the
time of its imports, and 2 MB. Here `__eq__`, `__hash__`, `__repr__` and what makes an instance frozen are the
same functions for all classes; only `__init__` is compiled. To a type checker it is that very decorator.
"""

from __future__ import annotations

import dataclasses
from dataclasses import FrozenInstanceError, fields
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: PLC0414  exported again
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> type | Callable[[type], type]:
        """Make a class a dataclass, with any option but `order` and `unsafe_hash`."""
        return _made(cls, **options) if cls else lambda given: _made(given, **options)


def _made(
    cls: type, *, eq: bool = True, repr: bool = True, frozen: bool = False,  # noqa: A002
    **options: bool,
) -> type:  # fmt: skip
    """The class as a dataclass; what it defines itself stays."""
    own = {name for name, value in vars(cls).items() if value is not None}
    made: Any = dataclasses.dataclass(eq=False, repr=False, frozen=frozen, **options)(cls)
    shared: dict[str, Any] = {"__repr__": _repr} if repr else {}
    if eq:
        shared |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
        made.__compared__ = tuple(field.name for field in fields(made) if field.compare)
    if frozen:
        made.__setattr__ = made.__delattr__ = _refuse
    for name, method in shared.items():
        if name not in own:
            setattr(made, name, method)
    return cast("type", made)


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__compared__])


def _eq(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: object, name: str, *_value: object) -> None:
    raise FrozenInstanceError(f"{name!r} of a {type(self).__name__} is fixed once it is made")
