"""Arguments and options that several commands have, what `--json` prints, and files that commands write.

No file is replaced without `--force`, and none by halves.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from edged.domain.json_fields import json_ready
from edged.errors import ConfigError

ConfigPath = Annotated[Path, Argument(metavar="CONFIG", help="configuration file (YAML)")]
Stream = Annotated[
    str | None,
    Option("--stream", metavar="NAME", help="name of the stream, if there are several"),
]
AsJson = Annotated[bool, Option("--json", help="one JSON object on stdout")]
Force = Annotated[bool, Option("--force", help="replace existing output")]
_REMEDY = "choose another name, or add --force"
_STAGED_BYTES = 22  # that a temporary name is longer


def print_json(values: Any) -> None:
    """Print a JSON object on stdout, in one line."""
    sys.stdout.write(json.dumps(json_ready(values), separators=(",", ":"), default=str) + "\n")


def check_file(out: Path, *, force: bool) -> None:
    """Raise ConfigError when `out` exists and `force` is false, or no file can be written there."""
    parent = out.parent
    if out.is_dir():
        raise ConfigError("this is a directory", where=str(out), remedy="name a file")
    if not parent.is_dir():
        raise ConfigError("there is no such directory", where=str(parent), remedy="create it first")
    _check_writable(parent, out)
    if os.path.lexists(out) and not force:
        raise ConfigError("exists already", where=str(out), remedy=_REMEDY)


def check_directory(out: Path, *patterns: str, force: bool) -> list[str]:
    """Return the names in the directory `out` that match one of `patterns`: what a command would replace.

    Raises ConfigError when there are some and `force` is false, or the directory cannot be written.
    """
    existing = Path(os.path.realpath(out))
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigError("this is a file, not a directory", where=str(existing), remedy="name a directory")
    _check_writable(existing, out)
    names = [path.name for path in out.iterdir()] if out.is_dir() else []
    found = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
    if found and not force:
        raise ConfigError(f"exists already, with {min(found)}", where=str(out), remedy=_REMEDY)
    return found


@contextmanager
def new_directory(out: Path, *patterns: str, force: bool) -> Iterator[Path]:
    """Yield the directory to write for `out`: `out`, or one that replaces it when no error ends the block.

    `patterns` are the names of what the command writes. Raises ConfigError when some of them exist and
    `force` is false, or others exist besides: only what the command wrote is replaced.
    """
    found = check_directory(out, *patterns, force=force)
    if not found:
        yield out
        return
    if others := sorted({path.name for path in out.iterdir()} - {*found}):
        what = f"holds {others[0]} as well, which this command does not write"
        raise ConfigError(what, where=str(out), remedy="move it, or choose another name")
    from edged.storage.files import atomic

    place = Path(os.path.realpath(out))
    _check_writable(place.parent, place)
    staging = atomic.staging_path(place.parent, place.name)
    try:
        yield staging
        with atomic.disk_errors("replacing", out):
            aside = staging.with_name(f"{staging.name}-old")
            place.rename(aside)
            staging.rename(place)
            atomic.DISK.sync(place.parent)
            atomic.DISK.remove(aside)
    finally:
        atomic.DISK.remove(staging)


def _check_writable(directory: Path, out: Path) -> None:
    """Raise ConfigError for what could not be written, before hours of work."""
    if not os.access(directory, os.W_OK | os.X_OK):
        remedy = "give this user write permission, or choose another place"
        raise ConfigError("this directory cannot be written", where=str(directory), remedy=remedy)
    longest = os.pathconf(directory, "PC_NAME_MAX") - _STAGED_BYTES
    if any(len(os.fsencode(part)) > longest for part in out.parts):
        raise ConfigError("this name is too long", where=str(out), remedy=f"at most {longest} bytes")
