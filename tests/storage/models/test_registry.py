from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from edged.domain.judging.verdict import Verdict, refuse
from edged.domain.training.training_run import ModelData
from edged.errors import CorruptError, StorageError
from edged.storage.files.atomic import verify_directory
from edged.storage.files.checksummed_json import seal
from edged.storage.models.records import ModelFigures, ModelRecord, Reign
from edged.storage.models.registry import Registry
from tests.storage.disks import Fault, PowerCutError, TestedDisk, faults

ROOT = Path(__file__).parents[3]
DATA = ModelData(first_offset=1, last_offset=90, samples=80)


def staged(state: Path, content: bytes = b"model") -> Path:
    staging = state / "candidates" / "run"
    staging.mkdir(parents=True, exist_ok=True)
    (staging / "model.onnx").write_bytes(content)
    (staging / "probe.npz").write_bytes(b"probe")
    return staging


def add(registry: Registry, state: Path, content: bytes = b"model") -> int:
    return registry.add(staged(state, content), created=1.0, source="training").version


def crowned(registry: Registry, state: Path, count: int = 1) -> list[int]:
    """Models that were champion one after the other."""
    versions = []
    for number in range(count):
        versions.append(add(registry, state))
        registry.set_champion(versions[-1], f"turn {number}", float(number))
    return versions


def statuses(registry: Registry) -> dict[int, str]:
    return {record.version: record.status for record in registry.records()}


