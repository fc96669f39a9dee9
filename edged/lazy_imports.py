"""Modules that libraries import and a daemon never uses: named at once, read when somebody needs them.

The daemon and its trainer import this module before everything else.

structlog imports asyncio for loggers that are awaited, and rich, where it is installed, to decorate
tracebacks; paho imports urllib.request for proxies of websockets, and ssl; pydantic looks for plugins.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, cast


class _Later(ModuleType):
    """Stands for a module until something in it is asked for.

    The import system's own LazyLoader does not help here: an `import` statement reads the module's
    `__spec__`, and that is a use.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # every `from name import ...` asks whether this is a package
            return self._places()
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        vars(self).update(vars(import_module(self.__name__)))
        return getattr(sys.modules[self.__name__], name)

    def _places(self) -> list[str]:
        """Where the package lies; without importing what is around it, which may be under way."""
        parent = self.__name__.rpartition(".")[0]
        spec = PathFinder.find_spec(self.__name__, sys.modules[parent].__path__ if parent else None)
        if spec is None or spec.submodule_search_locations is None:
            raise AttributeError(f"{self.__name__} is no package", name="__path__", obj=self)
        return list(spec.submodule_search_locations)


def lazily(name: str, *functions: str) -> None:
    """Have `import name` read nothing until anything of the module is used.

    A module that is imported already stays as it is. With `from name import function` the module is used,
    but for these `functions`: they read it when they are called.
    """
    if name in sys.modules:
        return
    later = sys.modules[name] = _Later(name)
    vars(later).update({function: partial(_call, later, function) for function in functions})
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(import_module(parent), own, later)


def _call(module: ModuleType, function: str, *args: Any, **kwargs: Any) -> Any:
    vars(module).pop(function, None)  # or it would stand for the real one
    return getattr(module, function)(*args, **kwargs)


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


lazily("importlib.metadata", "entry_points")  # pydantic's plugins
lazily("bz2")  # shutil and zipfile ask whether it is there, and for lzma
lazily("lzma")
