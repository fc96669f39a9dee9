"""The windows of one key, over the log of the whole stream."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from edged.storage.files.database import connect
from edged.storage.samples.log import SampleLog
from edged.storage.samples.tables import KEY_INDEX
from tests.storage.stream import CLASSIFY, batch, open_log


def indexed(folder: Path) -> bool:
    """Whether the log has the index for windows of one key."""
    with closing(connect(folder / "samples.db", readonly=True)) as db:
        return db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (KEY_INDEX,)).fetchone() is not None


def test_windows_of_a_key_hold_its_samples_alone(tmp_path: Path) -> None:
    with open_log(tmp_path, holdout=0.2, by_key=True) as log:
        log.commit(batch(1, 900, labelled=True, keys=3))
        view = log.of_key("m1")
        for whole, part in (
            (log.training_window(100, 10_000, upto_seq=800), view.training_window(100, 10_000, upto_seq=800)),
            (log.holdout_window(10_000), view.holdout_window(10_000)),
            (log.older_holdout(10_000, 500, 1), view.older_holdout(10_000, 500, 1)),
        ):
            mine = np.array([key == "m1" for key in log.keys(whole.offsets)])
            assert 0 < mine.sum() < len(whole)
            assert part.offsets.tolist() == whole.take(mine).offsets.tolist()
            assert part.x.tolist() == whole.take(mine).x.tolist()
        assert view.labelled_since(100) == len(view.training_window(100, 10_000))
        assert len(view.training_parts(0, 10_000, 50)) == round(view.labelled_since(0) / 50) + 1
        assert log.labels_by_key(100, 800)["m1"] == len(view.training_window(100, 10_000, upto_seq=800))
        assert sum(view.labels_by_class().values()) == view.labelled_since(0)
        assert (view.last_seq(), view.next_offset()) == (log.last_seq(), log.next_offset())
        assert log.of_key("nobody").labelled_since(0) == 0


def test_a_key_with_strange_characters_is_found(tmp_path: Path) -> None:
    with open_log(tmp_path, holdout=0.0) as log:
        one = batch(1, 4, labelled=True)
        one.keys[:] = ["a'b", 'a"b', "a'b", "%"]
        log.commit(one)
        assert [log.of_key(key).labelled_since(0) for key in ("a'b", 'a"b', "%", "_")] == [2, 1, 1, 0]


def test_only_a_log_whose_keys_have_models_has_the_index(tmp_path: Path) -> None:
    for wanted in (False, True, True, False):
        with SampleLog.open(tmp_path / "samples.db", CLASSIFY, by_key=wanted) as log:
            assert indexed(tmp_path) is wanted
            log.commit(batch(log.next_offset(), 10, labelled=True))


def test_windows_of_a_key_are_read_from_its_index(tmp_path: Path) -> None:
    with open_log(tmp_path, by_key=True) as log:
        log.commit(batch(1, 300, labelled=True, keys=3))
    with closing(connect(tmp_path / "samples.db", readonly=True)) as db:
        plan = db.execute(
            "EXPLAIN QUERY PLAN SELECT label_seq FROM samples WHERE key = ? AND label_seq IS NOT NULL"
            " AND holdout = 0 AND label_seq BETWEEN 1 AND 50 ORDER BY label_seq DESC LIMIT 10",
            ("m1",),
        ).fetchall()
    assert all(KEY_INDEX in str(step) for step in plan)
