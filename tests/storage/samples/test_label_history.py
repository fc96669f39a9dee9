"""Labels that people give and take back: afterwards the log is as it was, whatever came in between."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.stream.sample import LabelUpdate
from edged.domain.training.batch_pool import RowCache
from edged.errors import RefusedError
from edged.storage.samples import label_history
from edged.storage.samples.label_actions import KEPT
from edged.storage.samples.label_history import LabelHistory
from edged.storage.samples.rows import is_whole
from tests.storage.stream import CLASSIFY, REGRESS_TWO, START, batch, open_log

if TYPE_CHECKING:
    from edged.domain.stream.sample import LabelValue
    from edged.domain.stream.schema import Schema
    from edged.storage.samples.label_actions import LabelAction
    from edged.storage.samples.log import SampleLog

LATER = START + 10_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SampleLog]:
    with open_log(tmp_path, holdout=0.3, relabels=1) as opened:
        yield opened


def history_of(log: SampleLog, schema: Schema = CLASSIFY, max_bytes: int = 1 << 20) -> LabelHistory:
    return LabelHistory(log, schema, max_bytes)


def between(
    history: LabelHistory, first: int, last: int, label: LabelValue | None, *, key: str = "m0", name: str = ""
) -> LabelAction:
    """Label the samples of a key from one offset to another."""
    action = history.begin_interval(
        name or f"{first}-{last}-{label}", key, START + first, START + last, label, LATER
    )
    finish(history, action)
    return action


def finish(history: LabelHistory, action: LabelAction) -> None:
    while action.open:
        history.go_on(action)


def undo(history: LabelHistory, number: int | None = None, name: str = "undo") -> LabelAction:
    action = history.begin_undo(number, name)
    finish(history, action)
    return action


def rows(log: SampleLog) -> list[Any]:
    """All of what is stored of the samples; whole rows, whose counts are right."""
    with log.looking() as db:
        found = db.execute("SELECT * FROM samples ORDER BY offset").fetchall()
        checked = db.execute("SELECT key, ts, holdout, x, y, checksum FROM samples").fetchall()
        held = db.execute("SELECT count(*) FROM samples WHERE holdout AND label_seq IS NOT NULL").fetchone()[
            0
        ]
    assert all(is_whole(row, len(row[3])) for row in checked)
    assert log.counters().holdout_labels == held
    return found


def counts(log: SampleLog) -> dict[str, int]:
    """All counts but the two that never go back: `relabelled` tells caches what to read again."""
    return {
        name: count
        for name, count in vars(log.counters()).items()
        if name not in ("relabelled", "next_seq", "bytes")
    }


def labels(log: SampleLog) -> dict[int, float]:
    """Of all samples that have one."""
    found = [log.training_window(0, 10_000), log.holdout_window(10_000)]
    return {o: y for w in found for o, y in zip(w.offsets.tolist(), w.y[:, 0].tolist(), strict=True)}


# ---- intervals ---------------------------------------------------------------------------------


def test_an_interval_labels_the_samples_of_its_key_and_no_others(log: SampleLog) -> None:
    log.commit(batch(1, 40, keys=2))
    history = history_of(log)
    action = between(history, 10, 20, 1.0)
    assert labels(log) == dict.fromkeys(range(10, 21, 2), 1.0)
    assert (action.rows, action.had) == (6, 0)
    seq = [row[6] for row in rows(log) if row[6] is not None]
    assert seq == list(range(1, 7)), "in label order, as they happened"
    log.commit(batch(41, 4, keys=2))
    assert len(labels(log)) == 6, "what comes afterwards has no label"


def test_a_correction_keeps_its_place_and_never_withdraws_a_sample(log: SampleLog) -> None:
    log.commit(batch(1, 10, labels=[0.0] * 10))
    history = history_of(log)
    for number in range(6):
        between(history, 3, 5, float(number % 2), name=str(number))
    assert [labels(log)[offset] for offset in (2, 3, 4, 5, 6)] == [0.0, 1.0, 1.0, 1.0, 0.0]
    assert [row[6] for row in rows(log)] == list(range(1, 11))
    log.commit(None, [LabelUpdate(9, 1.0, LATER), LabelUpdate(9, 0.0, LATER)])
    assert 9 not in labels(log), "sensors have contradicted each other too often"
    between(history, 9, 9, 1.0)
    assert labels(log)[9] == 1.0


def test_null_takes_labels_away(log: SampleLog) -> None:
    log.commit(batch(1, 10, labelled=True))
    before, counted = rows(log), counts(log)
    history = history_of(log)
    between(history, 4, 6, None)
    assert sorted(labels(log)) == [1, 2, 3, 7, 8, 9, 10]
    assert log.counters().labels == 7
    undo(history)
    assert (rows(log), counts(log)) == (before, counted)


def test_an_interval_without_samples_is_refused_and_leaves_nothing(log: SampleLog) -> None:
    log.commit(batch(1, 5))
    with pytest.raises(RefusedError, match="no sample of 'm0'"):
        between(history_of(log), 100, 200, 1.0)
    with pytest.raises(RefusedError, match="nothing to undo"):
        undo(history_of(log))


def test_targets_of_several_numbers_come_back_too(tmp_path: Path) -> None:
    with open_log(tmp_path, REGRESS_TWO) as log:
        log.commit(batch(1, 6, labels=[(0.1, 0.2)] * 6))
        before, history = rows(log), history_of(log, REGRESS_TWO)
        between(history, 2, 4, (5.0, 6.0))
        np.testing.assert_array_equal(log.rows([2, 5]).y, np.array([[5.0, 6.0], [0.1, 0.2]], np.float32))
        undo(history)
        assert rows(log) == before


def test_it_is_found_by_an_index(log: SampleLog) -> None:
    log.commit(batch(1, 10))
    log.index_times()
    with log.looking() as db:
        sql = label_history._OF_INTERVAL  # noqa: SLF001  as it is sent
        plan = db.execute(f"EXPLAIN QUERY PLAN {sql}", ("m0", 0.0, 0, 9e9, 100, 10)).fetchall()
    assert len(plan) == 1, "no sorting"
    assert "USING INDEX sample_times (key=? AND ts>? AND ts<?)" in plan[0][3]


# ---- power cuts --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_what_a_power_cut_interrupts_is_finished(
    tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of 5 samples; cut off after some of them, in labelling and in undoing."""
    monkeypatch.setattr(label_history, "PART", 5)
    with open_log(tmp_path) as log:
        log.commit(batch(1, 30, labels=[0.0, None, 1.0] * 10))
        before, counted = rows(log), counts(log)
        history = history_of(log)
        action = history.begin_interval("it", "m0", START + 6, START + 20, 1.0, LATER)
        for _ in range(cut):
            history.go_on(action)
    with open_log(tmp_path) as log:
        log.commit(batch(31, 3))  # ingest was quicker
        assert history_of(log).find("nobody") is None
        history = history_of(log)
        history.complete()
        found = history.find("it")
        assert found is not None
        assert (found.open, found.rows, found.had) == (False, 15, 10)
        assert [labels(log)[offset] for offset in range(6, 21)] == [1.0] * 15
        action = history.begin_undo(None, "back")
        for _ in range(cut):
            history.go_on(action)
    with open_log(tmp_path) as log:
        history = history_of(log)
        history.complete()
        done = history.find("back")
        assert done is not None
        assert (done.number, done.open, done.back, done.back_had) == (action.number, False, 15, 10)
        assert rows(log)[:30] == before
        assert counts(log) == counted | {"samples": 33, "rows": 33, "next_offset": 34}


