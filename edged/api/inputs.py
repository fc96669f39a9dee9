"""What callers give: configurations, data, and directories to write."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.config import Config
    from edged.storage.recordings.frame import Frame

PathOrText: TypeAlias = "str | PathLike[str]"
Configuration: TypeAlias = "PathOrText | Mapping[str, Any] | Config"


def config_of(given: Configuration, stream: str | None) -> Config:
    """Read a configuration, of its stream or the one named `stream`; ConfigError names every mistake."""
    from edged import logs
    from edged.config import Config, loader

    logs.configure_library()
    if isinstance(given, Config):
        return given
    if isinstance(given, Mapping):
        return loader.from_values(given, stream=stream)
    return loader.load(Path(given), stream=stream)


def data_of(given: Any) -> Path | Frame:
    """Return the path of a file, or the columns of what is in memory."""
    from edged.storage.recordings.frame import Frame

    return Path(given) if isinstance(given, str | PathLike) else Frame.of(given)


def empty_directory(out: PathOrText) -> Path:
    """Return a directory to write; ConfigError when there is something in it."""
    path = Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError("exists already", where=str(path), remedy="name a new or empty directory")
    return path
