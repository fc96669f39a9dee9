"""Labels that come after their samples: the last one wins, until there have been too many of them.

A label that differs from the one before is a contradiction. It is counted and takes the other's place;
a sample whose label has been changed more often than allowed loses it, and is learned from no more.
"""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from edged.domain.stream.sample import LabelUpdate
from edged.storage.files.database import json_list
from edged.storage.samples.rows import checksum_with
from edged.storage.samples.tables import SampleCounts, numbers_of

_SET = f"UPDATE samples SET y = ?1, checksum = {checksum_with('?1')}, label_ts = ?2, source = ?5"
_FRESH = f"{_SET}, label_seq = ?3 WHERE offset = ?4"
_AGAIN = f"{_SET}, changes = ?3 WHERE offset = ?4"
_WITHDRAW = f"{_SET}, label_seq = NULL, changes = ?3 WHERE offset = ?4"
_ASIDE = """UPDATE samples SET label_seq = NULL
    WHERE label_seq IS NOT NULL AND offset IN (SELECT value FROM json_each(?))"""
_SET_ASIDE = """SELECT offset, holdout FROM samples
    WHERE key = ? AND offset >= ? AND label_seq IS NULL ORDER BY offset"""
_READMIT = "UPDATE samples SET label_seq = ? WHERE offset = ?"
_STATES = """SELECT offset, label_seq, holdout, y, changes FROM samples
    WHERE offset IN (SELECT value FROM json_each(?))"""


@dataclass(slots=True)
class _State:
    """The label of one stored sample."""

    seq: int | None
    holdout: int
    y: Any
    changes: int


def apply(
    db: sqlite3.Connection,
    updates: Sequence[LabelUpdate],
    values: Iterable[Any],
    tally: SampleCounts,
    allowed: int,
) -> None:
    """Write labels into the current transaction, in this order.

    `updates` have the offsets of their samples, `values` are the same labels as column `y` has them, and may
    be endless. The label of one sample may change as often as `allowed`. The counts of `tally` are brought up
    to date.
    """
    known = _states(db, [update.offset for update in updates])
    sources = numbers_of(db, (update.source for update in updates))
    for update, value in zip(updates, values, strict=False):
        state = known.get(update.offset)
        if state is None:
            tally.orphaned += 1
        elif state.seq is None and state.changes <= allowed:
            _first(db, state, update, value, tally, sources.get(update.source))
        else:
            tally.relabelled += 1
            _another(db, state, update, value, tally, allowed, sources.get(update.source))


def _first(
    db: sqlite3.Connection,
    state: _State,
    update: LabelUpdate,
    value: Any,
    tally: SampleCounts,
    source: int | None,
) -> None:
    db.execute(_FRESH, (value, update.ts, tally.next_seq, update.offset, source))
    state.seq, state.y = tally.next_seq, value
    tally.next_seq += 1
    tally.labels += 1
    tally.holdout_labels += state.holdout


def _another(
    db: sqlite3.Connection,
    state: _State,
    update: LabelUpdate,
    value: Any,
    tally: SampleCounts,
    allowed: int,
    source: int | None,
) -> None:
    if state.seq is None:
        return  # it was withdrawn: nothing makes its label trustworthy again
    if value != state.y:
        tally.contradicted += 1
        state.changes += 1
    if state.changes <= allowed:
        db.execute(_AGAIN, (value, update.ts, state.changes or None, update.offset, source))
        state.y = value
        return
    db.execute(_WITHDRAW, (None, update.ts, state.changes, update.offset, source))
    state.seq = state.y = None
    tally.holdout_labels -= state.holdout


def exclude(db: sqlite3.Connection, offsets: Sequence[int], tally: SampleCounts) -> None:
    """Exclude samples from label order, in the current transaction; their labels stay."""
    out = [state for state in _states(db, list(offsets)).values() if state.seq is not None]
    tally.holdout_labels -= sum(state.holdout for state in out)
    tally.relabelled += len(out)  # readers that hold them read them again
    db.execute(_ASIDE, (json_list(list(offsets)),))


def include(db: sqlite3.Connection, key: str, first: int, tally: SampleCounts) -> int:
    """Put what was set aside of a key, from offset `first` on, at the end of label order; how many."""
    found = db.execute(_SET_ASIDE, (key, first)).fetchall()
    for seq, (offset, holdout) in enumerate(found, tally.next_seq):
        db.execute(_READMIT, (seq, offset))
        tally.holdout_labels += holdout
    tally.next_seq += len(found)
    return len(found)


def _states(db: sqlite3.Connection, offsets: list[int]) -> dict[int, _State]:
    """Of the samples that are there."""
    found = db.execute(_STATES, (json_list(offsets),))
    return {offset: _State(seq, holdout, y, changes or 0) for offset, seq, holdout, y, changes in found}
