"""The line to a fleet that somebody else carries: what is handed in, kept, and given out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edged.config.fleet import FleetConfig
from edged.device.fleet_member.local_transport import LocalTransport
from edged.device.fleet_member.round_executor import DeviceHost, RoundExecutor
from edged.domain.events import FleetAccepted, FleetDeclined
from edged.domain.federated.messages import (
    PART_BYTES,
    BaseModelInfo,
    Evaluation,
    FleetTopics,
    Quality,
    Receipts,
    RoundAnnouncement,
    RoundSettings,
    UpdateHeader,
)
from edged.domain.federated.participation import MembershipRecord
from edged.errors import RefusedError

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage

TOPICS = FleetTopics("plant")
TOKEN, DIGEST = "0" * 32, "a" * 64
MODEL = bytes(PART_BYTES + 7)


class Judged(DeviceHost):
    """Remembers which model of its fleet it has judged, and nothing else."""

    def __init__(self, digest: str) -> None:
        self._record = MembershipRecord(judged=digest)


class Bench(RoundExecutor):
    """Trains the bundle of the tests, and nothing else."""

    def __init__(self) -> None: ...

    def bundle(self) -> str:
        return "b"


def transport(judged: str = "") -> LocalTransport:
    """The transport of a device that has judged this model of its fleet."""
    return LocalTransport(FleetConfig(name="plant", flower=True), TOPICS, Bench(), Judged(judged))


@pytest.fixture
def came() -> list[ReceivedMessage]:
    return []


@pytest.fixture
def local(came: list[ReceivedMessage]) -> LocalTransport:
    made = transport()
    made.follow(TOPICS.round, came.append)
    made.follow(TOPICS.ack("+"), came.append)
    return made


def announced(number: int = 1, token: str = TOKEN, *, evaluate: bool = True) -> RoundAnnouncement:
    config, base = RoundSettings(evaluate=evaluate), BaseModelInfo(DIGEST, len(MODEL), 2)
    return RoundAnnouncement("plant", number, token, "open", "b", base, 1.0, 2.0, 0.0, None, config)


def send(local: LocalTransport, blob: bytes, number: int = 1, token: str = TOKEN) -> None:
    update = UpdateHeader("press", number, token, DIGEST, 10, 0, "")
    for topic, payload in update.messages(TOPICS, blob):
        local.publish(topic, payload)


def test_round_receipts_and_model_reach_the_member(
    local: LocalTransport, came: list[ReceivedMessage]
) -> None:
    receipts = Receipts(TOKEN, ("press",)).payload()
    local.hand_in(announced(), receipts, MODEL)
    assert [delivery.topic for delivery in came] == [TOPICS.ack(1), TOPICS.round]
    assert RoundAnnouncement.read(came[1].payload) == announced()
    local.follow(TOPICS.model(DIGEST, "+"), came.append)
    parts = came[2:]
    assert [part.topic for part in parts] == [TOPICS.model(DIGEST, 0), TOPICS.model(DIGEST, 1)]
    assert b"".join(part.payload for part in parts) == MODEL


def test_a_member_that_waits_for_the_model_already_gets_it(
    local: LocalTransport, came: list[ReceivedMessage]
) -> None:
    local.follow(TOPICS.model(DIGEST, "+"), came.append)
    assert came == []
    local.hand_in(announced(), b"", MODEL)
    assert [delivery.topic for delivery in came] == [TOPICS.round, *(TOPICS.model(DIGEST, n) for n in (0, 1))]


@pytest.mark.parametrize("size", [1, 2 * PART_BYTES + 50])
def test_an_update_is_given_out_whole_until_its_receipt(local: LocalTransport, size: int) -> None:
    local.hand_in(announced(), b"", MODEL)
    assert local.update(TOKEN) is None
    blob = bytes(range(256)) * (size // 256) + bytes(size % 256)
    send(local, blob)
    found = local.update(TOKEN)
    assert found is not None
    update, piece = UpdateHeader.read(found)
    assert (update.parts, update.bytes, piece) == (1, size, blob)
    assert local.newest() == found
    local.event(FleetAccepted(1, 1))
    assert local.newest() is None


def test_half_an_update_is_none(local: LocalTransport) -> None:
    local.hand_in(announced(), b"", MODEL)
    update = UpdateHeader("press", 1, TOKEN, DIGEST, 10, 0, "")
    first, _ = update.messages(TOPICS, bytes(PART_BYTES + 1))
    local.publish(*first)
    assert local.update(TOKEN) is None
    assert local.newest() is None
    send(local, b"another", token=TOKEN)  # its parts are not mixed with those of the one before
    assert UpdateHeader.read(local.update(TOKEN) or b"")[1] == b"another"


def test_a_round_that_is_declined_says_why_and_leaves_the_late_update(local: LocalTransport) -> None:
    send(local, b"late", 1, "1" * 32)
    local.hand_in(announced(2), b"", MODEL)
    local.event(FleetDeclined(1, "another round"))
    assert local.update(TOKEN) is None
    local.event(FleetDeclined(2, "too hot"))
    with pytest.raises(RefusedError, match="too hot"):
        local.update(TOKEN)
    assert UpdateHeader.read(local.newest() or b"")[0].round == 1
    local.hand_in(announced(2), b"", MODEL)  # asked again
    assert local.update(TOKEN) is None


def test_evaluations_are_those_of_the_round_and_its_model(local: LocalTransport) -> None:
    local.hand_in(announced(), b"", MODEL)
    assert local.evaluation(TOKEN) is None
    quality = Quality(0.5, 0.5)
    other = Evaluation("press", 1, TOKEN, "c" * 64, 9, quality, quality, None, True, "")
    local.publish(TOPICS.evaluation(1, "press"), other.payload())
    assert local.evaluation(TOKEN) is None
    fitting = Evaluation("press", 1, TOKEN, DIGEST, 9, quality, quality, None, True, "")
    local.publish(TOPICS.evaluation(1, "press"), fitting.payload())
    assert local.evaluation(TOKEN) == fitting.payload()


def test_nobody_waits_for_a_report_that_does_not_come(came: list[ReceivedMessage]) -> None:
    local = transport(judged=DIGEST)
    local.follow(TOPICS.round, came.append)
    local.hand_in(announced(), b"", MODEL)
    with pytest.raises(RefusedError, match="tried the model before"):
        local.evaluation(TOKEN)
    local.hand_in(announced(evaluate=False), b"", MODEL)
    with pytest.raises(RefusedError, match="does not ask for one"):
        local.evaluation(TOKEN)
