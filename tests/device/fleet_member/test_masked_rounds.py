"""What a device does in rounds under masks, without a broker: its messages, their bytes, what it sends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.config import FleetConfig
from edged.device.fleet_member.masked_rounds import MaskedRounds
from edged.domain.federated.mask_messages import ROSTER, SHARES, UNMASK
from edged.domain.federated.messages import FleetTopics, RoundAnnouncement
from edged.domain.federated.round_orders import KeptUpdate
from edged.domain.federated.settings import (
    BaseModelInfo,
    LastLayer,
    MaskSettings,
    RoundSettings,
    StatisticsSettings,
)
from edged.domain.training.weight_deltas import fingerprint
from edged.fleet.rules.masks import Masks
from edged.mqtt.update_encoding import pack_sums, unpack_masked
from edged.mqtt.weight_encoding import pack
from edged.storage.models.fleet_models import FleetModels
from edged.storage.models.sent_updates import ROUNDS, SentUpdates

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
    config = FleetConfig(name="plant", resend=1.0, spread=0.0)
    devices = {name: MaskedRounds(name, config, TOPICS, line) for name, line in lines.items()}
    kept, models, masks = SentUpdates(tmp_path, KeptUpdate, ROUNDS), FleetModels(tmp_path), Masks(TOKEN)
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
        device.join(announced, 0.0, kept)
    say(0.0)
    say(5.0)  # nobody has answered: once more
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


def kept_sums(
    folder: Path, name: str, digest: str, tokens: tuple[str, ...]
) -> tuple[SentUpdates[KeptUpdate], dict[str, np.ndarray]]:
    """The statistics that a device has kept of these rounds, and their numbers."""
    kept, vectors = SentUpdates(folder, KeptUpdate, ROUNDS), {}
    for token in tokens:
        vectors[token] = np.random.default_rng([*map(ord, name + token[0])]).normal(size=6)
        about = KeptUpdate(name, 1, token, digest, 200, 0.0, 0.0, None, {}, 9, masked=True)
        kept.add(about, pack_sums(vectors[token]), {})
    return kept, vectors


def test_a_device_that_is_in_the_sum_sends_how_its_statistics_differ(tmp_path: Path) -> None:
    weights = {"w": np.zeros((3, 4), np.float32), "b": np.zeros(3, np.float32)}
    digest, old, new = fingerprint(weights), "a" * 32, "b" * 32
    settings = RoundSettings(
        statistics=StatisticsSettings((LastLayer("w", "b", 3, 4),)), masks=MaskSettings(100)
    )
    announced = RoundAnnouncement(
        "plant", 3, new, "open", "f00", BaseModelInfo(digest, 10, 1), 1.0, 2.0, 0.0, None, settings
    )
    lines, devices, masks = {name: Line() for name in NAMES}, {}, Masks(new)
    sent_before = {name: kept_sums(tmp_path / name, name, digest, (old, new)) for name in NAMES}
    kept, models = {name: found[0] for name, found in sent_before.items()}, FleetModels(tmp_path)
    models.put(digest, pack(weights))
    for name in NAMES:
        config = FleetConfig(name="plant", resend=1.0, spread=0.0)
        devices[name] = MaskedRounds(name, config, TOPICS, lines[name])

    def advance() -> dict[str, np.ndarray]:
        made = {}
        for name, device in devices.items():
            before = len(lines[name].said)
            if (update := device.advance(0.0, kept[name], models)) is not None:
                made[name] = unpack_masked(update.blob, 6)
            for topic, payload in lines[name].said[before:]:
                masks.receive(name, topic.rsplit("/", 1)[1], payload)
        return made

    for name, device in devices.items():
        device.join(announced, 0.0, kept[name])
        device.trained(2, next(kept[name].all()).about)
    assert advance() == {}
    assert masks.kept == dict.fromkeys(NAMES, (new, old))
    masks.make_roster(carried=old, members={"a": old, "b": old})  # c is new
    for step in (ROSTER, SHARES):
        for name, device in devices.items():
            device.receive(TOPICS.peers(3, name, step), masks.message_for(name, step), 0.0)
        sent = advance()
        masks.choose_sharers()
    masks.close(NAMES)
    for name, device in devices.items():
        device.receive(TOPICS.peers(3, name, UNMASK), masks.message_for(name, UNMASK), 0.0)
        masks.receive(name, UNMASK, lines[name].said[-1][1])
    found = masks.unmasked(sent.values(), 6)
    parts = [parts[new] - parts[old] * (name != "c") for name, (_, parts) in sent_before.items()]
    assert np.abs(found - np.sum(parts, axis=0) / 2).max() < 1e-9  # half: 100 of 200 samples
