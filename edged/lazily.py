"""Modules that libraries import and a daemon never uses: named at once, read when somebody needs them.

structlog imports asyncio for loggers that are awaited, and rich, where it is installed, to decorate
tracebacks; paho imports urllib.request for proxies of websockets. That is 6 MB, for years, on a small board.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Later(ModuleType):
    """Stands for a module until something in it is asked for.

    The import system's own LazyLoader does not help here: an `import` statement reads the module's
    `__spec__`, and that is a use.
    """

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        vars(self).update(vars(import_module(self.__name__)))
        return getattr(sys.modules[self.__name__], name)


def lazily(name: str) -> None:
    """Have `import name` read nothing until anything of the module is used.

    A module that is imported already stays as it is.
    """
    if name in sys.modules:
        return
    later = sys.modules[name] = _Later(name)
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(import_module(parent), own, later)


@contextmanager
def hidden(package: str) -> Iterator[None]:
    """Make `package` look as if it were not installed, for the imports inside the block.

    None in `sys.modules` is the import system's own word for "not here". A process that needs the package
    imports it before or after, as usual.
    """
    present = package in sys.modules
    if not present:
        sys.modules[package] = cast("Any", None)
    try:
        yield
    finally:
        if not present:
            del sys.modules[package]
