"""What a trainer can do wrong, each in a real child process, and when training is paused for it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.device.learning.trainer_slot import StoppedRunError
from edged.domain.child_orders import OrderFailed
from edged.domain.training.message import decode, encode
from edged.domain.training.trainer_messages import CheckpointWritten, RunRequest
from edged.errors import StorageError, TrainingError
from edged.storage.models.checkpoints import Checkpoints
from tests.device.partners import Observer
from tests.device.trainers import Desk, Ear, Plant, signalled

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

LONG: dict[str, Any] = {"steps": 1000, "max_steps": 1000, "checkpoint_every": 50, "batch": 16}
ORDER = RunRequest(1, "labels")


@pytest.fixture
def at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes every Python that is started from here on run a script before anything else."""

    def install(script: str) -> None:
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(textwrap.dedent(script), encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")

    return install


# ---- each trouble ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGRTMIN + 5], ids=int)
def test_a_trainer_that_crashes_is_told_with_a_remedy(tmp_path: Path, bundle: Bundle, number: int) -> None:
    with closing(Plant(tmp_path, bundle, **LONG).process()) as process:
        with pytest.raises(TrainingError, match="the trainer was killed by") as caught:
            process.run(ORDER, Ear(CheckpointWritten, signalled(process, number)))
        assert process.pid is None
    name = f"signal {number}" if number > signal.SIGRTMIN else signal.Signals(number).name
    assert caught.value.what.endswith(name)
    assert caught.value.remedy


@pytest.mark.parametrize("code", [0, 77])
def test_an_exit_without_a_word_ends_the_run(
    tmp_path: Path, bundle: Bundle, at_start: Any, code: int
) -> None:
    plant = Plant(tmp_path, bundle)
    at_start(f"import os; os.write(2, b'started '); os._exit({code})")
    with (
        closing(plant.process()) as process,
        pytest.raises(TrainingError, match=f"ended with exit code {code}"),
    ):
        process.run(ORDER, Ear())


def test_a_trainer_that_cannot_be_started_is_a_failed_run(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(Plant(tmp_path, bundle))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    assert desk.scheduler.step() is None
    assert desk.outcomes() == ["failed"]
    assert desk.told[-1][1]["error"] == "the trainer cannot be started: No such file or directory"
    assert desk.scheduler.due() is None


def test_what_libraries_print_is_passed_over(tmp_path: Path, bundle: Bundle, at_start: Any) -> None:
    plant = Plant(tmp_path, bundle)
    at_start('import os; os.write(1, b"loading...\\n17\\n{\\n" + bytes([255]) + b"\\n")')
    with closing(plant.process()) as process:
        assert process.run(ORDER, Ear()).run == 1


def test_a_malformed_message_of_the_trainer_ends_it_and_its_run(
    tmp_path: Path, bundle: Bundle, at_start: Any
) -> None:
    plant = Plant(tmp_path, bundle)
    at_start("""import os; os.write(1, b'{"type":"RunProgress","run":"one","step":1}\\n')""")
    with closing(plant.process()) as process:
        with pytest.raises(TrainingError, match=r"RunProgress\.run: expected int, got 'one'"):
            process.run(ORDER, Ear())
        assert process.pid is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"type":"Pace","pause":"soon"}\n', "Pace.pause: expected float, got 'soon'"),
        (encode(ORDER), "stdin: expected Setup as the first message, got RunRequest"),
        (b"nothing\n", "JSONDecodeError"),
    ],
)
def test_a_malformed_order_is_told_in_one_line(line: bytes, problem: str) -> None:
    trainer = [sys.executable, "-m", "edged.trainer"]
    done = subprocess.run(trainer, input=line, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    failed = decode(json.loads(done.stdout), [OrderFailed])
    assert isinstance(failed, OrderFailed)
    assert problem in f"{failed.where}: {failed.what}"


def test_an_error_that_nobody_expected_is_one_line(tmp_path: Path, bundle: Bundle, at_start: Any) -> None:
    plant = Plant(tmp_path, bundle)
    at_start(
        """
        import sys
        if "edged.trainer" in sys.orig_argv:
            import numpy
            def broken(*_, **__):
                raise ZeroDivisionError("first line\\nsecond line")
            numpy.isin = broken
        """
    )
    with closing(plant.process()) as process, pytest.raises(TrainingError) as caught:
        process.run(ORDER, Ear())
    assert caught.value.line() == "trainer: ZeroDivisionError: first line second line"


@pytest.mark.full
def test_memory_that_runs_out_in_mid_run_is_told(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle, **LONG | {"batch": 8192, "steps": 300})
    with closing(plant.process()) as process:

        def starve() -> None:
            assert process.pid is not None
            resource.prlimit(process.pid, resource.RLIMIT_AS, (2**20, 2**20))

        with pytest.raises(TrainingError) as caught:
            process.run(ORDER, Ear(CheckpointWritten, starve, 50))
    assert caught.value.remedy
    assert "\n" not in caught.value.line()
    assert "memory" in caught.value.line()


def test_a_disk_that_fills_up_in_mid_run_leaves_the_last_checkpoint(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle, **LONG)
    (tmp_path / "candidates" / ".staging-99").mkdir(parents=True)
    with closing(plant.process()) as process:

        def fill() -> None:
            assert process.pid is not None
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2000, 2000))

        with pytest.raises(StorageError) as caught:
            process.run(ORDER, Ear(CheckpointWritten, fill, 100))
        assert "\n" not in caught.value.line()
        whole = Checkpoints(tmp_path / "checkpoints", 3).latest()
        assert whole is not None
        result = process.run(replace(ORDER, run=2), Ear())
    assert result.run == 2
    left = [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")]
    assert not left, "what the full disk cut off is swept"
    assert [path.name for path in (tmp_path / "candidates").iterdir()] == ["2"]


@pytest.mark.full
def test_a_hanging_trainer_is_killed_soon_after_its_time_and_its_run_taken_up(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edged.device.learning.trainer_client.KILL_AFTER", 0.3)
    plant = Plant(tmp_path, bundle, **LONG)
    with closing(plant.process()) as process:

        def limit(seconds: float) -> None:
            training = plant.config.training.with_constants(timeout=seconds)
            process.configure(plant.config.model_copy(update={"training": training}))

        def hang() -> None:
            signalled(process, signal.SIGSTOP)()
            limit(0.5)  # not before: a busy machine starts slowly

        with pytest.raises(TrainingError, match="made no progress"):
            process.run(ORDER, Ear(CheckpointWritten, hang, 100))
        assert process.pid is None
        limit(600.0)
        assert process.run(replace(ORDER, run=2), Ear()).run == 2


# ---- the disk --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "portable"])
def test_runs_that_the_disk_ends_are_no_failures_and_go_on_by_themselves(
    tmp_path: Path, bundles: dict[str, Bundle], at_start: Any, engine: str
) -> None:
    """As many of them in a row as would pause training if they were its own faults."""
    desk = Desk(Plant(tmp_path, bundles[engine], **LONG, engine=engine, max_failures=2))
    scheduler = desk.scheduler

    full = tmp_path / "full"
    full.touch()
    at_start(
        f"""
        import os, resource, sys
        if "edged.trainer" in sys.orig_argv and os.path.exists({str(full)!r}):
            sys.dont_write_bytecode = True  # Python keeps modules that it could write in part alone
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        """
    )
    with closing(scheduler.client):
        trigger = "schedule"
        for pause in (10.0, 20.0):
            assert scheduler.train(trigger) is None
            assert (scheduler.backoff.failures, scheduler.backoff.pause()) == (0, None)
            desk.wait(pause - 0.1)
            assert scheduler.due() is None, "held back"
            assert scheduler.waiting_for
            desk.wait(0.2)
            trigger = scheduler.due() or ""
            assert trigger == "resume", "whatever had started the first"
        full.unlink()
        result = scheduler.train(trigger)
    assert result is not None
    assert result.steps == LONG["steps"]
    assert desk.outcomes() == ["failed", "failed", "done"]
    assert "training_paused" not in [name for name, _ in desk.told]
    errors = [
        fields["error"] for name, fields in desk.told if name == "training_finished" and "error" in fields
    ]
    assert all("File too large" in error for error in errors), errors


def test_a_disk_that_fails_where_nobody_expected_is_told_as_such(
    tmp_path: Path, bundle: Bundle, at_start: Any
) -> None:
    plant = Plant(tmp_path, bundle)
    at_start(
        """
        import sys
        if "edged.trainer" in sys.orig_argv:
            import errno, numpy, os
            def broken(*_, **__):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            numpy.isin = broken
        """
    )
    with closing(plant.process()) as process, pytest.raises(StorageError, match="Input/output error"):
        process.run(ORDER, Ear())


# ---- pausing ---------------------------------------------------------------------------------


def fail(desk: Desk, times: int, trigger: str = "labels") -> None:
    """Runs whose trainer cannot even be started."""
    for _ in range(times):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(desk.registry._path.parent / "nowhere"))  # noqa: SLF001
            assert desk.scheduler.train(trigger) is None
        desk.wait(1.0)


def names(desk: Desk) -> list[str]:
    return [name for name, _ in desk.told if not name.startswith("training_started")]


def test_three_failures_pause_training_until_a_command(tmp_path: Path, bundle: Bundle) -> None:
    desk = Desk(Plant(tmp_path, bundle))
    scheduler = desk.scheduler
    with closing(scheduler.client):
        fail(desk, 2)
        assert "training_paused" not in names(desk)
        fail(desk, 1)
        assert names(desk)[-1] == "training_paused"
        told = desk.told[-1][1]
        assert (told["failures"], told["reason"]) == (
            3,
            "the trainer cannot be started: No such file or directory",
        )
        assert "command `train`" in told["remedy"]
        desk.wait(1e6)
        scheduler.triggers.scheduled = True
        assert scheduler.due() is None, "time alone does not help"
        scheduler.triggers.commanded = True
        assert scheduler.step() is not None
        assert names(desk)[-2:] == ["training_finished", "training_resumed"]
        assert (scheduler.backoff.failures, scheduler.backoff.pause()) == (0, None)


def test_a_commanded_run_that_fails_leaves_training_paused(tmp_path: Path, bundle: Bundle) -> None:
    desk = Desk(Plant(tmp_path, bundle, max_failures=1))
    fail(desk, 1)
    fail(desk, 1, "command")
    desk.wait(1e6)
    assert desk.scheduler.due() is None
    assert [fields["failures"] for name, fields in desk.told if name == "training_paused"] == [1, 2]


def test_the_pause_survives_a_restart_but_not_a_new_bundle(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle)
    desk = Desk(plant)
    fail(desk, 3)
    before = desk.scheduler.backoff.pause()
    assert before is not None
    again = Desk(plant)
    again.wait(1e6)
    assert again.scheduler.due() is None
    assert again.scheduler.backoff.pause() == before
    other = Desk(plant, bundle="another")
    assert other.scheduler.backoff.pause() is None
    assert other.scheduler.due() == "labels"


def test_after_a_restart_the_pause_between_runs_begins_anew(tmp_path: Path, bundle: Bundle) -> None:
    plant = Plant(tmp_path, bundle)
    desk = Desk(plant)
    fail(desk, 2)
    again = Desk(plant)
    again.wait(19.0)
    assert again.scheduler.due() is None
    again.wait(2.0)
    assert again.scheduler.due() == "labels"


def test_a_run_that_was_asked_to_stop_is_no_failure(tmp_path: Path, bundle: Bundle) -> None:
    endless = LONG | {"steps": 100_000, "max_steps": 100_000}
    desk = Desk(Plant(tmp_path, bundle, max_failures=1, **endless))
    scheduler = desk.scheduler
    with closing(scheduler.client):
        assert scheduler.train("labels", observer=Observer(lambda _: scheduler.client.cancel())) is None
        assert (desk.outcomes(), scheduler.backoff.failures) == (["stopped"], 0)
        assert scheduler.due() == "labels"


def test_a_trainer_that_dies_of_the_request_to_stop_is_no_failure(
    tmp_path: Path, bundle: Bundle, at_start: Any
) -> None:
    plant = Plant(tmp_path, bundle, **LONG)
    at_start("import signal; signal.signal = lambda *_: None")
    with closing(plant.process()) as process, pytest.raises(StoppedRunError, match="asked to stop"):
        process.run(ORDER, Ear(CheckpointWritten, process.cancel))
