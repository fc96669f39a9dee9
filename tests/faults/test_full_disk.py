"""The daemon while its disk fails: it serves, acknowledges nothing, says why, and recovers by itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edged.config import loader
from edged.device.admin.status import status_of
from edged.storage.models.registry import Registry
from tests.faults.disks import RENAMES, SYNCS, WRITES, fill, may_mount, mounted
from tests.faults.rig import Rig
from tests.faults.tracing import failing, require_strace
from tests.running_device import Listener, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# That commits are tried every 5 s at least is tested beside ingest: this is for machines with much to do.
PATIENCE = 90.0
RECOVERY_SECONDS = 10.0
WINDOW = 50  # unacknowledged messages that the broker sends: one more comes only after an acknowledgement


def problem(listener: Listener) -> str | None:
    """What state/buffer has said last."""
    told: str | None = listener.messages["state/buffer"][-1]["problem"]
    return told


def mqtt(broker: Mosquitto) -> dict[str, object]:
    """A connection on which a prediction beyond the window proves an acknowledgement."""
    return {"host": "127.0.0.1", "port": broker.port, "reconnect_max": "1s", "receive_maximum": WINDOW}


def acknowledged(listener: Listener, before: int, since: float) -> None:
    """A sample is acknowledged again soon after `since`; `before` were predicted while none could be."""
    listener.wait(lambda: len(listener.messages["predictions"]) > before, PATIENCE)
    took = time.monotonic() - since
    print(f"acknowledged {took:.2f} s after the disk took writes again")  # noqa: T201  a figure of the tests
    assert took <= RECOVERY_SECONDS


def recovered(rig: Rig, listener: Listener) -> None:
    """All is stored and the complaint taken back."""
    rig.all_stored(PATIENCE)
    listener.wait(lambda: problem(listener) is None, PATIENCE)


def test_whatever_the_disk_refuses_to_a_commit_nothing_is_lost(broker: Mosquitto, tmp_path: Path) -> None:
    require_strace()
    rig = Rig(tmp_path, broker.port, mqtt=mqtt(broker))
    wal = rig.state / "samples.db-wal"
    faults = [(WRITES, "ENOSPC"), (SYNCS, "EIO"), (WRITES, "EROFS")]
    with running(rig.device, broker.port) as listener:
        assert rig.device.process is not None
        rig.publish(listener, 20)
        rig.all_stored(PATIENCE)
        for calls, error in faults:
            with failing(rig.device.process.pid, calls, error, wal):
                stored, predictions = rig.count(), listener.messages["predictions"]
                window = len(predictions) + WINDOW
                rig.publish(listener, WINDOW + 10)
                listener.wait(lambda: len(predictions) >= window, PATIENCE)  # noqa: B023  serving goes on
                listener.wait(lambda: "samples.db" in (problem(listener) or ""), PATIENCE)
                assert rig.count() == stored
                assert len(predictions) == window, "nothing was acknowledged"
                since = time.monotonic()
            acknowledged(listener, window, since)
            recovered(rig, listener)
            rig.answered(listener)
            rig.all_stored(PATIENCE)
        status = rig.device.cli("status", str(rig.device.path))
        assert (status["state"], status["samples"]) == ("online", rig.sent)
        rig.check_predictions(listener)


def test_a_wal_that_cannot_be_folded_in_and_files_that_cannot_be_opened(
    broker: Mosquitto, tmp_path: Path
) -> None:
    """Neither keeps a sample from being stored as long as the write-ahead log may grow."""
    require_strace()
    rig = Rig(tmp_path, broker.port)
    with running(rig.device, broker.port) as listener:
        assert rig.device.process is not None
        rig.publish(listener, 20)
        rig.answered(listener)
        for calls, error, *paths in (
            (f"{WRITES},{SYNCS}", "EIO", rig.state / "samples.db"),
            ("openat", "EMFILE"),
        ):
            with failing(rig.device.process.pid, str(calls), str(error), *paths):
                rig.publish(listener, 60)
                rig.answered(listener)
            recovered(rig, listener)
        rig.check_predictions(listener)


def test_a_status_that_cannot_be_written_is_noticed_and_taken_back(broker: Mosquitto, tmp_path: Path) -> None:
    require_strace()
    rig = Rig(tmp_path, broker.port, report={"every": "0.2s"})
    config = loader.load(rig.device.path, {})
    with running(rig.device, broker.port) as listener:
        assert rig.device.process is not None
        # The one that was written before there was a connection says "degraded", too.
        wait_until(lambda: status_of(config).state == "online", PATIENCE)
        with failing(rig.device.process.pid, f"{WRITES},{SYNCS}", "ENOSPC", rig.state / "status.json"):
            rig.publish(listener, 10)
            rig.answered(listener)
            rig.all_stored(PATIENCE)
            wait_until(lambda: status_of(config).state == "degraded", PATIENCE)
            assert "has not written its status" in (status_of(config).problem or "")
        wait_until(lambda: status_of(config).state == "online", PATIENCE)
        assert status_of(config).problem is None


def trained(listener: Listener) -> str:
    """Have one run done; how it ended."""
    before = len(listener.events("training_finished"))
    listener.request("train", steps=5)
    listener.wait(lambda: len(listener.events("training_finished")) > before, PATIENCE)
    finished = listener.events("training_finished")
    assert len(finished) == before + 1, "a run that nobody asked for"
    outcome: str = finished[-1]["outcome"]
    return outcome


def champion(state: Path) -> int:
    """Whom the registry names."""
    with Registry.open(state, readonly=True) as registry:
        return registry.champion() or 0


def test_training_and_promotion_on_a_failing_disk_leave_the_champion_serving(
    broker: Mosquitto, tmp_path: Path
) -> None:
    require_strace()
    gate = {"min_gain": -1.0, "max_regret": 1.0, "min_holdout": 1, "holdout": 0.3, "probation": 0}
    # What the disk has ended goes on by itself, later than this test takes.
    training = {"every": None, "new_labels": 0, "resident": "60s", "retry_after": "10m"}
    rig = Rig(tmp_path, broker.port, gate=gate, training=training)
    state = rig.state
    sites: list[tuple[str, str, list[Path], str]] = [
        (SYNCS, "EIO", [state / "checkpoints"], "failed"),
        (SYNCS, "ENOSPC", [state / "candidates"], "failed"),
        (RENAMES, "EROFS", [], "failed"),
        (SYNCS, "EIO", [state / "models"], "done"),
    ]
    with running(rig.device, broker.port) as listener:
        assert rig.device.process is not None
        pid = rig.device.process.pid
        rig.publish(listener, 120)
        rig.answered(listener)
        rig.all_stored(PATIENCE)
        for calls, error, paths, outcome in sites:
            with failing(pid, calls, error, *paths):
                assert trained(listener) == outcome
                rig.publish(listener, 5)
                rig.answered(listener)
                if outcome == "done":
                    listener.wait(lambda: listener.events("candidate_rejected"), PATIENCE)
        assert "failed" in listener.events("candidate_rejected")[-1]["reasons"][0]
        assert {p["model"] for p in listener.messages["predictions"]} == {1}
        assert not listener.events("training_paused"), "three runs that the disk ended are no failures"
        with failing(pid, SYNCS, "EIO", state / "models", first=2):  # the pointer has moved by then
            listener.request("train", steps=5)
            listener.wait(lambda: listener.events("model_promoted"), PATIENCE)
        rig.publish(listener, 5)
        rig.answered(listener)
        assert listener.messages["predictions"][-1]["model"] == champion(state) > 1
        rig.check_predictions(listener)
        left = [path.name for path in (state / "candidates").iterdir()]
        assert len(left) <= 1, "candidates of failed runs do not pile up"


@pytest.mark.parametrize(
    "seconds",
    [0.0, pytest.param(30.0, marks=pytest.mark.faults)],
)
def test_a_disk_that_is_really_full(broker: Mosquitto, tmp_path: Path, seconds: float) -> None:
    if not may_mount():
        pytest.skip("may not mount a file system; the same errors are injected by the other tests")
    with mounted(tmp_path, 16) as disk:
        state = disk / "state"
        rig = Rig(tmp_path, broker.port, mqtt=mqtt(broker), storage={"dir": str(state), "max_bytes": "2MiB"})
        rig.state = state
        with running(rig.device, broker.port) as listener:
            rig.publish(listener, 20)
            rig.answered(listener)
            rig.all_stored(PATIENCE)
            fill(disk / "ballast")
            rig.publish(listener, 400)
            listener.wait(lambda: "full" in (problem(listener) or ""), PATIENCE)
            stored, predictions = rig.count(), listener.messages["predictions"]
            listener.wait(lambda: len(predictions) >= stored + WINDOW, PATIENCE)
            assert stored + WINDOW < rig.sent, "the disk was not full"
            threading.Event().wait(seconds)
            since = time.monotonic()
            (disk / "ballast").unlink()
            acknowledged(listener, stored + WINDOW, since)
            recovered(rig, listener)
            rig.answered(listener)
            rig.check_predictions(listener)
