from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from edged.errors import CorruptError, StorageError
from edged.storage import journal
from edged.storage.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path


def test_values_outlive_the_process(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        assert registry.get_value("quality") is None
        assert registry.get_value("quality", 0.5) == 0.5
        registry.set_value("quality", {"accuracy": 0.9, "since": [1, None]})
    with Registry.open(tmp_path, readonly=True) as registry:
        assert registry.get_value("quality") == {"accuracy": 0.9, "since": [1, None]}


def test_boots_are_counted(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        with Registry.open(tmp_path) as registry:
            assert registry.next_boot() == expected


def test_a_run_is_recorded_from_its_beginning(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        assert registry.begin_run("labels", 10.0, {"steps": 5}) == 1
        going_on = registry.runs()[0]
        assert (going_on.trigger, going_on.started, going_on.request) == ("labels", 10.0, {"steps": 5})
        assert (going_on.ended, going_on.outcome, going_on.result) == (None, None, None)
        registry.end_run(1, 12.0, "done", {"loss": 0.5})
        assert registry.begin_run("command", 20.0) == 2
        assert [run.id for run in registry.runs()] == [2, 1]
        done = registry.runs(10)[1]
        assert (done.ended, done.outcome, done.result) == (12.0, "done", {"loss": 0.5})
        assert registry.run_count() == 2


def test_a_run_that_a_crash_left_open_is_interrupted(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        registry.begin_run("labels", 10.0)
        registry.end_run(1, 11.0, "done")
        registry.begin_run("labels", 20.0)
    with Registry.open(tmp_path, readonly=True) as registry:
        assert registry.runs()[0].outcome is None
    with Registry.open(tmp_path) as registry:
        assert [run.outcome for run in registry.runs()] == ["interrupted", "done"]
        assert registry.begin_run("labels", 30.0) == 3


def test_only_the_newest_runs_are_kept_but_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "RUNS_KEPT", 3)
    with Registry.open(tmp_path) as registry:
        for number in range(1, 6):
            assert registry.begin_run("labels", float(number)) == number
        assert [run.id for run in registry.runs()] == [5, 4, 3]
        assert registry.run_count() == 5


def test_what_is_not_recorded_cannot_end(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        with pytest.raises(StorageError, match="run 7 is not recorded"):
            registry.end_run(7, 1.0, "done")
        with pytest.raises(StorageError, match="command x is not recorded"):
            registry.answer_command("x", {})


def test_a_command_is_done_once_and_answered_again(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        assert registry.record_command("t1", "train", 1.0, {"steps": 5}) is None
        assert registry.record_command("t1", "train", 1.5, {}) == {"pending": True}
        registry.answer_command("t1", {"ok": True, "run": 4})
        assert registry.record_command("t1", "train", 2.0, {}) == {"ok": True, "run": 4}
        assert registry.record_command("t2", "train", 3.0, {}) is None
    with Registry.open(tmp_path) as registry:
        assert registry.record_command("t1", "train", 4.0, {}) == {"ok": True, "run": 4}
        assert registry.record_command("t2", "train", 5.0, {}) == {"interrupted": True}


def test_old_commands_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMMANDS_KEPT", 2)
    with Registry.open(tmp_path) as registry:
        for number in range(4):
            assert registry.record_command(f"t{number}", "train", 1.0, {}) is None
        assert registry.record_command("t3", "train", 1.0, {}) == {"pending": True}
        assert registry.record_command("t0", "train", 1.0, {}) is None


def test_threads_share_one_registry(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        ids: list[int] = []

        def work() -> None:
            for _ in range(20):
                ids.append(registry.begin_run("labels", 1.0))
                registry.end_run(ids[-1], 2.0, "done")
                registry.set_value("last", registry.runs(1)[0].id)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ids) == list(range(1, 81))


def test_what_is_missing_or_damaged_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"state\.db: there is no such database yet"):
        Registry.open(tmp_path, readonly=True)
    (tmp_path / "state.db").write_bytes(b"nothing" * 1000)
    with pytest.raises(CorruptError, match=r"state\.db: the database is damaged"):
        Registry.open(tmp_path)
