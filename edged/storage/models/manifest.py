"""What `bundle.json` holds: its parts, and reading them from a file that may come from anywhere."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from edged.errors import BundleError, CorruptError
from edged.storage.files import checksummed_json

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1
DESCRIPTION, SIGNATURE = "bundle.json", "bundle.sig"
MOST_FILES = 64
MOST_TEXT = 16 << 20  # bytes of bundle.json
MOST_PACKED = 0xFFFF_FFFF  # bytes of a bundle file: more would need another form, zip64
LONGEST_NAME = 200  # bytes

REBUILD = "build the bundle again with `edged artifacts build`"
_UNPACK = "unpack it with `edged artifacts unpack`"
_LARGEST = 1 << 31  # of one dimension
_T = TypeVar("_T")


@dataclass(frozen=True)
class Tensor:
    """An input, output or label: a `str` in `shape` is a dimension that may vary.

    `names` and `units` are those of the numbers in a row (of the channels, where a row is a window; of the
    classes, for the output of a classifier), empty where nobody has told them.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    @property
    def row(self) -> tuple[int, ...]:
        """Sizes of one row: all dimensions after the batch."""
        return tuple(dim for dim in self.shape[1:] if isinstance(dim, int))

    @property
    def width(self) -> int:
        """Number of values in one row."""
        return math.prod(self.row)


class Standardisation(TypedDict):
    """Names of the frozen parameters that hold a mean and a factor (1/std), each `(d,)` float32."""

    mean: str
    scale: str


@dataclass(frozen=True)
class FileEntry:
    """What a file must be: SHA-256 in hexadecimal and size in bytes."""

    sha256: str
    bytes: int

    @classmethod
    def of(cls, path: Path) -> FileEntry:
        """Hash the file at `path`."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return cls(digest.hexdigest(), path.stat().st_size)


def is_plain(name: str) -> bool:
    """Whether a name is one of a file in this very folder, on any system."""
    usual = name.isascii() and name.isprintable() and 0 < len(name) <= LONGEST_NAME
    return usual and not name.startswith(".") and not set(name) & set('/\\:*?"<>|')


def read_manifest(path: Path) -> dict[str, Any]:
    """The values of the bundle in directory `path`.

    Raises
    ------
    BundleError, CorruptError
        When there are none, or they are of another format.
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
    if checksummed_json.SEAL not in data and "made_with" not in data:
        return data  # the first versions wrote neither
    return checksummed_json.unseal(text, file)


class Fields:
    """Typed access to the fields of a `bundle.json`; whatever does not fit raises CorruptError."""

    def __init__(self, data: dict[str, Any], where: Path) -> None:
        self.data = data
        self._where = where

    def get(self, key: str, kind: type[_T]) -> _T:
        """The value of `key`, which has to be of this kind."""
        value = self.data.get(key)
        if not isinstance(value, kind):
            raise self.wrong(key)
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        found = self.get(key, list)
        if not all(isinstance(item, str) for item in found):
            raise self.wrong(key)
        return tuple(found)

    def tensor(self, key: str) -> Tensor:
        """An input, output or label."""
        inner = self._inner(key)
        shape = inner.get("shape", list)
        if len(shape) < 1 or not all(isinstance(dim, str) or _is_size(dim) for dim in shape):
            raise self.wrong(key)
        names, units = (inner.names(what) if what in inner.data else () for what in ("names", "units"))
        return Tensor(inner.get("name", str), tuple(shape), inner.get("dtype", str), names, units)

    def objects(self, key: str) -> tuple[dict[str, Any], ...]:
        """A list of objects; none where an earlier version has written none."""
        found = self.get(key, list) if key in self.data else []
        if not all(isinstance(item, dict) for item in found):
            raise self.wrong(key)
        return tuple(found)

    def tensors(self, key: str) -> tuple[Tensor, ...]:
        """A list of outputs or labels."""
        return tuple(Fields({key: item}, self._where).tensor(key) for item in self.objects(key))

    def texts(self, key: str) -> dict[str, str]:
        """Texts by name; none where an earlier version has written none."""
        found = self.get(key, dict) if key in self.data else {}
        return {str(name): str(text) for name, text in found.items()}

    def standardisation(self, key: str) -> Standardisation | None:
        """Names of statistics; None where there are none."""
        if self.data.get(key) is None:
            return None
        inner = self._inner(key)
        return {"mean": inner.get("mean", str), "scale": inner.get("scale", str)}

    def files(self) -> dict[str, FileEntry]:
        """What each file must be, by its plain name."""
        entries, found = self._inner("files"), self.get("files", dict)
        if len(found) > MOST_FILES:
            raise CorruptError(
                f"names {len(found)} files, {MOST_FILES} at most are taken", where=str(self._where)
            )
        return {self._plain(name): entries.file(name) for name in found}

    def file(self, name: str) -> FileEntry:
        """What one file must be."""
        inner = self._inner(name)
        return FileEntry(inner.get("sha256", str), inner.get("bytes", int))

    def wrong(self, key: str) -> CorruptError:
        """The refusal of a value."""
        return CorruptError(f"{key} is missing or wrong", where=str(self._where), remedy=REBUILD)

    def _plain(self, name: str) -> str:
        # A bundle may come from elsewhere: its file list must not lead out of its directory.
        if not is_plain(name) or name == DESCRIPTION:
            raise CorruptError(f"files: {name[:80]!r} is not a plain file name", where=str(self._where))
        return name

    def _inner(self, key: str) -> Fields:
        return Fields(self.get(key, dict), self._where)


def _is_size(dim: Any) -> bool:
    return isinstance(dim, int) and not isinstance(dim, bool) and 1 <= dim <= _LARGEST
