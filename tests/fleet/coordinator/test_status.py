"""`edged fleet status`: before, beside and after a coordinator; and a restart in the middle of a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from edged.fleet.config import load
from edged.fleet.coordinator.coordinator import Coordinator
from edged.fleet.coordinator.status import lines_of, status_of
from edged.storage.files.atomic import DirectoryLock
from tests.fleet.coordinator.test_coordinator import NAMES, ONE_ROUND, reporting
from tests.running_device import wait_until

if TYPE_CHECKING:
    from edged.domain.federated.messages import RoundAnnouncement
    from tests.fleet.conftest import MakeSite, Site
    from tests.fleet.senders import Senders
    from tests.mosquitto import Mosquitto


def command(site: Site, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edged", "fleet", "status", str(site.path), *more],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_what_it_says_before_and_after(broker: Mosquitto, make_site: MakeSite) -> None:
    site = make_site(broker.port, round=ONE_ROUND)
    before = command(site)
    assert before.returncode == 1
    assert "no coordinator has run here" in before.stderr
    site.senders(NAMES)
    site.start()
    site.finish()
    told = json.loads(command(site, "--json").stdout)
    assert (told["running"], told["phase"], told["round"], told["version"]) == (False, "done", 1, 1)
    assert told["rounds"][0]["reason"] == "not judged"
    assert "round 1: accepted, version 1" in "\n".join(lines_of(status_of(load(site.path).dir)))


def test_what_it_says_while_it_runs(broker: Mosquitto, make_site: MakeSite) -> None:
    site = make_site(broker.port, round=ONE_ROUND)
    devices = site.senders(NAMES, hold=NAMES[10:])
    site.start()
    devices.wait(lambda: devices.answered() == 10)
    told = status_of(load(site.path).dir)
    assert (told.running, told.status.phase, told.status.wanted) == (True, "open", 30)


def test_a_trial_goes_on_after_a_restart(broker: Mosquitto, make_site: MakeSite) -> None:
    """Reports that came before it count, and so do those of the round before."""
    site = make_site(broker.port, round=ONE_ROUND, gate={"stages": [1.0], "wait": "60s"})
    silent = set(NAMES[20:])

    def on_round(devices: Senders, told: RoundAnnouncement) -> None:
        names = [name for name in NAMES if name not in silent]
        if told.state == "closed":
            reporting({1: 0.9}, [], names)(devices, told)

    devices = site.senders(NAMES, on_round=on_round)
    first = site.start()
    devices.wait_state("closed", 1)
    wait_until(lambda: len(first.reports.of(first.course.round.base.hash)) == 20)  # type: ignore[union-attr]
    first.stop()
    site.finish()
    assert DirectoryLock.holder(site.dir) is None
    again = Coordinator(load(site.path))
    assert again.course.phase == "trial"
    assert len(again.reports.of(again.course.round.base.hash)) == 20  # type: ignore[union-attr]
    again.close()
