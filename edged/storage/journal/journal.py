"""state.db: training runs, commands and small values that outlive the process."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from typing_extensions import Self

from edged.domain.audit_chain import AuditEntry, Link
from edged.domain.commands.rules import OPEN, State
from edged.domain.federated.round_orders import FleetModelResult, RoundResult, TrainedWeights
from edged.domain.json_fields import JsonObject
from edged.domain.training.training_run import Received, RunCause, RunEnd, RunResult
from edged.errors import StorageError
from edged.logs import get_logger
from edged.storage.files.checked_table import CheckedTable
from edged.storage.files.database import connect, snapshot, transaction

DATABASE = "state.db"
AHEAD = 1_000_000  # numbers of messages that the stored bound is ahead
RUNS_KEPT = 5000
_COUNTER = "counter."
_HORIZON = "command_horizon"
_AUDIT = "audit."
_AUDIT_HEAD = "audit"  # name of the value that repeats where the audit log ends
_META = CheckedTable("meta", ("name", "value"), "name", ("value",))
_RUNS = CheckedTable(
    "runs",
    ("id", "trigger", "started", "request", "ended", "outcome", "result"),
    "id",
    ("request", "result"),
)
_COMMANDS = CheckedTable(
    "commands",
    ("id", "name", "ts", "digest", "state", "request", "answer", "ended", "response_topic", "correlation"),
    "id",
    ("request", "answer"),
)

RunProduct: TypeAlias = RunResult | Received | RoundResult | TrainedWeights | FleetModelResult | RunEnd

FORMAT = 1
TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY, trigger TEXT NOT NULL, started REAL NOT NULL, request TEXT NOT NULL,
        ended REAL, outcome TEXT, result TEXT, checksum INTEGER NOT NULL)""",
    "CREATE INDEX open_runs ON runs(id) WHERE outcome IS NULL",
    """CREATE TABLE commands (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, ts REAL NOT NULL,
        digest TEXT NOT NULL, state TEXT NOT NULL, request TEXT NOT NULL, answer TEXT, ended REAL,
        response_topic TEXT, correlation BLOB, checksum INTEGER NOT NULL)""",
    "CREATE INDEX open_commands ON commands(state) WHERE ended IS NULL",
    """CREATE TABLE models (
        version INTEGER PRIMARY KEY, parent INTEGER, created REAL NOT NULL, source TEXT NOT NULL,
        run INTEGER, generation INTEGER, data TEXT NOT NULL, metrics TEXT NOT NULL, verdict TEXT,
        status TEXT NOT NULL, proven INTEGER NOT NULL, pinned INTEGER NOT NULL, checksum INTEGER NOT NULL)""",
    """CREATE TABLE reigns (
        number INTEGER PRIMARY KEY, ts REAL NOT NULL, version INTEGER NOT NULL, previous INTEGER,
        reason TEXT NOT NULL, checksum INTEGER NOT NULL)""",
)


@dataclass(frozen=True)
class RunRecord:
    """One training run; `ended`, `outcome` and `result` are None while it is in progress.

    `started` and `ended` are Unix seconds. `outcome` is chosen by the caller, or is `interrupted` for a run
    that a crash left open. `result` is the JSON that a run of its kind ends with; `end` is read from it.
    """

    id: int
    trigger: str
    started: float
    request: RunCause
    ended: float | None
    outcome: str | None
    result: JsonObject | None

    @property
    def end(self) -> RunEnd:
        """How the run has ended; None of what its result does not say."""
        return RunEnd.from_json({**(self.result or {}), "run": self.id, "outcome": str(self.outcome)})


@dataclass(frozen=True)
class CommandRecord:
    """One command: who it is, when it came (Unix seconds), how far it has come, what it was answered last.

    `digest` tells requests under one identity apart; `request` is kept where the command is gone on with
    after a restart; `response_topic` and `correlation` are MQTT 5's.
    """

    id: str
    name: str
    ts: float
    digest: str
    state: State
    request: Mapping[str, Any]
    answer: JsonObject | None = None
    ended: float | None = None
    response_topic: str | None = None
    correlation: bytes | None = None


class CommandRetention(NamedTuple):
    """How many commands are remembered, and those since when (Unix seconds)."""

    rows: int
    since: float


