"""The messages of a fleet: there and back, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.federated.messages import (
    PART_BYTES,
    BaseModelInfo,
    DeviceState,
    Evaluation,
    FleetTopics,
    Quality,
    Receipts,
    RoundAnnouncement,
    RoundSettings,
    UpdateHeader,
    joined,
    split,
)
from edged.errors import ConfigError, RejectedUpdateError

ID, HASH = "0" * 31 + "a", "b" * 64
TOPICS = FleetTopics("plant")
BASE = BaseModelInfo(HASH, 10, 1)
ROUND = RoundAnnouncement("plant", 3, ID, "open", "f00", BASE, 1.0, 2.5, 0.5, ("a", "b.c"), RoundSettings())
UPDATE = UpdateHeader("a", 3, ID, HASH, 12, 4, "c" * 64)
STATE = DeviceState("a", 1.0, "f00", "0.3", 5, True, "", True, 0, ("hall-2",))
REPORT = Evaluation("a", 3, ID, HASH, 9, Quality(1, 2), Quality(3, 4), None, False, "worse here")


def changed(payload: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(payload) | fields).encode()


def test_messages_come_back_as_they_were() -> None:
    everyone = replace(ROUND, devices=None, config=RoundSettings(None, 20), daily_bytes=9)
    assert [RoundAnnouncement.read(r.payload()) for r in (ROUND, everyone)] == [ROUND, everyone]
    assert DeviceState.read(STATE.payload()) == STATE
    assert Evaluation.read(REPORT.payload()) == REPORT
    receipts = Receipts(ID, ("a",), {"b": "samples"})
    assert Receipts.read(receipts.payload()) == receipts


def test_who_is_chosen() -> None:
    assert ROUND.names("b.c")
    assert not ROUND.names("c")
    assert replace(ROUND, devices=None).names("c")


@given(st.binary(min_size=1, max_size=3000))
def test_an_update_in_one_message(blob: bytes) -> None:
    [(topic, payload)] = UPDATE.messages(TOPICS, blob)
    update, piece = UpdateHeader.read(payload)
    assert topic == "edged/fl/plant/up/3/a"
    assert piece == blob
    assert (update.bytes, update.parts, update.part) == (len(blob), 1, 0)


def test_an_update_in_several_messages() -> None:
    blob = bytes(range(256)) * 1000
    messages = list(UPDATE.messages(TOPICS, blob))
    assert [topic for topic, _ in messages] == [f"edged/fl/plant/up/3/a/{n}" for n in range(3)]
    read = [UpdateHeader.read(payload) for _, payload in messages]
    assert b"".join(piece for _, piece in read) == blob
    assert [update.part for update, _ in read] == [0, 1, 2]
    assert max(len(payload) for _, payload in messages) < 128 * 1024


def test_topics_say_who_sends() -> None:
    assert TOPICS.sender(TOPICS.up(3, "a")) == ("up", "a", 3, None)
    assert TOPICS.sender(TOPICS.up(3, "a", 2)) == ("up", "a", 3, 2)
    assert TOPICS.sender(TOPICS.evaluation(3, "a")) == ("eval", "a", 3, None)
    assert TOPICS.sender(TOPICS.state("a")) == ("state", "a", None, None)


@pytest.mark.parametrize(
    "topic", ["up/3", "up/x/a", "up/3/a/b", "up/3/a/1/2", "up/²/a", "eval/3/a/1", "state", "ack/3", "up/3/-a"]
)
def test_other_topics_are_no_senders(topic: str) -> None:
    with pytest.raises(RejectedUpdateError):
        TOPICS.sender(f"{TOPICS.base}/{topic}")


def test_the_name_of_a_fleet_is_one_level() -> None:
    with pytest.raises(ConfigError, match="name of a fleet"):
        FleetTopics("a/b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "../etc"),
        ("id", "0" * 31),
        ("base", "B" * 64),
        ("parts", 0),
        ("part", 1),
        ("bytes", 0),
        ("round", 0),
        *[("samples", samples) for samples in (-5, 1.5, True, None, "9", 2**60)],
    ],
)
def test_a_line_that_is_not_as_described(field: str, value: Any) -> None:
    [(_, payload)] = UPDATE.messages(TOPICS, b"x")
    line = changed(payload.partition(b"\n")[0], **{field: value})
    with pytest.raises(RejectedUpdateError) as refused:
        UpdateHeader.read(line + b"\nx")
    assert refused.value.reason == "malformed"


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"{}", b"[" * 5000, b'{"a": NaN}', b"\xff", b"x" * 10_000_000]
)
def test_what_is_no_message(payload: bytes) -> None:
    for read in (RoundAnnouncement.read, Receipts.read, DeviceState.read, Evaluation.read, UpdateHeader.read):
        with pytest.raises(RejectedUpdateError):
            read(payload)


@pytest.mark.parametrize("loss", [float("inf"), 10**400, None, "low", True])
def test_a_loss_is_a_finite_number(loss: Any) -> None:
    payload = changed(REPORT.payload(), model={"loss": loss, "metric": 0.5})
    with pytest.raises(RejectedUpdateError) as refused:
        Evaluation.read(payload)
    assert refused.value.reason == "malformed"


def test_epochs_or_steps() -> None:
    for config in (RoundSettings(None, None), RoundSettings(1, 1)):
        with pytest.raises(RejectedUpdateError, match="either epochs or steps"):
            RoundAnnouncement.read(replace(ROUND, config=config).payload())


def test_a_model_in_parts() -> None:
    blob = b"y" * (PART_BYTES + 1)
    parts = split(blob)
    assert [len(part) for part in parts] == [PART_BYTES, 1]
    assert joined(parts, BaseModelInfo(HASH, len(blob), 2)) == blob
    with pytest.raises(RejectedUpdateError, match="were announced"):
        joined(parts[:1], BaseModelInfo(HASH, len(blob), 2))
