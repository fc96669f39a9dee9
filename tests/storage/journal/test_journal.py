from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from edged.domain.training.training_run import RunCause, RunEnd
from edged.errors import CorruptError, StorageError
from edged.storage.journal import journal
from edged.storage.journal.journal import CommandRecord, CommandRetention, RunRecord
from edged.storage.models.registry import Registry


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
        assert registry.begin_run("labels", 10.0, RunCause(steps=5)) == 1
        going_on = registry.runs()[0]
        assert (going_on.trigger, going_on.started, going_on.request) == ("labels", 10.0, RunCause(steps=5))
        assert (going_on.ended, going_on.outcome, going_on.result) == (None, None, None)
        registry.end_run(1, 12.0, "failed", RunEnd(1, error="no memory"))
        assert registry.begin_run("command", 20.0) == 2
        assert [run.id for run in registry.runs()] == [2, 1]
        done = registry.runs(10)[1]
        assert (done.ended, done.outcome, done.result) == (12.0, "failed", {"error": "no memory"})
        assert done.end == RunEnd(1, outcome="failed", error="no memory")
        assert registry.run_count() == 2


def test_what_a_run_began_with_is_stored_by_name(tmp_path: Path) -> None:
    causes = {
        RunCause(steps=5, asked_by=("a", "b"), resumes=3): {"steps": 5, "asked_by": ["a", "b"], "resumes": 3},
        RunCause(transfer="t"): {"transfer": "t"},
        RunCause(round=7, id="x"): {"round": 7, "id": "x"},
    }
    with Registry.open(tmp_path) as registry:
        for cause in (*causes, None):
            registry.begin_run("command", 1.0, cause)
        assert [run.request for run in reversed(registry.runs())] == [*causes, RunCause()]
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        stored = [json.loads(request) for (request,) in db.execute("SELECT request FROM runs ORDER BY id")]
    assert stored == [*causes.values(), {}]


def test_the_end_of_a_run_is_read_from_its_result() -> None:
    record = RunRecord(4, "labels", 1.0, RunCause(), 2.0, "done", {"steps": 5, "type": "result"})
    assert record.end == RunEnd(4, steps=5)
    failed = replace(record, outcome="failed", result={"error": "no memory"})
    assert failed.end.error == "no memory"
    assert replace(record, outcome="interrupted", result={}).end.outcome == "interrupted"
    assert replace(record, outcome="interrupted", result=None).end == RunEnd(4, outcome="interrupted")


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
            registry.update_command("x", "failed")


def command(number: int, ts: float = 1.0) -> CommandRecord:
    return CommandRecord(
        f"train:{number}", "train", ts, "d", "accepted", {"n": number}, correlation=b"\0\xff"
    )


def test_a_command_and_its_answer_outlive_the_process(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        assert registry.find_command("train:1") is None
        registry.record_command(command(1), CommandRetention(10, 0.0))
        registry.record_command(command(2), CommandRetention(10, 0.0))
        registry.update_command("train:1", "executing", answer={"data": {"state": "accepted"}})
        registry.update_command("train:2", "successful", answer={"data": {"run": 4}}, ended=5.0)
    with Registry.open(tmp_path) as registry:
        (left,) = registry.open_commands()
        assert left == replace(command(1), state="executing", answer={"data": {"state": "accepted"}})
        done = registry.find_command("train:2")
        assert done == replace(command(2), state="successful", answer={"data": {"run": 4}}, ended=5.0)
        registry.update_command("train:1", "failed", ended=6.0)
        assert registry.open_commands() == []
        found = registry.commands()
        assert [record.state for record in found] == ["successful", "failed"]
        assert found[1].answer == {"data": {"state": "accepted"}}, "the answer stays where none is given"


def test_the_oldest_commands_are_forgotten_and_it_is_known_since_when(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        for number in range(1, 6):
            registry.record_command(command(number, float(number)), CommandRetention(2, 0.0))
            if number != 1:
                registry.update_command(f"train:{number}", "successful", ended=9.0)
        assert [record.request["n"] for record in registry.commands()] == [5, 4, 1], "an open one is kept"
        assert registry.command_horizon() == 3.0
        registry.record_command(command(6, 6.0), CommandRetention(100, 5.0))
        assert [record.request["n"] for record in registry.commands()] == [6, 5, 1]
        assert registry.command_horizon() == 4.0


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


def spoil(path: Path, statement: str) -> None:
    """Change values as damage would: without their checksums."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute(statement).rowcount > 0


@pytest.mark.parametrize(
    ("statement", "lost"),
    [
        ("UPDATE runs SET result = '{' WHERE id = 1", "runs"),
        ("UPDATE runs SET trigger = CAST(x'ff' AS TEXT) WHERE id = 1", "runs"),
        ("UPDATE runs SET started = 'soon' WHERE id = 1", "runs"),
        ("UPDATE runs SET id = 1 << 61 WHERE id = 1", "runs"),
        ("UPDATE meta SET value = 7 WHERE name = 'consumed'", "meta"),
        ("UPDATE meta SET name = CAST(x'ff' AS TEXT) WHERE name = 'counter.run'", "meta"),
    ],
)
def test_a_row_that_is_not_what_was_written_goes_alone(tmp_path: Path, statement: str, lost: str) -> None:
    with Registry.open(tmp_path) as registry:
        for number in (1, 2):
            run = registry.begin_run("labels", number)
            registry.end_run(run, number, "done", RunEnd(run))
        registry.set_value("consumed", 6)
        registry.set_value("drift", {"a": [1]})
    spoil(tmp_path / "state.db", statement)
    with Registry.open(tmp_path) as registry:
        assert registry.repaired == [f"1 damaged rows of {lost} in state.db were dropped"]
        assert registry.get_value("drift") == {"a": [1]}
        assert len(registry.runs()) == (1 if lost == "runs" else 2)
        assert registry.begin_run("labels", 3.0) == 3
    with Registry.open(tmp_path) as registry:
        assert registry.repaired == ["training run 3 was cut off"]


def test_the_version_in_the_header_is_not_believed_alone(tmp_path: Path) -> None:
    Registry.open(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(CorruptError, match="names no format"):
        Registry.open(tmp_path)
