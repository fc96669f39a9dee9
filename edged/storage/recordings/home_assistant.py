"""States in the recorder's database of Home Assistant (SQLite): each entity is a column.

Its table `states` names entities by their number in `states_meta`, as Home Assistant does since 2023.4.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from edged.errors import ConfigError
from edged.storage.files.database import json_list
from edged.storage.recordings.rows import ABSENT

TIME = "time"
_STATES = """SELECT state_id, states_meta.entity_id, state, last_updated_ts
    FROM states JOIN states_meta USING (metadata_id)
    WHERE states_meta.entity_id IN (SELECT value FROM json_each(?)) ORDER BY last_updated_ts, state_id"""


class RecorderSource:
    """Each row is a new state of one entity: all other cells are absent. See `rows.Source`."""

    unit = "state"
    content = "a state"

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        columns = {row[1] for row in db.execute("PRAGMA table_info(states)")}
        if not {"state", "state_id", "metadata_id", "last_updated_ts"} <= columns:
            raise ConfigError(
                "has no states of Home Assistant 2023.4 or later", remedy="give its home-assistant_v2.db"
            )
        found = db.execute("SELECT DISTINCT entity_id FROM states_meta ORDER BY 1")
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
        states = self._db.execute(_STATES, (json_list(columns),))
        for number, entity, state, at in states:
            cells: list[Any] = [ABSENT] * len(columns)
            cells[places[entity]] = state
            if time is not None:
                cells[time] = at
            yield number, cells
