"""The trainer process as the daemon sees it, and the decision when to start it."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.bundles.graph.templates import mlp
from edged.device.learning.scheduler import DISK_SECONDS, needed_labels
from edged.device.learning.trainer_client import NothingNewError
from edged.domain.drift.signals import DriftSignal, Level
from edged.domain.training.trainer_messages import (
    CheckpointWritten,
    DamagedCheckpoint,
    Ready,
    RunPaused,
    RunProgress,
    RunRequest,
)
from edged.domain.training.training_run import RunOptions
from edged.errors import ConfigError, StorageError, TrainingError, UnavailableError
from edged.host.vitals import written_bytes
from edged.storage.journal import journal
from tests.building import build
from tests.device.learning_rig import losses, model_bytes
from tests.device.partners import Observer
from tests.device.trainers import Desk, Ear, Plant, signalled
from tests.installed import needs_native
from tests.running_device import wait_until

if TYPE_CHECKING:
    from edged.domain.training.message import Message
    from edged.storage.models.bundles import Bundle

LONG: dict[str, Any] = {"steps": 2500, "max_steps": 2500, "checkpoint_every": 100, "batch": 16}


def order(run: int, trigger: str = "labels", **options: Any) -> RunRequest:
    return RunRequest(run, trigger, RunOptions(**options))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle) -> bytes:
    """The model of a long run to which nothing happens."""
    with closing(Plant(tmp_path_factory.mktemp("undisturbed"), bundle, **LONG).process()) as process:
        return model_bytes(process.run(order(1), Ear()))


# ---- the process -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "asked"), [({}, {"new_share": pytest.approx(0.075)}), ({"new_share": 0.25}, {})]
)
def test_where_answers_are_right_a_run_takes_fewer_new_rows_unless_their_share_is_configured(
    tmp_path: Path, bundle: Bundle, chosen: dict[str, Any], asked: dict[str, Any]
) -> None:
    desk = Desk(Plant(tmp_path, bundle, steps=5, **chosen), error=0.0)
    with closing(desk.scheduler.client):
        assert desk.scheduler.step() is not None
    assert desk.registry.runs(1)[0].request.to_json() == asked


def test_one_process_does_run_after_run(tmp_path: Path, bundle: Bundle) -> None:
    plant, ear = Plant(tmp_path, bundle), Ear()
    with closing(plant.process()) as process:
        first = process.run(order(1), ear)
        pid = process.pid
        plant.feed(200, 1)
        second = process.run(order(2), ear)
        assert process.pid == pid is not None
        with pytest.raises(NothingNewError) as caught:
            process.run(order(3), ear)
        assert process.pid == pid, "having nothing to learn is no failure"
    assert not process.pid
    before, after = losses(first)
    assert after < before
    assert first.consumed == 300
    assert second.consumed == caught.value.consumed == 500
    assert {Ready, CheckpointWritten, RunProgress} <= ear.kinds()
    assert second.candidate == tmp_path / "candidates" / "2"


def test_options_of_a_command_reach_the_run(tmp_path: Path, bundle: Bundle) -> None:
    with closing(Plant(tmp_path, bundle).process()) as process:
        assert process.run(order(1, "command", steps=7, learning_rate=0.5), Ear()).steps == 7


@pytest.mark.full
def test_a_cancelled_run_is_taken_up_by_the_next(tmp_path: Path, bundle: Bundle, undisturbed: bytes) -> None:
    plant = Plant(tmp_path, bundle, **LONG)
    with closing(plant.process()) as process:
        with pytest.raises(TrainingError, match="asked to stop"):
            process.run(order(1), Ear(CheckpointWritten, process.cancel))
        assert process.pid is None
        ear = Ear()
        result = process.run(order(2), ear)
    assert result.run == 2
    steps = ear.checkpoints()
    assert steps[0] > 100, "it did not begin anew"
    assert model_bytes(result) == undisturbed


def test_a_killed_trainer_is_named_and_its_run_taken_up(
    tmp_path: Path, bundle: Bundle, undisturbed: bytes
) -> None:
    plant = Plant(tmp_path, bundle, **LONG)
    with closing(plant.process()) as process:
        with pytest.raises(TrainingError, match="killed by SIGKILL"):
            process.run(order(1), Ear(CheckpointWritten, signalled(process, signal.SIGKILL), 300))
        ear = Ear()
        result = process.run(order(2), ear)
    steps = ear.checkpoints()
    assert steps[0] > 300
    assert model_bytes(result) == undisturbed


def test_a_trainer_that_says_nothing_is_ended(tmp_path: Path, bundle: Bundle) -> None:
    with closing(Plant(tmp_path, bundle, timeout="10ms").process()) as process:
        with pytest.raises(TrainingError, match="no progress"):
            process.run(order(1), Ear())
        assert process.pid is None


def test_a_trainer_that_left_for_idleness_is_started_again(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle, resident="50ms")
    with closing(plant.process()) as process:
        process.run(order(1), Ear())
        wait_until(lambda: process.pid is None)
        plant.feed(200, 1)
        ear = Ear()
        assert process.run(order(2), ear).consumed == 500
        assert Ready in ear.kinds()


def test_a_trainer_that_died_between_runs_is_started_again(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle)
    with closing(plant.process()) as process:
        process.run(order(1), Ear())
        signalled(process, signal.SIGKILL)()
        wait_until(lambda: process.pid is None)
        plant.feed(200, 1)
        assert process.run(order(2), Ear()).consumed == 500


def test_with_resident_0_each_run_has_its_own_process(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle, resident=0)
    with closing(plant.process()) as process:
        for run in (1, 2):
            ear = Ear()
            assert process.run(order(run), ear).run == run
            assert Ready in ear.kinds()
            wait_until(lambda: process.pid is None)
            plant.feed(200, run)


@needs_native
def test_an_engine_that_the_bundle_is_not_for_is_said_to_be_missing(tmp_path: Path) -> None:
    native = build(mlp(5, 3, (16,)), tmp_path / "native", loss="cross_entropy", engine="native")
    with (
        closing(Plant(tmp_path, native, engine="portable").process()) as process,
        pytest.raises(UnavailableError, match="portable") as caught,
    ):
        process.run(order(1), Ear())
    assert caught.value.exit_code == 4


def test_a_bundle_that_is_gone_is_a_configuration_error(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle)
    plant.config.model.__dict__["bundle"] = tmp_path / "nowhere"
    with closing(plant.process()) as process, pytest.raises(ConfigError, match="nowhere"):
        process.run(order(1), Ear())


def test_too_little_memory_is_one_clear_line(tmp_path: Path, bundle: Bundle) -> None:
    with (
        closing(Plant(tmp_path, bundle, memory="64MiB").process()) as process,
        pytest.raises(TrainingError, match="memory") as caught,
    ):
        process.run(order(1), Ear())
    assert "training.memory" in caught.value.line()
    assert "\n" not in caught.value.line()


# ---- the learner -----------------------------------------------------------------------------


def test_the_learner_trains_when_enough_is_new_and_keeps_its_position(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle, samples=60, new_labels=100)
    desk = Desk(plant)
    scheduler = desk.scheduler
    with closing(scheduler.client):
        assert scheduler.step() is None
        plant.feed(100, 1)
        assert scheduler.new() >= 100
        result = scheduler.step()
        assert result is not None
        assert (scheduler.consumed, scheduler.new(), scheduler.trainings, scheduler.backoff.failures) == (
            160,
            0,
            1,
            0,
        )
        assert (scheduler.engine, scheduler.progress) == ("portable", None)
        assert scheduler.step() is None
    assert desk.outcomes() == ["done"]
    assert [name for name, _ in desk.told] == ["training_started", "training_finished"]
    assert desk.told[1][1]["outcome"] == "done"
    assert desk.told[1][1]["samples"] == result.samples


def test_a_position_that_was_lost_is_found_again(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle)
    with closing(Desk(plant).scheduler.client) as process:
        process.run(order(1), Ear())
    desk = Desk(plant)  # as after a crash before the position was written
    with closing(desk.scheduler.client):
        assert desk.scheduler.step() is None
        assert desk.scheduler.consumed == 300
        assert desk.scheduler.due() is None, "it does not try again for ever"
    assert desk.outcomes() == ["no_data"]
    assert desk.scheduler.backoff.failures == 0


def test_progress_can_be_followed(tmp_path: Path, bundle: Bundle) -> None:
    desk = Desk(Plant(tmp_path, bundle))
    seen: list[RunProgress] = []
    with closing(desk.scheduler.client):
        desk.scheduler.train("command", RunOptions(steps=40), Observer(seen.append))
    assert (seen[-1].step, seen[-1].steps) == (40, 40)


def test_failures_hold_back_the_next_run_longer_each_time(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle, timeout="10ms", retry_after="1s", max_failures=0)
    desk = Desk(plant)
    scheduler = desk.scheduler
    with closing(scheduler.client):
        for failures, pause in ((1, 1.0), (2, 2.0), (3, 4.0)):
            assert scheduler.step() is None
            assert scheduler.backoff.failures == failures
            desk.wait(pause - 0.1)
            assert scheduler.due() is None
            desk.wait(0.2)
            assert scheduler.due() == "labels"
        scheduler.triggers.commanded = True
        assert scheduler.due() == "command"
    assert desk.outcomes() == ["failed"] * 3
    assert "no progress" in desk.told[-1][1]["error"]
    assert scheduler.consumed == 0


@pytest.mark.full
def test_a_killed_run_counts_as_one_failure_and_success_forgets_it(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle, **LONG)
    desk = Desk(plant)
    scheduler = desk.scheduler
    with closing(scheduler.client):
        kill = signalled(scheduler.client, signal.SIGKILL)
        assert scheduler.train("labels", observer=Observer(lambda _: kill())) is None
        assert (scheduler.backoff.failures, scheduler.trainings) == (1, 0)
        assert "SIGKILL" in desk.told[-1][1]["error"]
        desk.wait(10.1)
        assert scheduler.step() is not None
        assert (scheduler.backoff.failures, scheduler.trainings) == (0, 1)
    assert desk.outcomes() == ["failed", "done"]


def test_what_a_run_has_written_counts_although_it_is_killed(tmp_path: Path, bundle: Bundle) -> None:
    before = written_bytes()
    desk = Desk(Plant(tmp_path, bundle, **LONG))
    if written_bytes() == before:
        pytest.skip("nothing is ever written to a disk here")
    scheduler = desk.scheduler
    with closing(scheduler.client):
        # Once it has written a checkpoint: they come every 100 steps.
        ended = Ear(RunProgress, signalled(scheduler.client, signal.SIGKILL), least_step=301)
        assert scheduler.train("labels", observer=Observer(ended)) is None
    assert desk.outcomes() == ["failed"]
    assert scheduler.client.written >= checkpoint_bytes(tmp_path)


def checkpoint_bytes(state: Path) -> int:
    """How large the newest checkpoint is."""
    newest = max((state / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    return sum(file.stat().st_size for file in newest.iterdir())


def test_a_run_whose_begin_cannot_be_noted_is_held_back_and_no_failure(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(Plant(tmp_path, bundle))
    scheduler = desk.scheduler
    with closing(scheduler.client):
        for _ in range(4):
            with disk_full(monkeypatch):
                assert scheduler.step() is None
            assert (scheduler.backoff.failures, scheduler.due(), scheduler.client.pid) == (0, None, None)
            desk.wait(DISK_SECONDS + 0.1)
        assert desk.told == []
        assert scheduler.step() is not None


def test_a_run_whose_end_cannot_be_noted_counts_all_the_same(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(Plant(tmp_path, bundle))
    full = disk_full(monkeypatch)
    with closing(desk.scheduler.client):
        result = desk.scheduler.train("labels", RunOptions(steps=40), Observer(lambda _: full.__enter__()))
        full.__exit__(None, None, None)
    assert result is not None
    assert (desk.scheduler.consumed, desk.told[-1][0]) == (result.consumed, "training_finished")
    assert desk.outcomes() == [None]


def test_a_trainer_that_cannot_be_started_is_a_failed_run(tmp_path: Path, bundle: Bundle) -> None:
    desk = Desk(Plant(tmp_path, bundle))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(desk.scheduler.client):
        # Not one more than the standard ones: what the collector closes meanwhile frees none.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            assert desk.scheduler.step() is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert desk.outcomes() == ["failed"]
    assert "Too many open files" in desk.told[-1][1]["error"]


@contextmanager
def disk_full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing can be committed to any database of this process."""

    def full(_db: object, path: Path) -> None:
        raise StorageError("the database refused: database or disk is full", where=str(path))

    with monkeypatch.context() as patch:
        patch.setattr(journal, "transaction", full)
        yield


