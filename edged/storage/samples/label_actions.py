"""What people have said of labels, as the sample log remembers it.

Each action and the rows that it replaced are written in the transaction that changes the samples, so it can
be undone exactly.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from edged.domain.stream.sample import HeldChange, HeldLabel
from edged.logs import get_logger
from edged.storage.files.checked_table import CheckedTable

log = get_logger("edged.samples")

# label_actions.state  JSON of the fields of LabelAction that are no columns.
# undone_by            the command that undid it, or is at it.
# oldest               when the first of these samples came: with `storage.max_age` they go with it.
# labels_before.rows   zlib of JSON, columns: offset, y (hexadecimal for several targets), label_seq,
#                      label_ts and changes of samples as they were.
TABLES = (
    """CREATE TABLE label_actions (
        number INTEGER PRIMARY KEY AUTOINCREMENT, command TEXT NOT NULL UNIQUE, ts REAL NOT NULL,
        undone_by TEXT, state TEXT NOT NULL, checksum INTEGER NOT NULL)""",
    """CREATE TABLE labels_before (
        part INTEGER PRIMARY KEY, number INTEGER NOT NULL, oldest REAL NOT NULL, rows BLOB NOT NULL)""",
    "CREATE INDEX label_parts ON labels_before(number)",
)
KEPT = 100  # actions that can be undone
_TICK = 1e-6  # seconds between two actions at least: `label_ts` tells whose label a sample has
_ACTIONS = CheckedTable("label_actions", ("command", "ts", "undone_by", "state"), "number", ("state",))


@dataclass
class LabelAction:
    """One thing that a person said.

    `kind`: an `interval` of one key, `samples` one by one, or `held`, a label that holds from `ts` on (Unix
    seconds). `command` tells it from others, `undone_by` is the command that undid it. Of an interval `last`
    is its end, `y` the label as the column has it, `horizon` the first offset that came after it, `at` the
    event time and offset up to which it is labelled; `open` until all of it is. `rows` samples were labelled,
    of which `had` had a label. An undoing gave `back` samples what they had, to `back_had` of them a label;
    `kept` have been labelled again since, `gone` are not here any more. `held` and `now_held` are the labels
    that held before and after, with since when.
    """

    number: int
    command: str
    ts: float
    undone_by: str | None
    kind: Literal["interval", "samples", "held"]
    key: str | None = None
    last: float = 0.0
    y: float | str | None = None
    horizon: int = 0
    at: tuple[float, int] = (-1.0, -1)
    open: bool = False
    rows: int = 0
    had: int = 0
    back: int = 0
    back_had: int = 0
    kept: int = 0
    gone: int = 0
    held: tuple[list[float], float] | None = None
    now_held: tuple[list[float], float] | None = None


def record_held(db: sqlite3.Connection, change: HeldChange) -> None:
    """Record what a command has changed about the label that holds, in the current transaction."""
    if change.undoes is None:
        if find(db, "WHERE command = ?", change.command) is None:
            action = LabelAction(0, change.command, change.ts, None, "held", change.key)
            action.held, action.now_held = _held(change.before), _held(change.after)
            add(db, action)
    elif (undone := find(db, "WHERE number = ?", change.undoes)) is not None:
        undone.undone_by = change.command
        write(db, undone)


def held_label(stored: tuple[list[float], float] | None) -> HeldLabel | None:
    """A label that held, as an action has it."""
    if stored is None:
        return None
    label, since = stored
    return HeldLabel(label[0] if len(label) == 1 else tuple(label), since)


def drop(db: sqlite3.Connection, which: str, value: object) -> None:
    """Forget the actions of which a condition with one value holds."""
    doomed = f"SELECT number FROM label_actions WHERE {which}"  # noqa: S608  constants
    db.execute(f"DELETE FROM labels_before WHERE number IN ({doomed})", (value,))  # noqa: S608  the line above
    db.execute(f"DELETE FROM label_actions WHERE {which}", (value,))  # noqa: S608  constants


def add(db: sqlite3.Connection, action: LabelAction) -> None:
    """Add an action, later than all before it; of the oldest those beyond `KEPT` go."""
    newest = db.execute("SELECT max(ts) FROM label_actions").fetchone()[0]
    action.ts = action.ts if newest is None else max(action.ts, newest + _TICK)
    action.number = _ACTIONS.insert(db, _row(action))
    drop(db, "number <= ?", action.number - KEPT)


def write(db: sqlite3.Connection, action: LabelAction) -> None:
    """Store how far an action has come."""
    _ACTIONS.update(db, _row(action))


def _row(action: LabelAction) -> dict[str, Any]:
    state = asdict(action)
    return {name: state.pop(name) for name in ("number", "command", "ts", "undone_by")} | {"state": state}


def find(db: sqlite3.Connection, where: str, *values: object) -> LabelAction | None:
    """Return the first action of a condition; None without one."""
    return next(iter(find_all(db, where, *values)), None)


def find_all(db: sqlite3.Connection, where: str, *values: object) -> list[LabelAction]:
    """Read actions; a damaged one is left out, and cannot be undone."""
    return [LabelAction(**row.pop("state"), **row) for row in _ACTIONS.select(db, where, *values)]


def packed(rows: Sequence[tuple[Any, ...]]) -> bytes:
    """Pack rows for the table `labels_before`."""
    return zlib.compress(json.dumps(list(zip(*rows, strict=True))).encode())


def unpacked(rows: bytes) -> list[Any]:
    """Rows of `labels_before`; none when they are not what was written."""
    try:
        return list(zip(*json.loads(zlib.decompress(rows)), strict=True))
    except (zlib.error, ValueError, TypeError) as problem:
        log.warning("labels_before_damaged", problem=str(problem)[:80], action="not undone")
        return []


def text_of(y: Any) -> Any:
    """Column `y` as JSON can have it."""
    return y.hex() if isinstance(y, bytes) else y


def _held(one: HeldLabel | None) -> tuple[list[float], float] | None:
    if one is None:
        return None
    return list(one.label) if isinstance(one.label, tuple) else [one.label], one.since
