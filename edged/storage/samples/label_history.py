"""Labels that people give to stored samples, and take back.

An interval is labelled in parts, a transaction each, so that ingest continues in between; `complete` finishes
what a power cut has interrupted.
"""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from edged.domain.stream.sample import LabelUpdate, LabelValue
from edged.domain.stream.schema import Schema
from edged.errors import RefusedError
from edged.storage.files.database import json_list
from edged.storage.samples.label_actions import (
    KEPT,
    LabelAction,
    add,
    drop,
    find,
    find_all,
    packed,
    text_of,
    unpacked,
    write,
)
from edged.storage.samples.log import SampleLog
from edged.storage.samples.rows import WITHDRAWN, checksum_with, encoded
from edged.storage.samples.tables import SampleCounts

PART = 1000  # samples in one transaction
PAUSE = 0.002  # seconds after it, in which ingest commits
_ROW_BYTES = 16  # about what the label of before takes of one

_COLUMNS = "offset, y, label_seq, label_ts, changes, holdout, ingested"
_OF_INTERVAL = f"""SELECT {_COLUMNS}, ts FROM samples
    WHERE key = ? AND (ts, offset) > (?, ?) AND ts <= ? AND offset < ? AND ifnull(changes, 0) < {WITHDRAWN}
    ORDER BY ts, offset LIMIT ?"""
_OF_OFFSETS = f"SELECT {_COLUMNS} FROM samples WHERE offset IN (SELECT value FROM json_each(?))"
_SET = f"""UPDATE samples SET y = ?1, checksum = {checksum_with("?1")}, label_seq = ?2, label_ts = ?3,
    changes = ?4 WHERE offset = ?5"""
_LATER = """SELECT a.number FROM samples s JOIN label_actions a ON a.ts = s.label_ts
    WHERE s.offset IN (SELECT value FROM json_each(?)) AND a.number > ? AND a.undone_by IS NULL LIMIT 1"""

_Label = tuple[Any, int | None, float | None, int | None]
"""Of a sample: y, label_seq, label_ts, changes."""