def test_a_paused_learner_obeys_commands_only(tmp_path: Path, bundle: Bundle) -> None:
    desk = Desk(Plant(tmp_path, bundle, enabled=False))
    with closing(desk.scheduler.client):
        assert desk.scheduler.due() is None
        desk.scheduler.triggers.commanded = True
        result = desk.scheduler.step()
    assert result is not None
    assert result.trigger == "command"


def test_guards_hold_a_run_back_and_say_so(tmp_path: Path, bundle: Bundle) -> None:
    desk = Desk(Plant(tmp_path, bundle, quiet="22:00-06:00", daily_minutes=1e-4))  # the clock says 22:13
    scheduler = desk.scheduler
    with closing(scheduler.client):
        assert scheduler.step() is None
        assert list(scheduler.waiting_for) == ["quiet hours, until 06:00"]
        desk.wait(8 * 3600)
        assert scheduler.step() is not None
        assert not scheduler.waiting_for
        scheduler.consumed = 0
        assert scheduler.step() is None
        assert list(scheduler.waiting_for) == ["0.0001 minutes of training today"]
        desk.wait(24 * 3600)
        assert scheduler.due() == "labels"
    assert scheduler.budget.runs == 1


def test_a_command_trains_in_spite_of_guards(tmp_path: Path, bundle: Bundle) -> None:
    desk = Desk(Plant(tmp_path, bundle, quiet="22:00-06:00"))
    desk.scheduler.triggers.commanded = True
    assert desk.scheduler.due() == "command"


