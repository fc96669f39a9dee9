"""States in the recorder's database of Home Assistant (SQLite): each entity is a column.

Two forms are read: a table `states` whose entities are named in `states_meta`, and the older one with
`entity_id` in `states` itself. Times are in `last_updated_ts`, or as text in `last_updated`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from edged.errors import ConfigError
from edged.storage.recordings.rows import ABSENT

TIME = "time"


class RecorderSource:
    """Each row is a new state of one entity: all other cells are absent. See `rows.Source`."""

    unit = "state"
    content = "a state"

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        columns = {row[1] for row in db.execute("PRAGMA table_info(states)")}
        if not {"state", "state_id"} <= columns:
            raise ConfigError("has no table of states", remedy="give Home Assistant's home-assistant_v2.db")
        named = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'states_meta'").fetchone() is not None
        self._entity = "m.entity_id" if named else "s.entity_id"
        self._states = "states s" + (" JOIN states_meta m ON m.metadata_id = s.metadata_id" if named else "")
        texts = "(julianday(s.last_updated) - 2440587.5) * 86400.0" if "last_updated" in columns else "NULL"
        stamps = "s.last_updated_ts" if "last_updated_ts" in columns else "NULL"
        self._time = f"coalesce({stamps}, {texts})"
        entities = "states_meta m" if named else "states s"
        found = db.execute(f"SELECT DISTINCT {self._entity} FROM {entities} ORDER BY 1")  # noqa: S608  constants
        self.features = tuple(str(row[0]) for row in found if row[0])
        self.names = (*self.features, TIME)
        self.first: dict[str, Any] = {}

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[RecorderSource]:
        """Open a database for reading; ConfigError when it is none, or of another program."""
        path.open("rb").close()  # SQLite's error would not say why
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
                yield cls(db)
        except sqlite3.Error as problem:
            raise ConfigError(
                f"the database cannot be read: {problem}", remedy="copy it while Home Assistant is stopped"
            ) from problem

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[Any] | None]]:
        """Each state's number and its cells of `columns`, in the order of time."""
        places = {name: place for place, name in enumerate(columns)}
        time = places.get(TIME)
        marks = ", ".join("?" * len(columns))
        states = self._db.execute(
            f"SELECT s.state_id, {self._entity}, s.state, {self._time} AS at FROM {self._states}"  # noqa: S608
            f" WHERE {self._entity} IN ({marks}) ORDER BY at, s.state_id",
            tuple(columns),
        )
        for number, entity, state, at in states:
            cells: list[Any] = [ABSENT] * len(columns)
            cells[places[entity]] = state
            if time is not None:
                cells[time] = at
            yield number, cells
