"""Arrays in an .npz file: features `X`, and optionally labels `y`, times `t`, keys and names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.errors import ConfigError
from edged.storage.recordings.rows import Recording, check_rows, classes_of

ZIP_MAGIC = b"PK\x03\x04"

_ARRAYS = frozenset({"X", "y", "t", "key", "names"})
_HOW_TO_SAVE = "write it with numpy.savez(path, X=features, y=labels)"


def read_npz(path: Path, key_name: str = "key") -> Recording:
    """Read a stream from its arrays; `key_name` is the one that holds the keys."""
    arrays = _load_arrays(path, key_name)
    x = _features(arrays["X"])
    for name in ("y", "t", key_name):
        _check_length(name, arrays.get(name), len(x))
    y, classes = _labels(arrays.get("y"))
    key = arrays.get(key_name)
    return Recording(
        x,
        y,
        _times(arrays.get("t")),
        None if key is None else [_text(value) for value in key.tolist()],
        _feature_names(arrays.get("names"), x.shape[1]),
        classes,
        tuple(arrays),
    )


def _load_arrays(path: Path, key: str) -> dict[str, NDArray[Any]]:
    """The arrays of a stream, others unread; `X` is among them."""
    with path.open("rb") as file:
        if file.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
            raise ConfigError("is no npz file", remedy=_HOW_TO_SAVE)
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            if "X" not in archive.files:
                has = ", ".join(sorted(archive.files)) or "nothing"
                raise ConfigError(f"has no array X, only {has}", remedy=_HOW_TO_SAVE)
            return {name: _load_array(archive, name) for name in archive.files if name in (*_ARRAYS, key)}


def _load_array(archive: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(archive[name])
    except (ValueError, RuntimeError, MemoryError) as problem:
        # Object arrays are pickles, which could run code; an absurd shape is a damaged header.
        line = str(problem).partition("\n")[0]
        raise ConfigError(
            f"array {name} cannot be loaded: {line}",
            remedy="save it as a plain array of numbers",
        ) from problem


def _features(x: NDArray[Any]) -> NDArray[np.float32]:
    if x.dtype.kind not in "biuf":
        raise ConfigError(f"X holds {x.dtype}, not numbers", remedy="convert X to float32")
    if x.ndim == 0:
        raise ConfigError("X is a single number", remedy="give it the shape (samples, features)")
    check_rows(len(x))
    if x.size == 0:
        raise ConfigError("X has no features", remedy="give it the shape (samples, features)")
    with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite, as in a message
        return np.ascontiguousarray(x.reshape(len(x), -1), np.float32)


def _check_length(name: str, values: NDArray[Any] | None, n: int) -> None:
    if values is not None and (values.ndim == 0 or len(values) != n):
        length = "is a single value" if values.ndim == 0 else f"has {len(values)} rows"
        raise ConfigError(f"{name} {length}, X has {n}", remedy="both need one row a sample")
    if name != "y" and values is not None and values.ndim != 1:
        raise ConfigError(f"{name} has the shape {values.shape}", remedy=f"give {name} the shape ({n},)")


def _labels(y: NDArray[Any] | None) -> tuple[NDArray[np.float64] | None, tuple[str, ...]]:
    if y is None:
        return None, ()
    flat = y.reshape(len(y), -1)
    single = flat.shape[1] == 1
    if y.dtype.kind in "US" and single:
        return classes_of([_text(value) for value in flat[:, 0].tolist()])
    if y.dtype.kind not in "biuf" or flat.shape[1] == 0:
        raise ConfigError(
            f"y holds {y.dtype} of shape {y.shape}", remedy="labels are numbers, or one text a sample"
        )
    return (flat[:, 0] if single else flat).astype(np.float64), ()


def _times(t: NDArray[Any] | None) -> NDArray[np.float64] | None:
    if t is None:
        return None
    if t.dtype.kind == "M":
        seconds = (t - np.datetime64(0, "s")) / np.timedelta64(1, "s")
    elif t.dtype.kind in "iuf":
        seconds = t.astype(np.float64)
    else:
        raise ConfigError(f"t holds {t.dtype}, not times", remedy="give Unix seconds")
    bad = np.flatnonzero(~np.isfinite(seconds))
    if len(bad):
        raise ConfigError("is not a time", where=f"t[{bad[0]}]", remedy="give Unix seconds")
    return np.asarray(seconds, np.float64)


def _feature_names(names: NDArray[Any] | None, width: int) -> tuple[str, ...]:
    if names is None:
        return ()
    if names.dtype.kind not in "US" or names.shape != (width,):
        raise ConfigError(
            f"names does not name {width} features", remedy="one text a column of X, or leave it out"
        )
    return tuple(_text(name) for name in names.tolist())


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class NpzSource:
    """The rows of an npz file, which is read at once as `recording`. See `rows.Source`."""

    unit, content = "row", "a row"

    def __init__(self, path: Path) -> None:
        self.recording = recorded = read_npz(path)
        columns: dict[str, list[Any]] = {}
        if recorded.y is not None:
            columns["label"] = self._labels()
        if recorded.t is not None:
            columns["time"] = recorded.t.tolist()
        if recorded.key is not None:
            columns["key"] = recorded.key
        self._columns = columns
        self.name_features(recorded.names)

    def name_features(self, names: Sequence[str]) -> None:
        """Give the features these names, where the file has none."""
        self.features = tuple(names)
        self.names = (*names, *self._columns)
        self.first: dict[str, Any] = {}

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Each row's number, from 0, and its cells of `columns`."""
        features = dict(zip(self.features, self.recording.x.T.tolist(), strict=True))
        cells = features | self._columns
        yield from enumerate(zip(*(cells[name] for name in columns), strict=True))

    def _labels(self) -> list[Any]:
        """Labels as they were given: names of classes, or numbers; None for none."""
        y, classes = self.recording.y, self.recording.classes
        if y is None:
            return [None] * len(self.recording)
        return y.tolist() if not classes else [classes[int(v)] if v >= 0 else None for v in y.tolist()]