def drift(source: str, level: Level = Level.DRIFT) -> DriftSignal:
    return DriftSignal(level, "adwin_correlated", source, 2.0, 1.0, 77)


def test_a_drift_of_errors_trains_now_and_harder(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle, samples=40, new_labels=100)
    desk = Desk(plant)
    with closing(desk.scheduler.client):
        assert desk.scheduler.step() is None
        desk.scheduler.drifted(drift("inputs"))
        assert desk.scheduler.step() is None, "inputs that move are no reason by themselves"
        desk.scheduler.drifted(drift("error"))
        result = desk.scheduler.step()
    assert result is not None
    assert result.trigger == "drift"
    (record,) = desk.registry.runs()
    assert record.request.to_json() == {"learning_rate": 0.02, "new_share": 0.5}


def test_a_warning_lets_fewer_labels_start_a_run(tmp_path: Path, bundle: Bundle) -> None:
    desk = Desk(Plant(tmp_path, bundle, samples=60, new_labels=100))
    desk.scheduler.drifted(drift("error", Level.WARNING))
    assert desk.scheduler.due() == "labels"


@pytest.mark.full
def test_a_trainer_that_rests_takes_longer_and_does_the_same(
    tmp_path: Path, bundle: Bundle, undisturbed: bytes
) -> None:
    """It is told to rest half of the time, then to halt, and when it has said that it does, to go on."""
    with closing(Plant(tmp_path, bundle, **LONG).process()) as process:
        process.pace(0.5)
        heard: list[type[Message]] = []

        def on_message(message: Message) -> None:
            heard.append(type(message))
            if isinstance(message, CheckpointWritten) and message.step == 300:
                process.pace(float("inf"))
            if isinstance(message, RunPaused):
                process.pace(0.0)

        result = process.run(order(1), on_message)
    assert heard.count(RunPaused) == 1
    assert model_bytes(result) == undisturbed