def test_a_part_that_the_disk_refuses_is_finished_by_the_next_try(
    log: SampleLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_history, "PART", 5)
    log.commit(batch(1, 12))
    history = history_of(log)
    action = history.begin_interval("it", "m0", START, START + 12, 1.0, LATER)
    history.go_on(action)
    with closing(sqlite3.connect(log._path)) as other:  # noqa: SLF001
        assert other.execute("SELECT count(*) FROM samples WHERE label_seq").fetchone() == (5,)
    history.complete()
    assert len(labels(log)) == 12
    finish(history, action)  # the command that was left behind does no harm
    assert len(labels(log)) == 12
    undo(history)
    assert labels(log) == {}


# ---- undo --------------------------------------------------------------------------------------


def test_labels_since_stay_and_evicted_samples_are_left_out(log: SampleLog) -> None:
    log.commit(batch(1, 10, labels=[0.0] * 10))
    history = history_of(log)
    between(history, 1, 10, 1.0)
    log.commit(None, [LabelUpdate(4, 0.0, LATER + 5)])
    with log.changing(0) as (db, tally):
        db.execute("DELETE FROM samples WHERE offset = 2")
        tally.rows, tally.holdout_labels = (
            9,
            db.execute("SELECT count(*) FROM samples WHERE holdout AND label_seq IS NOT NULL").fetchone()[0],
        )
    done = undo(history)
    assert (done.back, done.kept, done.gone) == (8, 1, 1)
    assert set(labels(log).values()) == {0.0}
    rows(log)


def test_an_earlier_one_is_undone_only_where_no_later_one_stands_on_it(log: SampleLog) -> None:
    log.commit(batch(1, 30))
    history = history_of(log)
    first, second, apart = (
        between(history, 1, 10, 0.0), between(history, 5, 12, 1.0), between(history, 20, 25, 1.0)
    )  # fmt: skip
    with pytest.raises(RefusedError, match=f"{second.number} has labelled samples of {first.number} again"):
        undo(history, first.number)
    undo(history, second.number)
    assert labels(log) == dict.fromkeys(range(1, 11), 0.0) | dict.fromkeys(range(20, 26), 1.0)
    undo(history, first.number, name="undo again")
    assert labels(log) == dict.fromkeys(range(20, 26), 1.0)
    with pytest.raises(RefusedError, match="undone already"):
        undo(history, first.number)
    assert history.newest().number == apart.number


