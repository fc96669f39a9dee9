"""state.db: training runs, commands and small values that outlive the process."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edged.errors import StorageError
from edged.storage.database import connect, migrate, require_version, snapshot, transaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from edged.storage.database import Migrations

DATABASE = "state.db"
RUNS_KEPT = 5000
COMMANDS_KEPT = 1000
_COUNTER = "counter."

MIGRATIONS: Migrations = (
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY, trigger TEXT NOT NULL, started REAL NOT NULL, request TEXT NOT NULL,
            ended REAL, outcome TEXT, result TEXT)""",
        "CREATE INDEX open_runs ON runs(id) WHERE outcome IS NULL",
        """CREATE TABLE commands (
            number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, ts REAL NOT NULL,
            request TEXT NOT NULL, answer TEXT)""",
        """CREATE TABLE models (
            version INTEGER PRIMARY KEY, parent INTEGER, created REAL NOT NULL, source TEXT NOT NULL,
            run INTEGER, generation INTEGER, data TEXT NOT NULL, metrics TEXT NOT NULL, verdict TEXT,
            status TEXT NOT NULL, proven INTEGER NOT NULL, pinned INTEGER NOT NULL)""",
        """CREATE TABLE reigns (
            number INTEGER PRIMARY KEY, ts REAL NOT NULL, version INTEGER NOT NULL, previous INTEGER,
            reason TEXT NOT NULL)""",
    ),
)


@dataclass(frozen=True)
class RunRecord:
    """One training run; `ended`, `outcome` and `result` are None while it goes on.

    `outcome` is a word of the caller's, or `interrupted` for one that a crash left open.
    """

    id: int
    trigger: str
    started: float
    request: dict[str, Any]
    ended: float | None
    outcome: str | None
    result: dict[str, Any] | None


class Journal:
    """Runs, commands and values in `state.db`; safe to use from several threads."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._lock = threading.RLock()

    @staticmethod
    def _connect(state_dir: Path, *, readonly: bool) -> tuple[sqlite3.Connection, Path]:
        path = state_dir / DATABASE
        db = connect(path, readonly=readonly)
        with ExitStack() as unless_opened:
            unless_opened.callback(db.close)
            if readonly:
                require_version(db, path, len(MIGRATIONS))
            else:
                migrate(db, path, MIGRATIONS)
            unless_opened.pop_all()
        return db, path

    def close(self) -> None:
        """Close the connection; nothing is lost without it."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- values ----------------------------------------------------------------------------

    def get_value(self, name: str, default: Any = None) -> Any:
        """The JSON value kept under `name`."""
        with self._reading():
            row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return default if row is None else json.loads(row[0])

    def set_value(self, name: str, value: Any) -> None:
        """Keep a JSON value under `name`."""
        with self._writing():
            self._set(name, value)

    def next_boot(self) -> int:
        """Count one more start of the daemon; the first is 1."""
        with self._writing():
            return self._count("boot")

    def boots(self) -> int:
        """Starts of the daemon so far."""
        return int(self.get_value(_COUNTER + "boot", 0))

    def _set(self, name: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, json.dumps(value)))

    def _count(self, name: str, at_least: int = 1) -> int:
        """The next number of a counter that never goes back, in the current transaction."""
        name = _COUNTER + name
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        number = max(at_least, 1 if row is None else int(json.loads(row[0])) + 1)
        self._set(name, number)
        return number

    # ---- training runs ---------------------------------------------------------------------

    def begin_run(self, trigger: str, ts: float, request: Mapping[str, Any] | None = None) -> int:
        """Note that a run starts; its id, never used before."""
        with self._writing():
            number = self._count("run")
            self._db.execute(
                "INSERT INTO runs (id, trigger, started, request) VALUES (?, ?, ?, ?)",
                (number, trigger, ts, json.dumps(dict(request or {}))),
            )
            self._db.execute("DELETE FROM runs WHERE id <= ?", (number - RUNS_KEPT,))
        return number

    def end_run(self, run: int, ts: float, outcome: str, result: Mapping[str, Any] | None = None) -> None:
        """Note how a run ended."""
        with self._writing():
            found = self._db.execute(
                "UPDATE runs SET ended = ?, outcome = ?, result = ? WHERE id = ?",
                (ts, outcome, json.dumps(dict(result or {})), run),
            )
            self._require(found, f"run {run}")

    def runs(self, limit: int = 100) -> list[RunRecord]:
        """The newest runs, newest first."""
        with self._reading():
            found = self._db.execute(
                "SELECT id, trigger, started, request, ended, outcome, result FROM runs"
                " ORDER BY id DESC LIMIT ?",
                (limit,),
            ).fetchall()
        return [_run(*row) for row in found]

    def run_count(self) -> int:
        """Runs ever begun."""
        return int(self.get_value(_COUNTER + "run", 0))

    def _close_interrupted(self) -> list[int]:
        """At the start nothing can be under way: what is still open was cut off. The runs that were."""
        with self._writing():
            cut = [row[0] for row in self._db.execute("SELECT id FROM runs WHERE outcome IS NULL")]
            self._db.execute("UPDATE runs SET outcome = 'interrupted' WHERE outcome IS NULL")
            self._db.execute(
                "UPDATE commands SET answer = ? WHERE answer IS NULL", (json.dumps({"interrupted": True}),)
            )
        return cut

    # ---- commands --------------------------------------------------------------------------

    def record_command(
        self, command: str, name: str, ts: float, request: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Note a command under its transaction id, so that a redelivered one is not done twice.

        Returns
        -------
        None when it is new and to be done. Else the answer it was given; `{"pending": True}` while
        it is being done; `{"interrupted": True}` when the daemon ended before it had an answer.
        """
        with self._writing():
            row = self._db.execute("SELECT answer FROM commands WHERE id = ?", (command,)).fetchone()
            if row is not None:
                return _value(row[0]) or {"pending": True}
            self._db.execute(
                "INSERT INTO commands (id, name, ts, request) VALUES (?, ?, ?, ?)",
                (command, name, ts, json.dumps(dict(request))),
            )
            self._db.execute(
                "DELETE FROM commands WHERE number <= (SELECT max(number) FROM commands) - ?",
                (COMMANDS_KEPT,),
            )
        return None

    def answer_command(self, command: str, answer: Mapping[str, Any]) -> None:
        """Keep the answer of a command."""
        with self._writing():
            found = self._db.execute(
                "UPDATE commands SET answer = ? WHERE id = ?", (json.dumps(dict(answer)), command)
            )
            self._require(found, f"command {command}")

    # ---- transactions ----------------------------------------------------------------------

    def _require(self, found: sqlite3.Cursor, what: str) -> None:
        if found.rowcount == 0:
            raise StorageError(f"{what} is not recorded", where=str(self._path))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, transaction(self._db, self._path):
            yield

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, snapshot(self._db, self._path):
            yield


def _run(
    number: int,
    trigger: str,
    started: float,
    request: str,
    ended: float | None,
    outcome: str | None,
    result: str | None,
) -> RunRecord:
    return RunRecord(number, trigger, started, json.loads(request), ended, outcome, _value(result))


def _value(text: str | None) -> dict[str, Any] | None:
    return None if text is None else dict(json.loads(text))