@pytest.mark.parametrize(
    ("settings", "labels"),
    [({}, 40), ({"new_labels": 7}, 7), ({"new_labels": 0}, 1)],
)
def test_how_many_labels_start_a_run(tmp_path: Path, bundle: Bundle, settings: Any, labels: int) -> None:
    assert needed_labels(Plant(tmp_path, bundle, 0, **settings).config.training) == labels


def test_a_damaged_checkpoint_is_told_and_counted_once(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle)
    with closing(plant.process()) as process:
        generation = process.run(order(50), Ear()).generation
    engine_file = tmp_path / "checkpoints" / str(generation) / "state.json"
    engine_file.write_bytes(engine_file.read_bytes().replace(b"consumed", b"Consumed"))
    desk = Desk(plant)
    for _ in range(2):
        desk.scheduler._on_message(DamagedCheckpoint(77))  # noqa: SLF001  twice
    with closing(desk.scheduler.client):
        assert desk.scheduler.train("labels") is not None
    told = [fields for name, fields in desk.told if name == "checkpoint_damaged"]
    assert told == [{"generation": 77}, {"generation": generation}]
    assert desk.scheduler.damaged == {77, generation}


def test_streams_that_label_themselves_are_learned_from_unhurriedly(tmp_path: Path, bundle: Bundle) -> None:
    """Unless it is configured otherwise, by whichever trigger."""
    config = Plant(tmp_path, bundle, 0).config.training
    assert needed_labels(config) == 40
    assert needed_labels(config, labels_itself=True) == 400
    assert needed_labels(config.model_copy(update={"new_labels": 7}), labels_itself=True) == 7
