"""A fleet of which groups have models of their own: a coordinator each, over one session at the broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edged.domain.federated.messages import FleetTopics
from edged.errors import ConfigError, RejectedUpdateError
from edged.fleet.coordinator import control
from edged.fleet.coordinator.coordinator import Coordinator
from edged.fleet.coordinator.journal import COURSE
from edged.mqtt.client.session import Session
from edged.mqtt.weight_encoding import FILE

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.fleet.config import CoordinatorConfig
    from edged.fleet.coordinator.announcer import Channel
    from edged.fleet.coordinator.control import Control
    from edged.mqtt.client.message import ReceivedMessage

GROUPS = "groups"


def folder_of(config: CoordinatorConfig, group: str) -> Path:
    """The directory of a group with a model of its own; the fleet's when `group` is empty.

    Raises ConfigError when there is no such group.
    """
    if not group:
        return config.dir
    if group not in own_groups(config):
        raise ConfigError(
            f"{group} is no group with its own model",
            where="--group",
            remedy=f"one of {', '.join(own_groups(config)) or 'none: set groups.NAME.own_model'}",
        )
    return config.dir / GROUPS / group


def own_groups(config: CoordinatorConfig) -> list[str]:
    """The groups with a model of their own."""
    return [name for name, section in config.groups.items() if section.own_model]


def exclude(config: CoordinatorConfig, device: str, *, include: bool = False) -> Control:
    """Let a device take no part in rounds of the fleet and its groups, or (`include`) take part again.

    Raises what `control.exclude` raises.
    """
    excluded = control.exclude(config.dir, device, include=include)
    for group in own_groups(config):
        folder = folder_of(config, group)
        if folder.is_dir() and (device in control.read_control(folder).excluded) is include:
            control.exclude(folder, device, include=include)
    return excluded


class Branch:
    """The channel of one coordinator: all publish over one session, each receives its own devices' messages.

    Only the fleet's own branch acknowledges what comes to several: `deliver` gives others a copy that needs
    no acknowledgement.
    """

    def __init__(self, session: Channel, fleet: FleetWithGroups, group: str) -> None:
        self._session, self._fleet, self._group = session, fleet, group
        self._sink: Callable[[ReceivedMessage], None] | None = None

    @property
    def connected(self) -> bool:
        """Whether messages can be sent now."""
        return self._session.connected

    def start(self) -> None:
        """The session is started for all branches together."""

    def stop(self) -> None:
        """Stop the delivery of messages to all groups."""
        self._sink = None

    def subscribe(self, patterns: Sequence[str], qos: int, sink: Callable[[ReceivedMessage], None]) -> None:  # noqa: ARG002
        """Deliver messages to `sink`; the filters are those of all branches."""
        self._sink = sink

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """Publish a message; False if it was rejected. A model that another branch needs stays."""
        if not payload and self._fleet.needs(topic, self._group):
            return True
        return self._session.publish(topic, payload, qos=qos, retain=retain)

    def ack(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages that are durable or of no use."""
        self._session.ack(deliveries)

    def deliver(self, delivery: ReceivedMessage, *, copy: bool = False) -> None:
        """Hand a message to the coordinator, or acknowledge it when that has ended."""
        sink = self._sink
        if sink is not None:
            sink(replace(delivery, qos=0) if copy else delivery)
        elif not copy:
            self._session.ack([delivery])


class FleetWithGroups:
    """Coordinates a fleet and its groups with models of their own, each in a thread; `run` until `stop`.

    Raises what `Coordinator` raises.
    """

    def __init__(
        self, config: CoordinatorConfig, *, clock: Clock | None = None, channel: Channel | None = None
    ) -> None:
        name = config.mqtt.client_id or f"edged-fleet-{config.fleet}"
        self._session: Channel = channel or Session(config.broker, client_id=name, listener=self)
        self._topics = FleetTopics(config.fleet, config.mqtt.root)
        self._session.subscribe(self._topics.of_devices, 1, self._route)
        self._branches: dict[str, Branch] = {"": Branch(self._session, self, "")}
        self.coordinators: dict[str, Coordinator] = {}
        self.coordinators[""] = Coordinator(config, clock=clock, channel=self._branches[""])
        for group in own_groups(config):
            self._branches[group] = Branch(self._session, self, group)
            own = self._config_of(config, group)
            self.coordinators[group] = Coordinator(
                own, clock=clock, channel=self._branches[group], group=group
            )
        self._failed: list[BaseException] = []

    def needs(self, topic: str, group: str) -> bool:
        """Whether another group than `group` still needs the model on a topic."""
        courses = [one.course for name, one in self.coordinators.items() if name != group]
        digests = {course.standing.hash for course in courses}
        digests |= {course.round.base.hash for course in courses if course.round is not None}
        return any(f"/model/{digest}/" in topic for digest in digests)

    def _config_of(self, config: CoordinatorConfig, group: str) -> CoordinatorConfig:
        """The configuration of a group: it begins with the model that the fleet has now."""
        folder, changed = folder_of(config, group), {}
        if not (folder / COURSE).exists():
            standing = self.coordinators[""].course
            changed = {
                "model": config.dir / "models" / standing.standing.hash / FILE,
                "bundle": standing.bundle,
            }
        return config.model_copy(update={"dir": folder, **changed})

    def _route(self, delivery: ReceivedMessage) -> None:
        """On the network thread: states go to all, as a device may change its group; the rest to its own."""
        try:
            kind, device, *_ = self._topics.sender(delivery.topic)
        except RejectedUpdateError:
            kind, device = "", ""
        if kind == "state":
            for group, branch in self._branches.items():
                if group:
                    branch.deliver(delivery, copy=True)
            self._branches[""].deliver(delivery)
            return
        owners = [name for name, one in self.coordinators.items() if one.knows(device)]
        self._branches[owners[0] if owners else ""].deliver(delivery)

    def online(self) -> None:
        """Have all publish their rounds and models again."""
        for coordinator in self.coordinators.values():
            coordinator.online()

    def connection_changed(self) -> None:
        """Do nothing: the session sends later what it accepts while it is offline."""

    def run(self) -> None:
        """Coordinate until the last round of all, or until `stop`; raises what one of them raises."""
        threads = [
            threading.Thread(target=self._run, args=(one,), name=f"group {name}")
            for name, one in self.coordinators.items()
        ]
        for thread in threads:
            thread.start()
        self._session.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self._session.stop()
        if self._failed:
            raise self._failed[0]

    def _run(self, coordinator: Coordinator) -> None:
        try:
            coordinator.run()
        except BaseException as problem:  # noqa: BLE001  `run` raises it
            self._failed.append(problem)
            self.stop()

    def stop(self) -> None:
        """Let `run` return. From any thread, or from a signal's handler."""
        for coordinator in self.coordinators.values():
            coordinator.stop()
