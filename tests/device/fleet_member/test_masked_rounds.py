"""What a device does in rounds under masks, without a broker: its messages, their bytes, what it sends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edged.device.fleet_member.masked_rounds import MaskedRounds
from edged.domain.federated.mask_messages import ROSTER, SHARES, UNMASK
from edged.domain.federated.messages import (
    BaseModelInfo,
    FleetTopics,
    MaskSettings,
    RoundAnnouncement,
    RoundSettings,
)
from edged.fleet.rules.masks import Masks
from edged.storage.models.fleet import FleetModels, SentUpdates

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage

TOKEN, TOPICS, NAMES = "0" * 32, FleetTopics("plant"), ("a", "b", "c")


class Line:
    """A connection that keeps what was said."""

    connected = True

    def __init__(self) -> None:
        self.said: list[tuple[str, bytes]] = []

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        self.said.append((topic, payload))
        return not retain

    def follow(self, pattern: str, sink: Callable[[ReceivedMessage], None]) -> None:
        """Nothing comes by itself."""

    def leave(self, pattern: str) -> None:
        """Nothing was followed."""


def test_all_messages_of_a_handshake_are_counted(tmp_path: Path) -> None:
    announced = RoundAnnouncement(
        "plant", 3, TOKEN, "open", "f00", BaseModelInfo("0" * 64, 10, 1), 1.0, 2.0, 0.0, None,
        RoundSettings(masks=MaskSettings(100)),
    )  # fmt: skip
    lines = {name: Line() for name in NAMES}
    devices = {name: MaskedRounds(name, TOPICS, line) for name, line in lines.items()}
    kept, models, masks = SentUpdates(tmp_path), FleetModels(tmp_path), Masks(TOKEN)
    heard = dict.fromkeys(NAMES, 0)

    def say(now: float) -> None:
        for name, device in devices.items():
            before = len(lines[name].said)
            device.advance(now, kept, models)
            for topic, payload in lines[name].said[before:]:
                masks.receive(name, topic.rsplit("/", 1)[1], payload)

    def hear(step: str) -> None:
        for name, device in devices.items():
            payload = masks.message_for(name, step)
            heard[name] += len(payload)
            before = len(lines[name].said)
            device.receive(TOPICS.peers(3, name, step), payload, 0.0)
            for topic, answer in lines[name].said[before:]:
                masks.receive(name, topic.rsplit("/", 1)[1], answer)

    for device in devices.values():
        device.join(announced, 0.0)
    say(0.0)
    say(40.0)  # nobody has answered: once more
    masks.make_roster()
    hear(ROSTER)
    say(0.0)
    masks.choose_sharers()
    hear(SHARES)
    masks.close(NAMES)
    hear(UNMASK)
    assert masks.complete
    for name, device in devices.items():
        assert len(lines[name].said) == 4
        assert device.transferred() == heard[name] + sum(len(payload) for _, payload in lines[name].said)
        assert device.transferred() == 0