def test_a_name_may_come_again(log: SampleLog) -> None:
    log.commit(batch(1, 10))
    history = history_of(log)
    for _ in range(3):
        history.release("a")
        first = between(history, 1, 5, 1.0, name="a")
        history.release("back")
        assert undo(history, name="back").number == first.number
    assert labels(log) == {}


def test_the_history_is_bounded_in_number_and_bytes(log: SampleLog) -> None:
    log.commit(batch(1, 3 * KEPT, labels=[0.25] * (3 * KEPT)))
    history = history_of(log)
    for number in range(KEPT + 20):
        between(history, number + 1, number + 1, 1.0)
    with pytest.raises(RefusedError, match="no action"):
        undo(history, 20)
    undo(history, 21)
    small = history_of(log, max_bytes=200)
    between(small, 200, 300, 0.0)
    between(small, 1, 2, 0.0)
    with pytest.raises(RefusedError, match="no action"):
        undo(small, KEPT + 20)


def test_nothing_of_it_outlives_the_age_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_history, "PART", 5)
    with open_log(tmp_path, max_age=100.0) as log:
        log.commit(batch(1, 50))
        history = history_of(log)
        action = history.begin_interval("it", "m0", START, START + 50, 1.0, START + 60)
        finish(history, action)
        log.evict(START + 100 + 12)
        done = undo(history)
        assert (done.back, done.kept) == (35, 0), "in parts of five"
        assert done.gone == 15
        log.evict(START + 161)
        with log.looking() as db:
            assert db.execute("SELECT count(*) FROM label_actions").fetchone() == (0,)
            assert db.execute("SELECT count(*) FROM labels_before").fetchone() == (0,)


def test_a_wipe_leaves_nothing_of_it(log: SampleLog) -> None:
    log.commit(batch(1, 10, labelled=True))
    history = history_of(log)
    action = history.begin_interval("it", "m0", START, START + 10, 1.0, LATER)
    log.erase(labels=True)
    finish(history, action)
    assert labels(log) == {}, "an interval under way ends"
    with log.looking() as db:
        assert db.execute("SELECT count(*) FROM label_actions").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM labels_before").fetchone() == (0,)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_said_and_undone_leaves_the_log_as_it_was(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random samples, labels of sensors, and actions of people; undone from the newest on."""
    monkeypatch.setattr(label_history, "PART", 7)
    rng = np.random.default_rng(seed)
    with open_log(tmp_path, holdout=0.3, relabels=1) as log:
        own: list[LabelValue | None] = [None if v < 0 else float(v) for v in rng.integers(-1, 2, 60)]
        log.commit(batch(1, 60, labels=own, keys=2))
        for _ in range(80):
            log.commit(None, [LabelUpdate(int(rng.integers(1, 61)), float(rng.integers(2)), START)])
        history = history_of(log)
        states = []
        for number in range(8):
            states.append((rows(log), counts(log)))
            first = int(rng.integers(1, 60))
            label = None if rng.random() < 0.3 else float(rng.integers(2))
            if rng.random() < 0.3:
                chosen = [LabelUpdate(int(o), float(rng.integers(2)), LATER) for o in rng.integers(1, 61, 5)]
                history.label(str(number), chosen, LATER)
            else:
                key = f"m{rng.integers(2)}"
                between(history, first, first + int(rng.integers(1, 40)), label, key=key, name=str(number))
        for number in reversed(range(8)):
            seen = log.relabelled()
            action = undo(history, name=f"undo {number}")
            assert action.kept == action.gone == 0
            assert (rows(log), counts(log)) == states[number]
            assert log.relabelled() >= seen


# ---- learning ----------------------------------------------------------------------------------


def test_rows_that_a_trainer_keeps_are_read_again_after_each_change(log: SampleLog) -> None:
    log.commit(batch(1, 20, labels=[0.0] * 10 + [None] * 10))
    history, cache, wanted = history_of(log), RowCache(log), np.arange(1, 21)

    def kept() -> dict[int, float]:
        window = cache.rows(wanted, log.relabelled())
        return dict(zip(window.offsets.tolist(), window.y[:, 0].tolist(), strict=True))

    assert kept() == dict.fromkeys(range(1, 11), 0.0)
    for first, last, label in ((3, 4, 1.0), (5, 6, None), (15, 16, 1.0)):
        between(history, first, last, label)
        assert kept() == labels(log)
    for number in range(3):
        undo(history, name=f"undo {number}")
        assert kept() == labels(log)
