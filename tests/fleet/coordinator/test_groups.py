"""Groups with models of their own, over a real broker: who follows which rounds, and how groups begin."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from edged.domain.federated.audience import Audience, DeviceFacts, GroupRule, group_of
from edged.domain.federated.messages import FleetTopics, RoundAnnouncement
from edged.errors import ConfigError
from edged.fleet.config import load
from edged.fleet.coordinator.branches import FleetWithGroups, exclude, folder_of
from edged.fleet.coordinator.control import read_control
from edged.fleet.coordinator.journal import read_lineage
from edged.fleet.coordinator.status import lines_of, status_of
from edged.mqtt.control_client import BrokerAddress, Operator
from tests.fleet.senders import FLEET, Senders
from tests.running_device import wait_until

if TYPE_CHECKING:
    from edged.workbench.demo.broker import Mosquitto
    from tests.fleet.conftest import MakeSite, Site

NORTH, SOUTH = [f"n{n}" for n in range(4)], [f"s{n}" for n in range(4)]
SECTIONS: dict[str, Any] = {
    "groups": {"north": {"tags": ["north"], "own_model": True}},
    "choose": {"patience": "1s", "min_samples": 1},
    "round": {"devices": 4, "over": 1, "window": 0, "rounds": 2, "quorum": 1.0, "deadline": "60s"},
}


@pytest.fixture
def site(broker: Mosquitto, make_site: MakeSite) -> Site:
    return make_site(broker.port, **SECTIONS)


class Running:
    """A fleet with its groups in a thread."""

    def __init__(self, site: Site) -> None:
        self.fleet = FleetWithGroups(load(site.path))
        self._thread = threading.Thread(target=self.fleet.run)
        self._thread.start()

    def finish(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.fleet.stop()
        self._thread.join(20)


@pytest.fixture
def running(site: Site) -> Iterator[Running]:
    made = Running(site)
    yield made
    made.close()


class Members(Senders):
    """Devices that follow the rounds for their group, as daemons do."""

    def __init__(self, site: Site, names: list[str], tags: tuple[str, ...]) -> None:
        self._facts = DeviceFacts(names[0], tags)
        super().__init__(site.port, names)
        self._sessions[0].subscribe([self.topics.rounds[1]], 1, self._heard)
        self.states(tags=tags)

    def _begin(self, told: RoundAnnouncement) -> None:
        if told.audience is not None and told.audience.includes(self._facts):
            super()._begin(told)


def test_each_group_has_rounds_and_a_model_of_its_own(site: Site, running: Running) -> None:
    members = [Members(site, NORTH, ("north",)), Members(site, SOUTH, ())]
    running.finish()
    for member in members:
        member.close()
    config = load(site.path)
    fleet, north = (read_lineage(folder_of(config, group)) for group in ("", "north"))
    assert [entry.accepted for entry in fleet + north] == [True] * 4
    assert fleet[0].parent == north[0].parent, "the group begins with the fleet's model"
    assert fleet[1].model != north[1].model
    about = [running.fleet.coordinators[group].journal.about(found[1].model) for group, found in
             (("", fleet), ("north", north))]  # fmt: skip
    assert [one.devices for one in about] == [4, 4]
    assert status_of(config, "north").status.group == "north"
    assert lines_of(status_of(config, "north"))[0].startswith("fleet plant, group north: stopped")
    with pytest.raises(ConfigError, match="south is no group with its own model"):
        folder_of(config, "south")


def test_what_one_group_no_longer_needs_stays_at_the_broker_for_another(site: Site, running: Running) -> None:
    members = Members(site, SOUTH, ())  # nobody is in the north: it stays with the first model
    wait_until(lambda: len(read_lineage(site.dir)) == 2, 30)
    first = read_lineage(site.dir)[0].parent
    topics = FleetTopics(FLEET)
    with Operator(BrokerAddress("127.0.0.1", site.port)) as listener:
        listener.subscribe([topics.model(first, "+")])
        topic, payload = next(iter(listener.messages(time.monotonic() + 20)))
    members.close()
    assert topic == topics.model(first, 0)
    assert payload == running.fleet.coordinators["north"].journal.blob(first)


def test_a_device_that_changes_its_tags_changes_its_group(site: Site, running: Running) -> None:
    members = Members(site, ["a"], ("north",))
    fleet, north = running.fleet.coordinators[""], running.fleet.coordinators["north"]
    wait_until(lambda: north.knows("a"), 20)
    assert not fleet.knows("a")
    config = load(site.path)
    for include in (False, True):
        exclude(config, "a", include=include)
        excluded = () if include else ("a",)
        assert [read_control(folder_of(config, group)).excluded for group in ("", "north")] == [excluded] * 2
    members.states(tags=())
    wait_until(lambda: fleet.knows("a") and not north.knows("a"), 20)
    members.close()


def test_the_first_rule_that_fits_decides() -> None:
    rules = (
        GroupRule("old", version="0.1*"), GroupRule("pumps", devices=("pump-*", "x")),
        GroupRule("arm", arch="a*64", tags=("hall",)),
    )  # fmt: skip
    told = [
        group_of(rules, DeviceFacts(name, tags, arch, version))
        for name, tags, arch, version in (
            ("pump-1", (), "x86_64", "0.1.3"), ("pump-1", (), "x86_64", "0.2"),
            ("y", ("hall",), "aarch64", "0.2"), ("y", (), "aarch64", "0.2"),
        )
    ]  # fmt: skip
    assert told == ["old", "pumps", "arm", ""]
    assert Audience().includes(DeviceFacts("y"))