def test_a_model_is_recorded_with_all_that_is_known(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        record = registry.add(
            staged(tmp_path),
            parent=None,
            created=12.5,
            source="training",
            run=3,
            generation=9,
            data=DATA,
            metrics=ModelFigures(0.5, {"gain": 0.25, "losses": 2.0}, (1.0, 3.0)),
            verdict=Verdict(True, ("better",), {"gain": 0.25}),
        )
        assert record.version == 1
        assert record.status == "candidate"
    with Registry.open(tmp_path, readonly=True) as registry:
        assert registry.get(1) == record
        assert registry.records() == [record]
        assert registry.verify(1).read_bytes() == b"model"
        manifest = verify_directory(tmp_path / "models" / "1")
        assert manifest.extra["model"]["data"] == {"first_offset": 1, "last_offset": 90, "samples": 80}
        figures = {"loss_last": 0.5, "gain": 0.25, "losses": 2.0, "scale": [1.0, 3.0]}
        assert manifest.extra["model"]["metrics"] == figures
        assert record.metrics.reported() == {"loss_last": 0.5, "gain": 0.25, "losses": 2.0}
        assert ModelRecord.from_json(manifest.extra["model"]) == record
        assert set(manifest.files) == {"model.onnx", "probe.npz"}


def test_versions_rise_and_are_never_given_again(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path, 3)
        add(registry, tmp_path)
        assert registry.prune(1) == [1, 4]
    with Registry.open(tmp_path) as registry:
        assert add(registry, tmp_path) == 5


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with Registry.open(tmp_path) as registry, pytest.raises(StorageError, match=r"no model\.onnx"):
        registry.add(tmp_path / "empty", created=1.0, source="training")


def test_an_unknown_version_is_told(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        with pytest.raises(StorageError, match=r"there is no model version 4 .*edged models CONFIG list"):
            registry.get(4)
        with pytest.raises(StorageError, match="no model version 4"):
            registry.set_champion(4, "why not", 1.0)
        with pytest.raises(CorruptError):
            registry.verify(4)


def test_a_champion_takes_the_place_of_another(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        assert registry.champion() is None
        assert registry.previous() is None
        assert registry.reign() is None
        crowned(registry, tmp_path, 2)
        assert (registry.champion(), registry.previous()) == (2, 1)
        assert statuses(registry) == {1: "retired", 2: "champion"}
        reign = registry.reign()
        assert reign is not None
        assert (reign.ts, reign.version, reign.previous, reign.reason) == (1.0, 2, 1, "turn 1")
        assert [(r.version, r.previous) for r in registry.reigns()] == [(2, 1), (1, None)]


def test_a_proven_champion_is_good_afterwards(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path)
        record = registry.set_status(1, "good")
        assert (record.status, record.proven) == ("champion", True)
        add(registry, tmp_path)
        registry.set_champion(2, "better", 5.0)
        assert statuses(registry) == {1: "good", 2: "champion"}


def test_a_rollback_leaves_the_failing_one_behind(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path, 3)
        registry.set_champion(2, "probation failed", 9.0, outgoing="rolled_back")
        assert statuses(registry) == {1: "retired", 2: "champion", 3: "rolled_back"}
        assert (registry.champion(), registry.previous()) == (2, 1)
        assert registry.best_loadable() == [2, 1]


def test_the_order_to_try_at_the_start(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        versions = []
        for proven in (True, True, False, False, True):
            versions.append(add(registry, tmp_path))
            registry.set_champion(versions[-1], "next", 1.0)
            if proven:
                registry.set_status(versions[-1], "good")
        add(registry, tmp_path)
        registry.set_status(add(registry, tmp_path), "rejected", verdict=refuse("worse"))
        assert registry.best_loadable() == [5, 4, 2, 1, 3]
        assert registry.get(7).verdict == refuse("worse")


def test_a_champion_is_made_in_one_way_only(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        add(registry, tmp_path)
        with pytest.raises(StorageError, match="set_champion alone"):
            registry.set_status(1, "champion")
        with pytest.raises(StorageError, match=r"'great' is no status .*one of candidate"):
            registry.set_status(1, "great")  # type: ignore[arg-type]


def test_a_run_is_judged_once_its_model_is_champion_and_no_second_write_says_so(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        first, second = (
            registry.add(staged(tmp_path), created=1.0, source="training", run=run).version for run in (3, 5)
        )
        registry.set_champion(second, "better", 1.0)
        assert registry.judged() == 5
        before = (tmp_path / "state.db-wal").stat().st_size
        registry.record_judged(5)
        assert (tmp_path / "state.db-wal").stat().st_size == before
        registry.set_champion(first, "rolled back", 2.0, outgoing="rolled_back")
        assert registry.judged() == 5
        registry.record_judged(6)  # that of a run whose candidate was refused
        assert registry.judged() == 6


@pytest.mark.parametrize("source", ["bundle", "weights"])
def test_a_model_from_elsewhere_says_nothing_of_a_run(tmp_path: Path, source: str) -> None:
    with Registry.open(tmp_path) as registry:
        registry.set_champion(
            registry.add(staged(tmp_path), created=1.0, source=source, run=7).version, "", 1.0
        )
        assert registry.judged() == 0


def test_a_damaged_model_does_not_become_champion(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path)
        add(registry, tmp_path)
        (tmp_path / "models" / "2" / "model.onnx").write_bytes(b"mOdel")
        with pytest.raises(CorruptError, match=r"2/model\.onnx"):
            registry.set_champion(2, "better", 5.0)
        assert registry.champion() == 1


def test_pruning_spares_what_is_needed_and_takes_refused_ones_first(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path, 4)
        for _ in range(3):
            registry.set_status(add(registry, tmp_path), "rejected")
        registry.pin(1)
        assert registry.prune(6) == [5]
        assert registry.prune(4, protect=[7]) == [2, 6]
        assert registry.prune(1) == [7]
        assert list(statuses(registry)) == [1, 3, 4]
        assert registry.unpin_all() == [1]
        assert registry.prune(1) == [1]
        assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["3", "4", "champion"]


def test_the_pointer_wins_over_the_rows(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path, 2)
        add(registry, tmp_path)
        pointer = (tmp_path / "models" / "champion").read_bytes()
        registry.set_champion(3, "better", 7.0)
    (tmp_path / "models" / "champion").write_bytes(pointer)
    with Registry.open(tmp_path) as registry:
        assert registry.champion() == 2
        assert statuses(registry) == {1: "retired", 2: "champion", 3: "retired"}


@pytest.mark.parametrize("damage", [b"", b"2", b'{"version": 1}'])
def test_a_damaged_pointer_is_written_again_from_the_rows(tmp_path: Path, damage: bytes) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path, 2)
        reign = registry.reign()
    (tmp_path / "models" / "champion").write_bytes(damage)
    with Registry.open(tmp_path) as registry:
        assert registry.champion() == 2
        assert registry.reign() == reign
        assert len(registry.reigns()) == 2


def test_models_are_taken_up_again_when_the_database_is_lost(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path, 2)
        add(registry, tmp_path)
        before = registry.get(3)
    for path in tmp_path.glob("state.db*"):
        path.unlink()
    with Registry.open(tmp_path) as registry:
        assert statuses(registry) == {1: "candidate", 2: "champion", 3: "candidate"}
        assert registry.get(3) == before
        assert registry.champion() == 2
        assert add(registry, tmp_path) == 4


def test_a_refused_model_stays_refused_when_the_database_is_lost(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path)
        registry.add(staged(tmp_path), created=1.0, source="training", status="rejected")
    for path in tmp_path.glob("state.db*"):
        path.unlink()
    with Registry.open(tmp_path) as registry:
        assert statuses(registry) == {1: "champion", 2: "rejected"}
        assert registry.repaired == [f"model {n} was taken up from its manifest" for n in (1, 2)]
    with Registry.open(tmp_path) as registry:
        assert registry.repaired == []


@pytest.mark.parametrize(("served", "turn"), [(3, "finished"), (2, "undone")])
def test_a_swap_that_was_cut_off_is_told(tmp_path: Path, served: int, turn: str) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path, 3 if turn == "undone" else 2)
        add(registry, tmp_path)
        registry.begin_run("labels", 1.0)
    reign = Reign(9.0, served, None, "moved alone")
    (tmp_path / "models" / "champion").write_bytes(seal(asdict(reign)))
    (tmp_path / "models" / ".staging-4").mkdir()
    with Registry.open(tmp_path) as registry:
        assert registry.champion() == served
        assert statuses(registry)[served] == "champion"
        assert registry.repaired == [
            "removed models/.staging-4, which was never published",
            "training run 1 was cut off",
            f"the swap between models {5 - served} and {served} was {turn}",
        ]


def test_a_pointer_of_a_newer_edged_counts(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path, 2)
        reign = registry.reign()
    assert reign is not None
    (tmp_path / "models" / "champion").write_bytes(seal({**asdict(reign), "signed": "by"}))
    with Registry.open(tmp_path) as registry:
        assert registry.champion() == 2
        assert registry.repaired == []


def test_rows_without_files_are_dropped(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path, 2)
    for path in (tmp_path / "models" / "2").iterdir():
        path.unlink()
    (tmp_path / "models" / "2").rmdir()
    with Registry.open(tmp_path) as registry:
        assert statuses(registry) == {1: "retired"}
        assert registry.champion() is None
        assert registry.best_loadable() == [1]
        assert add(registry, tmp_path) == 3


def test_model_files_are_durable_before_the_row_and_the_pointer(tmp_path: Path) -> None:
    disk = TestedDisk()
    with Registry.open(tmp_path, disk=disk) as registry:
        crowned(registry, tmp_path)
    steps = disk.operations
    published, moved = steps.index(("rename", "1")), steps.index(("rename", "champion"))
    assert ("sync", "models") in steps[published:moved]
    assert {"model.onnx", "probe.npz", "manifest.json"} <= {n for op, n in steps[:published] if op == "sync"}
    assert steps[moved + 1] == ("sync", "models")


def promote(state: Path, disk: TestedDisk | None = None) -> None:
    with Registry.open(state) if disk is None else Registry.open(state, disk=disk) as registry:
        version = add(registry, state, b"new model")
        registry.set_champion(version, "better", 7.0, outgoing="rolled_back")


def check_fault(state: Path, fault: Fault) -> None:
    with Registry.open(state) as registry:
        crowned(registry, state, 2)
    with pytest.raises((StorageError, PowerCutError)):
        promote(state, fault.disk())
    with Registry.open(state) as registry:
        champion = registry.champion()
        assert champion in (2, 3)
        assert statuses(registry)[champion] == "champion"
        assert statuses(registry)[2] == ("champion" if champion == 2 else "rolled_back")
        assert registry.verify(champion).read_bytes() == (b"model" if champion == 2 else b"new model")
        known = max(statuses(registry))
        assert add(registry, state) > known
        assert all(registry.verify(version).exists() for version in statuses(registry))
        assert not [p.name for p in (state / "models").iterdir() if p.name.startswith(".")]


def test_a_model_whose_row_is_refused_leaves_no_files_and_its_number_is_not_given_again(
    tmp_path: Path,
) -> None:
    with Registry.open(tmp_path) as registry:
        first = add(registry, tmp_path)
        db = registry._db  # noqa: SLF001  a disk that fails at this very commit
        db.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON main.models BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        for _ in range(3):
            with pytest.raises(StorageError, match="full"):
                add(registry, tmp_path)
        assert [path.name for path in (tmp_path / "models").iterdir()] == [str(first)]
        db.execute("DROP TRIGGER full")
        assert add(registry, tmp_path) == first + 4


def test_whatever_fails_there_is_one_champion_and_it_is_whole(tmp_path: Path) -> None:
    disk = TestedDisk()
    with Registry.open(tmp_path / "counted") as registry:
        crowned(registry, tmp_path / "counted", 2)
    promote(tmp_path / "counted", disk)
    assert len(disk.operations) >= 12
    for fault in faults(len(disk.operations)):
        check_fault(tmp_path / str(fault), fault)


def test_after_an_error_the_rows_follow_the_pointer_at_once(tmp_path: Path) -> None:
    # Opening makes the directory; the last operation of all is the sync after the pointer moved.
    with Registry.open(tmp_path) as registry:
        crowned(registry, tmp_path)
        add(registry, tmp_path)
    with Registry.open(tmp_path, disk=Fault(4, "EIO").disk()) as registry:
        with pytest.raises(StorageError, match="champion"):
            registry.set_champion(2, "better", 7.0)
        assert registry.champion() == 2
        assert statuses(registry) == {1: "retired", 2: "champion"}


def test_the_state_can_be_read_while_the_daemon_runs(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as daemon, Registry.open(tmp_path, readonly=True) as status:
        crowned(daemon, tmp_path)
        daemon.begin_run("labels", 1.0)
        assert status.champion() == 1
        assert status.runs()[0].outcome is None
        with pytest.raises(StorageError, match="readonly"):
            status.set_value("a", 1)


WRITER = """
import sys
from pathlib import Path
from edged.domain.training.training_run import RunEnd
from edged.storage.models.registry import Registry
from tests.storage.models.test_registry import add

state = Path(sys.argv[1])
registry = Registry.open(state)
while True:
    run = registry.begin_run("labels", 1.0)
    version = add(registry, state, str(run).encode())
    registry.set_champion(version, "next", 1.0)
    registry.prune(3)
    registry.end_run(run, 2.0, "done", RunEnd(run))
    print(version, flush=True)
"""


def test_what_was_reported_survives_kill_9(tmp_path: Path) -> None:
    reported = 0
    for rounds in (2, 9, 1, 5, 12):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            for _ in range(rounds):
                reported = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            reported = int([str(reported), *process.stdout.read().split("\n")[:-1]][-1])
        with Registry.open(tmp_path) as registry:
            champion = registry.champion()
            assert champion is not None
            assert reported <= champion <= reported + 1
            assert statuses(registry)[champion] == "champion"
            assert list(statuses(registry).values()).count("champion") == 1
            assert registry.verify(champion).is_file()
            assert all(run.outcome in ("done", "interrupted") for run in registry.runs())
            assert registry.runs()[0].id == registry.run_count()
