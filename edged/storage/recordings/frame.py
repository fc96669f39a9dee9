"""Columns in memory, such as a data frame of pandas, as a file of rows is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from edged.errors import ConfigError, UnavailableError

_KINDS = "a data frame, a pyarrow table, or a mapping of columns by name"


class Frame:
    """Named columns of equal length; see `rows.Source`. As a path it is called `data frame`.

    Raises ConfigError when the columns are not equally long.
    """

    unit, content = "row", "a row"
    name = "data frame"

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = dict(columns)
        self.names = self.features = tuple(self._columns)
        lengths = {name: len(cells) for name, cells in self._columns.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ConfigError(
                f"columns differ in length: {listed}",
                where=self.name,
                remedy="give all columns the same rows",
            )
        self.first = {name: cells[0] for name, cells in self._columns.items() if len(cells)}

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, data: Any) -> Frame:
        """Read the columns of a data frame, a table of pyarrow or a mapping; nothing else is imported.

        Missing values become empty cells. Other objects that export the Arrow C stream are read by pyarrow.

        Raises ConfigError for anything else; UnavailableError when pyarrow would be needed and is missing.
        """
        return cls({str(name): _cells(column) for name, column in _columns(data)})

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Each row's number, from 0, and its cells of `columns`."""
        yield from enumerate(zip(*(self._columns[name] for name in columns), strict=True))


def _columns(data: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(data, Mapping):
        return data.items()
    names = getattr(data, "column_names", None)  # a table of pyarrow, whose `columns` have no names
    if names is None and hasattr(data, "__getitem__"):
        names = getattr(data, "columns", None)
    if names is not None:
        return [(name, data[name]) for name in names]
    if not hasattr(data, "__arrow_c_stream__"):
        raise ConfigError(
            f"expected {_KINDS}, got {type(data).__name__}", where="data", remedy="or name a file"
        )
    try:
        table = import_module("pyarrow").table(data)
    except ImportError as problem:
        raise UnavailableError(
            f"the package pyarrow is missing: {problem}", where="data", remedy='pip install "edged[parquet]"'
        ) from problem
    return zip(table.column_names, table.columns, strict=True)


def _cells(column: Any) -> list[Any]:
    """The cells of a column as Python's own values, None for a missing one."""
    if hasattr(column, "to_pylist"):
        return list(column.to_pylist())
    if hasattr(column, "isna"):  # pandas: NA and NaT are neither numbers nor times
        column = column.astype(object).where(column.notna(), None)
    if getattr(getattr(column, "dtype", None), "kind", "") == "M":
        column = column.astype("datetime64[us]")  # Python's times have microseconds, and no more
    for method in ("tolist", "to_list"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)
