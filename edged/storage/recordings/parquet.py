"""Parquet, by the package pyarrow (extra `parquet`), which is loaded when such a file is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from edged.errors import ConfigError, UnavailableError
from edged.storage.recordings.records import flat
from edged.storage.recordings.rows import ABSENT

_BATCH = 8192


class ParquetSource:
    """Rows of a Parquet file, one batch in memory at a time; see `rows.Source`."""

    unit = "row"
    content = "a row"

    def __init__(self, file: Any, arrow: Any) -> None:
        self._file = file
        # Python's times have microseconds, and no more.
        stamp, types = arrow.timestamp("us", "UTC"), arrow.types
        self._schema = arrow.schema(
            [
                (
                    field.name,
                    stamp if types.is_timestamp(field.type) or types.is_date(field.type) else field.type,
                )
                for field in file.schema_arrow
            ]
        )
        first = next(self._batches(1), None)
        self.first: dict[str, Any] = flat(first.to_pylist()[0]) if first is not None else {}
        self.names = self.features = tuple(self.first or file.schema_arrow.names)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[ParquetSource]:
        """Open a file; ConfigError when it is no Parquet, UnavailableError without pyarrow."""
        try:
            parquet, arrow = import_module("pyarrow.parquet"), import_module("pyarrow")
        except ImportError as problem:
            raise UnavailableError(
                f"the package pyarrow is missing: {problem}", where=str(path),
                remedy='pip install "edged[parquet]"',
            ) from problem  # fmt: skip
        try:
            with parquet.ParquetFile(path) as file:
                yield cls(file, arrow)
        except arrow.ArrowException as problem:
            line = str(problem).partition("\n")[0]
            raise ConfigError(f"no Parquet file: {line}", remedy="fetch or write it again") from problem

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[Any] | None]]:
        """Each row's number, from 0, and its cells of `columns`."""
        plain = set(self._file.schema_arrow.names)
        number = 0
        for batch in self._batches(_BATCH):
            if plain.issuperset(columns):
                cells = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
                yield from enumerate(cells, number)
            else:
                for at, row in enumerate(batch.to_pylist(), number):
                    fields = flat(row)
                    yield at, [fields.get(name, ABSENT) for name in columns]
            number += len(batch)

    def _batches(self, rows: int) -> Iterator[Any]:
        for batch in self._file.iter_batches(rows):
            yield batch.cast(self._schema, safe=False)