class LabelHistory:
    """Labels samples of `log` by what people say, and undoes it.

    Of the samples' earlier labels `max_bytes` are kept, those of the newest action in any case.
    """

    def __init__(self, log: SampleLog, schema: Schema, max_bytes: int) -> None:
        self._log, self._schema, self._max_bytes = log, schema, max_bytes

    def find(self, command: str) -> LabelAction | None:
        """The action that a command has done or undone; None without one."""
        return self._one("WHERE command = ?1 OR undone_by = ?1", command)

    def release(self, command: str) -> None:
        """Let a command have the name of an earlier one, whose response is not needed any more."""
        if self.find(command) is not None:
            with self._log.changing(0) as (db, _):
                db.execute(
                    "UPDATE label_actions SET"
                    " command = CASE command WHEN ?1 THEN 'before ' || number ELSE command END,"
                    " undone_by = CASE undone_by WHEN ?1 THEN 'before' ELSE undone_by END"
                    " WHERE command = ?1 OR undone_by = ?1",
                    (command,),
                )

    def newest(self, number: int | None = None) -> LabelAction:
        """The newest action that is not undone, or the one of this number.

        Raises RefusedError when there is none, or it is undone already.
        """
        found = (
            self._one("WHERE undone_by IS NULL ORDER BY number DESC LIMIT 1")
            if number is None
            else self._one("WHERE number = ?", number)
        )
        if found is None:
            raise RefusedError(
                "there is nothing to undo" if number is None else f"there is no action {number}",
                where="number", remedy=f"use the number in one of the newest {KEPT} responses to `label`",
            )  # fmt: skip
        if found.undone_by is not None:
            raise RefusedError(f"{number} is undone already", where="number")
        return found

    def _one(self, where: str, *values: object) -> LabelAction | None:
        with self._log.looking() as db:
            return find(db, where, *values)

    # ---- labels -------------------------------------------------------------------------------

    def label(self, command: str, updates: Sequence[LabelUpdate], now: float) -> LabelAction:
        """Give samples these labels, all at `now`; of a sample that is named twice the last one counts."""
        values = dict(zip([u.offset for u in updates], self._values([u.label for u in updates]), strict=True))
        with self._log.changing(_ROW_BYTES * len(values)) as (db, tally):
            action = self._begin(db, LabelAction(0, command, now, None, "samples"))
            rows = db.execute(_OF_OFFSETS, (json_list(sorted(values)),)).fetchall()
            self._put(db, tally, action, rows, [values[row[0]] for row in rows])
            write(db, action)
        return action

    def begin_interval(
        self, command: str, key: str, first: float, last: float, label: LabelValue | None, now: float
    ) -> LabelAction:
        """Begin to give the stored samples of a key from `first` to `last` a label, or None to have none.

        Raises RefusedError when there are none.
        """
        self._log.index_times()
        with self._log.changing(_ROW_BYTES * PART) as (db, tally):
            (y,) = [None] if label is None else self._values([label])
            action = LabelAction(
                0, command, now, None, "interval", key, last, text_of(y), tally.next_offset,
                (math.nextafter(first, -math.inf), tally.next_offset), open=True,
            )  # fmt: skip
            if not self._rows_of(db, action, 1):
                raise RefusedError(
                    f"no sample of {key!r} is stored from {first:.3f} to {last:.3f}",
                    where="from", remedy="times are Unix seconds or ISO 8601, in UTC without a zone",
                )  # fmt: skip
            self._begin(db, action)
        return action

    def go_on(self, action: LabelAction) -> list[int]:
        """Label or undo the next part of an open action; offsets of its samples, none when it is done."""
        time.sleep(PAUSE)
        with self._log.changing(_ROW_BYTES * PART) as (db, tally):
            if find(db, "WHERE number = ?", action.number) is None:
                action.open = False  # all labels were wiped meanwhile
                return []
            if action.undone_by is not None:
                return self._undo_part(db, tally, action)
            rows = self._rows_of(db, action, PART)
            if rows:
                y = self._stored(action.y)
                self._put(db, tally, action, [row[:-1] for row in rows], [y] * len(rows))
                action.at = (rows[-1][-1], rows[-1][0])
            action.open = len(rows) == PART
            write(db, action)
        return [row[0] for row in rows]

    def complete(self) -> None:
        """Finish what an earlier process has begun."""
        with self._log.looking() as db:
            actions = [action for action in find_all(db, "ORDER BY number") if action.open]
        for action in actions:
            while action.open:
                self.go_on(action)

    def _rows_of(self, db: sqlite3.Connection, action: LabelAction, most: int) -> list[Any]:
        interval = (action.key, *action.at, action.last, action.horizon, most)
        return db.execute(_OF_INTERVAL, interval).fetchall()

    def _put(
        self,
        db: sqlite3.Connection,
        tally: SampleCounts,
        action: LabelAction,
        rows: Sequence[Any],
        values: Sequence[Any],
    ) -> None:
        """Give samples their labels. Those without a position in label order come at its end."""
        states: list[_Label] = []
        for (_, _, seq, *_), y in zip(rows, values, strict=True):
            position = None if y is None else seq
            if y is not None and seq is None:
                position, tally.next_seq = tally.next_seq, tally.next_seq + 1
            states.append((y, position, action.ts, None))
        if rows:
            before = packed([(row[0], text_of(row[1]), *row[2:5]) for row in rows])
            db.execute(
                "INSERT INTO labels_before (number, oldest, rows) VALUES (?, ?, ?)",
                (action.number, min(row[6] for row in rows), before),
            )
        action.rows += len(rows)
        action.had += sum(row[2] is not None for row in rows)
        _replace(db, tally, rows, states)

    def _begin(self, db: sqlite3.Connection, action: LabelAction) -> LabelAction:
        add(db, action)
        sizes = db.execute(
            "SELECT number, sum(length(rows)) FROM labels_before GROUP BY number ORDER BY number DESC"
        ).fetchall()
        total = 0
        for number, size in sizes:
            total += size
            if total > self._max_bytes:
                drop(db, "number <= ?", number)
                break
        return action

    # ---- back ---------------------------------------------------------------------------------

    def begin_undo(self, number: int | None, command: str) -> LabelAction:
        """Begin to undo an action on samples, the newest without a number.

        Raises RefusedError when a later action has labelled samples of it again.
        """
        action = self.newest(number)
        below: int | None = None
        while below != 0:
            time.sleep(PAUSE)
            with self._log.looking() as db:
                below, rows = self._newest_part(db, action.number, below)
                later = db.execute(_LATER, (json_list([row[0] for row in rows]), action.number)).fetchone()
            if later is not None:
                raise RefusedError(
                    f"{later[0]} has labelled samples of {action.number} again",
                    where="number", remedy=f"undo {later[0]} first",
                )  # fmt: skip
        action.undone_by, action.open = command, True
        with self._log.changing(0) as (db, _):
            write(db, action)
        return action

    def _undo_part(self, db: sqlite3.Connection, tally: SampleCounts, action: LabelAction) -> list[int]:
        part, before = self._newest_part(db, action.number)
        now = {row[0]: row for row in db.execute(_OF_OFFSETS, (json_list([row[0] for row in before]),))}
        back = [row for row in before if row[0] in now and now[row[0]][3] == action.ts]
        action.back += len(back)
        action.back_had += sum(row[2] is not None for row in back)
        action.kept += sum(row[0] in now for row in before) - len(back)
        action.gone = action.rows - action.back - action.kept
        states: list[_Label] = [(self._stored(y), seq, ts, changes) for _, y, seq, ts, changes in back]
        _replace(db, tally, [now[row[0]] for row in back], states)
        db.execute("DELETE FROM labels_before WHERE part = ?", (part,))
        action.open = part > 0
        write(db, action)
        return [row[0] for row in before]

    @staticmethod
    def _newest_part(db: sqlite3.Connection, number: int, below: int | None = None) -> tuple[int, list[Any]]:
        """The newest part of an action, or the next one before another; 0 and no rows after the last."""
        found = db.execute(
            "SELECT part, rows FROM labels_before WHERE number = ?1 AND (?2 IS NULL OR part < ?2)"
            " ORDER BY part DESC LIMIT 1",
            (number, below),
        ).fetchone()
        return (0, []) if found is None else (found[0], unpacked(found[1]))

    # ---- labels in the log --------------------------------------------------------------------

    def _values(self, labels: list[LabelValue]) -> list[Any]:
        return list(encoded(labels, self._schema))

    def _stored(self, y: float | str | None) -> Any:
        return bytes.fromhex(y) if isinstance(y, str) else y


def _replace(
    db: sqlite3.Connection, tally: SampleCounts, rows: Sequence[Any], states: Sequence[_Label]
) -> None:
    """Give samples, as they are now, other labels. A sample that lost its label to contradictions had one."""
    for (_, _, seq, _, changes, holdout, _), (_, position, _, contradictions) in zip(
        rows, states, strict=True
    ):
        tally.labels += (position is not None or contradictions is not None) - (
            seq is not None or changes is not None
        )
        tally.holdout_labels += holdout * ((position is not None) - (seq is not None))
        tally.relabelled += seq is not None
    tally.labels = max(0, tally.labels)
    db.executemany(_SET, [(*state, row[0]) for row, state in zip(rows, states, strict=True)])
