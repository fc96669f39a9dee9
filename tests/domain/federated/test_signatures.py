"""What a coordinator says counts for its topic and its exact bytes alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.domain.federated.messages import BaseModelInfo, Receipts, RoundAnnouncement, RoundSettings
from edged.domain.federated.signatures import signed, signer
from edged.signing import Keys, new_pair, sign

TOPIC = "edged/fl/plant/round"
ROUND = RoundAnnouncement(
    "plant",
    3,
    "0" * 32,
    "open",
    "f00",
    BaseModelInfo("1" * 64, 10, 1),
    1.0,
    2.0,
    0.0,
    ("a",),
    RoundSettings(),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Keys]:
    private = tmp_path_factory.mktemp("keys") / "fleet"
    return private, Keys([new_pair(private)])


def test_a_signed_message_is_read_as_before_and_names_its_key(pair: tuple[Path, Keys]) -> None:
    private, keys = pair
    for topic, told in ((TOPIC, ROUND), ("edged/fl/plant/ack/3", Receipts("0" * 32, ("a",), {"b": "norm"}))):
        payload = signed(topic, told.payload(), lambda message: sign(message, private))
        assert type(told).read(payload) == told
        found = signer(topic, payload, keys)
        assert found is not None
        assert found.name == "fleet.pub"


def test_nothing_else_counts(pair: tuple[Path, Keys], tmp_path: Path) -> None:
    private, keys = pair
    payload = signed(TOPIC, ROUND.payload(), lambda message: sign(message, private))
    stranger = tmp_path / "stranger"
    new_pair(stranger)
    others = {
        "unsigned": (TOPIC, ROUND.payload()),
        "another key": (TOPIC, signed(TOPIC, ROUND.payload(), lambda message: sign(message, stranger))),
        "another fleet": ("edged/fl/other/round", payload),
        "another root": ("plant/fl/plant/round", payload),
        "a changed number": (TOPIC, payload.replace(b'"round":3', b'"round":4')),
        "an empty signature": (TOPIC, ROUND.payload()[:-1] + b',"signature":""}'),
        "no text": (TOPIC, ROUND.payload()[:-1] + b',"signature":5}'),
        "no JSON": (TOPIC, b"{"),
        "a list": (TOPIC, b"[]"),
    }
    assert {name: signer(topic, told, keys) for name, (topic, told) in others.items()} == dict.fromkeys(
        others
    )


def test_every_changed_byte_is_noticed(pair: tuple[Path, Keys]) -> None:
    private, keys = pair
    payload = signed(TOPIC, ROUND.payload(), lambda message: sign(message, private))
    for at in range(0, len(payload), 3):
        changed = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]
        assert signer(TOPIC, changed, keys) is None, changed
