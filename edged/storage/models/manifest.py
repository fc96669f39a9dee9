"""What `bundle.json` holds: its parts, and reading them from a file that may come from anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edged.domain.bundle_contents import REBUILD, FileEntry, Tensor
from edged.domain.json_fields import JsonFields
from edged.errors import BundleError, CorruptError
from edged.storage.files import checksummed_json

FORMAT = 1
DESCRIPTION, SIGNATURE = "bundle.json", "bundle.sig"
MOST_FILES = 64
MOST_TEXT = 16 << 20  # bytes of bundle.json
MOST_PACKED = 0xFFFF_FFFF  # bytes of a bundle file: more would need another form, zip64
LONGEST_NAME = 200  # bytes

_UNPACK = "unpack it with `edged artifacts unpack`"
_LARGEST = 1 << 31  # of one dimension


def is_plain(name: str) -> bool:
    """Whether a name is one of a file in this very folder, on any system."""
    usual = name.isascii() and name.isprintable() and 0 < len(name) <= LONGEST_NAME
    return usual and not name.startswith(".") and not set(name) & set('/\\:*?"<>|')


def read_manifest(path: Path) -> JsonFields:
    """The fields of the bundle in directory `path`; whatever does not fit raises CorruptError.

    Raises BundleError or CorruptError when there are none, or they are of another format.
    """
    file = path / DESCRIPTION
    try:
        if path.is_file():
            raise BundleError("is one file, a bundle is a directory here", where=str(path), remedy=_UNPACK)
        if file.stat().st_size > MOST_TEXT:
            raise CorruptError(f"is larger than {MOST_TEXT:,} bytes", where=str(file), remedy=REBUILD)
        text = file.read_bytes()
        data = json.loads(text.decode())
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError("no bundle: bundle.json is missing", where=str(path), remedy=REBUILD) from None
    except OSError as problem:
        raise BundleError(f"cannot be read: {problem.strerror}", where=str(file)) from problem
    except (ValueError, RecursionError) as problem:
        raise CorruptError("is not valid JSON", where=str(file), remedy=REBUILD) from problem
    if not isinstance(data, dict):
        raise CorruptError("is not a JSON object", where=str(file), remedy=REBUILD)
    if data.get("format") != FORMAT:
        what = f"has format {data.get('format')!r}, this version reads format {FORMAT}"
        raise BundleError(what, where=str(file), remedy=REBUILD)
    return _fields(checksummed_json.unseal(text, file), file)


def _fields(data: Mapping[str, Any], file: Path) -> JsonFields:
    def refuse(_: str, what: str, where: str) -> CorruptError:
        field = where.removeprefix(f"{DESCRIPTION}.")
        return CorruptError(f"{field} is missing or wrong: {what}", where=str(file), remedy=REBUILD)

    return JsonFields(data, DESCRIPTION, refuse)


def read_files(fields: JsonFields, where: Path) -> dict[str, FileEntry]:
    """What each file must be, by its plain name."""
    entries = fields.inner("files")
    names = list(entries)
    if len(names) > MOST_FILES:
        raise CorruptError(f"names {len(names)} files, {MOST_FILES} at most are taken", where=str(where))
    for name in names:
        # A bundle may come from elsewhere: its file list must not lead out of its directory.
        if not is_plain(name) or name == DESCRIPTION:
            raise CorruptError(f"files: {name[:80]!r} is not a plain file name", where=str(where))
    found = ((name, entries.inner(name)) for name in names)
    return {name: FileEntry(entry.get("bytes", int), entry.get("sha256", str)) for name, entry in found}


def read_tensor(fields: JsonFields) -> Tensor:
    """An input, output or label from its JSON object."""
    shape = fields.get("shape", list)
    if len(shape) < 1 or not all(isinstance(dim, str) or _is_size(dim) for dim in shape):
        raise fields.wrong("shape", f"sizes from 1 to {_LARGEST} and names")
    names, units = (
        fields.optional(key, lambda key: fields.texts(key, MOST_TEXT), ()) for key in ("names", "units")
    )
    return Tensor(fields.get("name", str), tuple(shape), fields.get("dtype", str), names, units)


def _is_size(dim: Any) -> bool:
    return isinstance(dim, int) and not isinstance(dim, bool) and 1 <= dim <= _LARGEST