class Journal:
    """Runs, commands and values in `state.db`; safe to use from several threads.

    While `audit_waits`, entries might wait for the audit log.
    """

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.audit_waits = True
        self._db = db
        self._path = path
        self._lock = threading.RLock()

    @classmethod
    def open(cls, state_dir: Path) -> Self:
        """Open the journal, creating it if needed; StorageError when it cannot be opened."""
        return cls(*cls._connect(state_dir, readonly=False))

    @staticmethod
    def _connect(state_dir: Path, *, readonly: bool) -> tuple[sqlite3.Connection, Path]:
        path = state_dir / DATABASE
        return connect(path, TABLES, FORMAT, readonly=readonly), path

    def close(self) -> None:
        """Close the connection; nothing is lost without it."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- values ----------------------------------------------------------------------------

    def get_value(self, name: str, default: Any = None) -> Any:
        """Read the JSON value stored under `name`; `default` if there is none."""
        with self._reading():
            return self._get(name, default)

    def set_value(self, name: str, value: Any) -> None:
        """Store a JSON value under `name`, durably."""
        with self._writing():
            self._set(name, value)

    def next_boot(self) -> int:
        """Count one more start of the daemon; the first is 1."""
        with self._writing():
            return self._count("boot")

    def skip_boots(self, count: int) -> None:
        """Count further starts that a device may have had after a backup, if it had any before."""
        with self._writing():
            if boots := int(self._get(_COUNTER + "boot", 0)):
                self._count("boot", boots + count)

    def boots(self) -> int:
        """How often the daemon was started so far."""
        return int(self.get_value(_COUNTER + "boot", 0))

    def _get(self, name: str, default: Any = None) -> Any:
        rows = _META.select(self._db, "WHERE name = ?", name)
        return rows[0]["value"] if rows else default

    def _set(self, name: str, value: Any) -> None:
        _META.insert(self._db, {"name": name, "value": value}, replace=True)

    def _count(self, name: str, at_least: int = 1) -> int:
        """The next number of a counter that never goes back, in the current transaction."""
        name = _COUNTER + name
        number = max(at_least, int(self._get(name, 0)) + 1)
        self._set(name, number)
        return number

    # ---- training runs ---------------------------------------------------------------------

    def begin_run(self, trigger: str, ts: float, request: RunCause | None = None) -> int:
        """Note that a run starts; its id, never used before."""
        with self._writing():
            newest = self._db.execute("SELECT max(id) FROM runs").fetchone()[0] or 0
            number = self._count("run", newest + 1)  # the counter may have been lost to damage
            asked = (request or RunCause()).to_json()
            row = {"id": number, "trigger": trigger, "started": ts, "request": asked}
            _RUNS.insert(self._db, dict.fromkeys(_RUNS.columns) | row)
            self._db.execute("DELETE FROM runs WHERE id <= ?", (number - RUNS_KEPT,))
        return number

    def end_run(self, run: int, ts: float, outcome: str, result: RunProduct | None = None) -> None:
        """Record how a run ended, at Unix time `ts`."""
        with self._writing():
            row = self._one(_RUNS.select(self._db, "WHERE id = ?", run), f"run {run}")
            ended = {"ended": ts, "outcome": outcome, "result": {} if result is None else result.record()}
            _RUNS.update(self._db, row | ended)

    def runs(self, limit: int = 100) -> list[RunRecord]:
        """List the newest runs, newest first."""
        with self._reading():
            found = _RUNS.select(self._db, "ORDER BY id DESC LIMIT ?", limit)
        return [RunRecord(**row | {"request": RunCause.from_json(row["request"])}) for row in found]

    def run_count(self) -> int:
        """How many runs were ever started."""
        return int(self.get_value(_COUNTER + "run", 0))

    def _close_interrupted(self) -> list[int]:
        """At the start nothing can be under way: what is still open was cut off. The runs that were."""
        with self._writing():
            cut = _RUNS.select(self._db, "WHERE outcome IS NULL")
            for row in cut:
                _RUNS.update(self._db, row | {"outcome": "interrupted"})
        return [row["id"] for row in cut]

    # ---- commands --------------------------------------------------------------------------

    def find_command(self, key: str) -> CommandRecord | None:
        """The command of this identity, if one came and is remembered."""
        return next(iter(self._commands("WHERE id = ?", key)), None)

    def open_commands(self) -> list[CommandRecord]:
        """Commands that were begun and have no outcome, oldest first."""
        marks = ", ".join("?" * len(OPEN))
        return self._commands(f"WHERE ended IS NULL AND state IN ({marks}) ORDER BY number", *OPEN)

    def commands(self, limit: int = 100) -> list[CommandRecord]:
        """List the newest commands, newest first."""
        return self._commands("ORDER BY number DESC LIMIT ?", limit)

    def _commands(self, which: str, *values: str | int) -> list[CommandRecord]:
        with self._reading():
            rows = _COMMANDS.select(self._db, which, *values)
        return [CommandRecord(**row) for row in rows]

    def record_command(self, record: CommandRecord, kept: CommandRetention) -> None:
        """Note a new command, before it is carried out; those that are too many or too old are forgotten.

        When the newest of these came is the `command_horizon` from then on.
        """
        row = vars(record) | {"answer": None, "ended": None}
        # What has no outcome yet is never forgotten.
        doomed = "ended IS NOT NULL AND (ts < ? OR number <= (SELECT max(number) FROM commands) - ?)"
        bounds = (kept.since, kept.rows)
        with self._writing():
            _COMMANDS.insert(self._db, row)
            self._forget_commands(doomed, *bounds)

    def _forget_commands(self, doomed: str, *bounds: float) -> None:
        """Delete commands in the current transaction; older ones that come later are refused."""
        newest = self._db.execute(f"SELECT max(ts) FROM commands WHERE {doomed}", bounds).fetchone()[0]  # noqa: S608
        if newest is not None:
            self._db.execute(f"DELETE FROM commands WHERE {doomed}", bounds)  # noqa: S608
            self._set(_HORIZON, max(float(newest), float(self._get(_HORIZON, 0.0))))

    def command_horizon(self) -> float:
        """When the newest command came that is not remembered any more, Unix seconds; 0 for none."""
        return float(self.get_value(_HORIZON, 0.0))

    def update_command(
        self,
        key: str,
        state: State,
        *,
        answer: Mapping[str, Any] | None = None,
        ended: float | None = None,
        audit: AuditEntry | None = None,
    ) -> None:
        """Note how far a command has come, and the answer it was given last; `audit` is an entry about it."""
        with self._writing():
            row = self._one(_COMMANDS.select(self._db, "WHERE id = ?", key), f"command {key}")
            given = {} if answer is None else {"answer": dict(answer)}
            _COMMANDS.update(self._db, row | given | {"state": state, "ended": ended})
            if audit is not None:
                self._audit(audit)

    # ---- audit log -------------------------------------------------------------------------

    def record_audit(self, entry: AuditEntry, **values: Any) -> None:
        """Let an entry wait for the audit log, durably, and store the values that it is about."""
        with self._writing():
            self._audit(entry)
            for name, value in values.items():
                self._set(name, value)

    def _audit(self, entry: AuditEntry) -> None:
        """Let an entry wait for the audit log, in the current transaction."""
        # A restored database may count again from an earlier number: the rest of the name is unique.
        self._set(f"{_AUDIT}{self._count('audit'):012d}.{secrets.token_hex(8)}", entry.to_json())
        self.audit_waits = True

    def waiting_audit(self) -> Mapping[str, AuditEntry]:
        """Return the entries that wait for the audit log, by the name of their row, oldest first."""
        with self._reading():
            self.audit_waits = False
            rows = _META.select(self._db, "WHERE name GLOB ? ORDER BY name", f"{_AUDIT}*")
        return {row["name"]: AuditEntry.from_json(row["value"]) for row in rows}

    def audit_head(self) -> Link | None:
        """Where the audit log ends; None before its first entry."""
        head = self.get_value(_AUDIT_HEAD)
        return None if head is None else Link(**head)

    def remove_audit(self, names: list[str], head: Link | None) -> None:
        """Remove entries that the audit log has; `head` is where it ends, None where it is not here."""
        with self._writing():
            self._db.executemany("DELETE FROM meta WHERE name = ?", [(name,) for name in names])
            self._set(_AUDIT_HEAD, None if head is None else vars(head))

    # ---- transactions ----------------------------------------------------------------------

    def _one(self, found: list[dict[str, Any]], what: str) -> dict[str, Any]:
        if not found:
            raise StorageError(f"{what} is not recorded", where=str(self._path))
        return found[0]

    def _drop_damaged(self) -> list[str]:
        """Delete the rows that are not what was written; one line for each table that had some."""
        with self._writing():
            gone = {table.name: table.drop_damaged(self._db) for table in self._tables()}
        return [
            f"{count} damaged rows of {name} in {DATABASE} were dropped"
            for name, count in gone.items()
            if count
        ]

    def _tables(self) -> tuple[CheckedTable, ...]:
        return (_META, _RUNS, _COMMANDS)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, transaction(self._db, self._path):
            yield

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, snapshot(self._db, self._path):
            yield


log = get_logger("edged.sequence")


class Sequence:
    """Rising numbers, none of which is given twice on this device.

    The journal holds a number that is never reached between two calls of `keep`, so that a number costs no
    write. After an orderly end the next one follows on; after a kill there is a gap.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._next = int(journal.get_value("seq") or 1)
        self._bound = self._next
        self.reserve()

    def __call__(self) -> int:
        """The next number; from any thread."""
        with self._lock:
            number = self._next
            self._next += 1
        return number

    def reserve(self) -> None:
        """Move the stored bound on when half of its numbers are used; call this regularly."""
        if self._bound - self._next < AHEAD // 2:
            self._write(self._next + AHEAD)

    def close(self) -> None:
        """Store the next number, so that the next start continues without a gap."""
        self._write(self._next)

    def _write(self, bound: int) -> None:
        try:
            self._journal.set_value("seq", bound)
        except StorageError as problem:
            log.warning("sequence_not_kept", problem=problem.line())
        else:
            self._bound = bound
