"""Updates in parts, and what happens when they do not all come."""

from __future__ import annotations

import pytest

from edged.domain.federated.messages import UpdateHeader
from edged.errors import RejectedUpdateError
from edged.fleet.coordinator.channel import Inbox
from edged.fleet.coordinator.updates import PartialUpdates
from edged.mqtt.client.message import ReceivedMessage


def update(device: str, parts: int, part: int, *, size: int = 100, sha256: str = "0") -> UpdateHeader:
    return UpdateHeader(device, 1, "0", "0", 1, size, sha256, parts=parts, part=part)


def test_parts_come_in_any_order_and_twice() -> None:
    parts = PartialUpdates(1000)
    assert parts.add(update("a", 3, 2), b"z") is None
    assert parts.add(update("a", 3, 0), b"x") is None
    assert parts.add(update("a", 3, 0), b"x") is None
    assert parts.add(update("a", 3, 1), b"y") == b"xyz"
    assert parts.held == 0


def test_one_part_is_the_whole() -> None:
    assert PartialUpdates(0).add(update("a", 1, 0), b"x") == b"x"


def test_more_than_the_line_says_is_refused_and_not_held() -> None:
    parts = PartialUpdates(1000)
    parts.add(update("a", 2, 0, size=3), b"xx")
    with pytest.raises(RejectedUpdateError) as refused:
        parts.add(update("a", 2, 1, size=3), b"yy")
    assert (refused.value.reason, parts.held) == ("size", 0)


def test_what_is_held_is_bounded_and_the_oldest_gives_way() -> None:
    parts = PartialUpdates(100)
    for device in ("a", "b", "c"):
        parts.add(update(device, 2, 0), bytes(40))
    assert parts.held == 80
    assert parts.add(update("b", 2, 1), b"!") == bytes(40) + b"!"
    assert parts.add(update("a", 2, 1), b"!") is None


def test_a_device_has_one_update_under_way() -> None:
    parts = PartialUpdates(1000)
    parts.add(update("a", 2, 0, sha256="1"), bytes(40))
    parts.add(update("a", 2, 0, sha256="2"), bytes(30))
    assert parts.held == 30


def test_an_inbox_has_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inbox, "PATIENCE", 0.05)
    inbox = Inbox(2)
    assert [inbox.put(delivery(n)) for n in range(3)] == [True, True, False]
    assert [found.mid for found in inbox.receive(9, 0.0)] == [0, 1]
    assert inbox.put(delivery(3))
    inbox.wake()
    assert [found.mid for found in inbox.receive(1, 1.0)] == [3]
    assert inbox.receive(1, 10.0) == []


def delivery(number: int) -> ReceivedMessage:
    return ReceivedMessage("t", b"", number, 1, dup=False, retain=False, epoch=1, received=0.0)
