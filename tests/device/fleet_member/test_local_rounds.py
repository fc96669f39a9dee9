"""Requests of a program on this machine that cannot begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.config.fleet import FleetConfig
from edged.device.fleet_member.local_rounds import LocalRounds
from edged.device.web.api.fleet_rounds import RoundEndpoints
from edged.domain.federated.round_orders import FitRequest, TrialRequest
from edged.errors import RefusedError, UnavailableError

if TYPE_CHECKING:
    from edged.domain.events import Event


class BusyDevice:
    """A learning thread that is in a training run: it keeps what it is to do."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.events: list[Event] = []

    def between_runs(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def event(self, event: Event) -> None:
        self.events.append(event)


def rounds(folder: Path, device: BusyDevice, **config: Any) -> LocalRounds:
    return LocalRounds(FleetConfig(flower=True, **config), device, folder)  # type: ignore[arg-type]


def test_a_device_in_a_long_run_declines_and_does_not_train_later(tmp_path: Path) -> None:
    device = BusyDevice()
    made = rounds(tmp_path, device)
    future = made.train(FitRequest(), {})
    with pytest.raises(RefusedError, match="a training run is in progress"):
        asyncio.run(RoundEndpoints(made, "classify", wait=0.01)._result(future))  # noqa: SLF001
    device.jobs.pop()()
    assert future.cancelled()
    assert device.events == []


def test_requests_fail_when_the_daemon_stops(tmp_path: Path) -> None:
    device = BusyDevice()
    made = rounds(tmp_path, device)
    waiting = made.train(FitRequest(), {})
    made.stop()
    assert waiting.cancelled()
    later = made.evaluate(TrialRequest(offer=True), {})
    with pytest.raises(UnavailableError, match="the daemon is stopping"):
        later.result()
    assert len(device.jobs) == 1


def test_a_device_that_only_receives_models_declines_to_train(tmp_path: Path) -> None:
    device = BusyDevice()
    future = rounds(tmp_path, device, train=False).train(FitRequest(round=3), {})
    device.jobs.pop()()
    with pytest.raises(RefusedError, match=r"fleet\.train is false"):
        future.result()
    assert [(event.name, event.to_json()["round"]) for event in device.events] == [("fleet_declined", 3)]
