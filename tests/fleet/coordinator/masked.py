"""Devices that mask what they send, at a coordinator without a broker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import numpy as np

from edged.device.fleet_member.masked_rounds import RoundMasks
from edged.domain.federated.mask_messages import JOIN, ROSTER, SHARES, UNMASK
from edged.domain.federated.masking import flat
from edged.domain.federated.messages import UpdateHeader
from edged.errors import EdgedError
from edged.mqtt.weight_encoding import pack_masked
from tests.fleet.coordinator.channel import TOPICS
from tests.fleet.senders import SHAPES, change_of

if TYPE_CHECKING:
    from edged.domain.federated.messages import RoundAnnouncement
    from tests.fleet.coordinator.channel import Fleet, Line

    VectorOf = Callable[[str, RoundAnnouncement], np.ndarray]


def weighed(device: str, told: RoundAnnouncement) -> np.ndarray:
    """An update that is drawn from a device's name, as it goes into the sum."""
    change, samples = change_of(device, told.round, SHAPES)
    weight = min(samples, 10_000) / 10_000
    return np.append(weight * flat(change, SHAPES), weight)


class MaskedDevices:
    """Devices that do what the coordinator asks for, but for those that a test makes silent."""

    def __init__(self, fleet: Fleet, vector: VectorOf = weighed) -> None:
        self._fleet, self._vector = fleet, vector
        self.silent: set[str] = set()
        self.sent: dict[str, np.ndarray] = {}
        self._devices: dict[str, RoundMasks] = {}
        self._told: RoundAnnouncement | None = None
        self._line: Line | None = None
        self._read = 0

    def join(self, names: Collection[str]) -> None:
        """Join the round that is open, unless that was done."""
        told = self._fleet.told
        if told is None or told.state != "open" or told.config.masks is None:
            return
        if self._told is None or self._told.id != told.id:
            self._told, self._devices, self.sent = told, {}, {}
        for name in names:
            if name not in self._devices and name not in self.silent:
                self._devices[name] = RoundMasks(name, told.id)
            if name not in self.silent:
                self._say(name, JOIN, self._devices[name].join())

    def again(self) -> None:
        """Say again what every device may be waited for."""
        self.join(list(self._devices))

    def react(self) -> None:
        """Do what was asked for since."""
        line = self._fleet.line
        if line is not self._line:
            self._line, self._read = line, 0
        news, self._read = line.sent[self._read :], len(line.sent)
        for topic, payload in news:
            if "/peers/" in topic:
                _, number, device, step = topic.rsplit("/", 3)
                told = self._told
                if told is not None and number == str(told.round) and device not in self.silent:
                    self._answer(self._devices.get(device), step, payload)

    def _answer(self, masks: RoundMasks | None, step: str, payload: bytes) -> None:
        if masks is None:
            return
        try:
            if step == ROSTER:
                self._say(masks.name, SHARES, masks.share(payload))
            elif step == SHARES:
                masks.hold(payload)
                self.update(masks.name)
            else:
                self._say(masks.name, UNMASK, masks.unmask(payload))
        except EdgedError:  # what it must not answer
            self.silent.add(masks.name)

    def update(self, name: str) -> None:
        """Send the update under masks, the same each time."""
        told = self._told
        if told is None:
            return
        if name not in self.sent:
            self.sent[name] = self._devices[name].masked(self._vector(name, told))
        blob = pack_masked(self.sent[name])
        line = UpdateHeader(name, told.round, told.id, told.base.hash, 1, len(blob), "0" * 64)
        for topic, payload in line.messages(TOPICS, blob):
            self._fleet.line.say(topic, payload)

    def _say(self, name: str, step: str, payload: bytes) -> None:
        if self._told is not None:
            self._fleet.line.say(TOPICS.mask(self._told.round, name, step), payload)
