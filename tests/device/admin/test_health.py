"""`edged status --healthy`, as a container's health check asks."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edged.config import loader
from edged.device.admin.status import health, problem_of
from edged.device.reports import LocalStatus
from tests.commands import edged, write_config
from tests.running_device import Device, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

SMALL = {"features": 3, "classes": 2, "label": "y", "id": "id"}


def test_a_device_that_does_not_run_is_not_well(tmp_path: Path) -> None:
    config = write_config(tmp_path, SMALL)
    answer = edged("status", config, "--healthy")
    assert (answer.code, answer.err) == (1, "")
    assert answer.out == f"stopped: no daemon runs on {tmp_path / 'state'}\n"
    as_json = edged("status", config, "--healthy", "--json")
    assert as_json.code == 1
    assert as_json.json == {"healthy": False, "line": answer.out.rstrip()}


@pytest.mark.slow
def test_a_running_device_is_well_until_it_hangs(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, SMALL, report={"every": "100ms"})
    config = loader.load(device.path)
    with running(device, broker.port) as listener:
        listener.wait(lambda: listener.messages["metrics"])
        assert device.process is not None
        answer = edged("status", device.path, "--healthy")
        assert (answer.code, answer.out) == (0, f"online: process {device.process.pid}\n")
        os.kill(device.process.pid, signal.SIGSTOP)
        wait_until(lambda: not health(config)[0])
        assert "has not written its status for" in health(config)[1]
        os.kill(device.process.pid, signal.SIGCONT)
        wait_until(lambda: health(config)[0])
    assert health(config)[0] is False


def test_a_problem_that_the_daemon_told_is_passed_on() -> None:
    last = LocalStatus(boot=3, told_at=1e18, problem="the disk is full")
    assert problem_of(last, 3, 10.0) == "the disk is full"
    assert problem_of(last, 4, 10.0) is None, "it was another start"
    assert problem_of(replace(last, problem=None), 3, 10.0) is None
