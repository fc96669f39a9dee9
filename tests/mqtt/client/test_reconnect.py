from __future__ import annotations

import random

from edged.mqtt.client.message import OutgoingMessage
from edged.mqtt.client.publisher import OutgoingQueues
from edged.mqtt.client.reconnect import (
    FIRST,
    LONGEST_PATIENCE,
    PATIENCE,
    STABLE_SECONDS,
    TWIN_LONGEST,
    Backoff,
    ConnectionState,
    ProtocolChoice,
)


def test_the_first_attempts_come_fast_and_none_later_than_the_longest_pause() -> None:
    for seed in range(50):
        backoff = Backoff(60.0, random.Random(seed))
        delays = [backoff.delay() for _ in range(100)]
        assert delays[0] <= FIRST
        assert delays[1] <= 2 * FIRST
        assert all(0 <= delay <= 60.0 for delay in delays)


def test_the_pauses_are_spread_over_the_whole_range() -> None:
    backoff = Backoff(60.0, random.Random(1))
    delays = [backoff.delay() for _ in range(500)][20:]
    assert min(delays) < 3.0
    assert max(delays) > 57.0


def test_a_connection_that_held_is_forgiven_and_one_that_broke_at_once_is_not() -> None:
    backoff = Backoff(60.0, random.Random(1))
    for _ in range(20):
        backoff.delay()
        backoff.record_end(0.1)
    assert max(backoff.delay() for _ in range(20)) > 10.0
    backoff.record_end(STABLE_SECONDS)
    assert backoff.delay() <= FIRST


def test_a_refused_version_is_not_tried_again_once_the_other_was_accepted() -> None:
    choice = ProtocolChoice("5")
    assert choice.refused()
    assert choice.protocol == "3.1.1"
    assert choice.accepted()
    assert not choice.accepted()
    for _ in range(10):
        choice.closed_silently()
    assert choice.protocol == "3.1.1"


def test_without_an_answer_the_versions_take_turns() -> None:
    choice = ProtocolChoice("5")
    tried = []
    for _ in range(6):
        tried.append(choice.protocol)
        choice.closed_silently()
    assert tried == ["5", "5", "3.1.1", "3.1.1", "5", "5"]


def test_a_version_that_has_worked_is_kept_through_a_broker_that_only_restarts() -> None:
    choice = ProtocolChoice("5")
    choice.accepted()
    for _ in range(10):
        choice.closed_silently()
    assert choice.protocol == "5"


def test_a_configured_old_version_is_never_left() -> None:
    choice = ProtocolChoice("3.1.1")
    assert not choice.refused()
    for _ in range(10):
        choice.closed_silently()
    assert choice.protocol == "3.1.1"


def test_patience_grows_and_is_reset_by_an_answer() -> None:
    choice = ProtocolChoice("5")
    assert choice.patience == PATIENCE
    for _ in range(20):
        choice.closed_silently()
    assert choice.patience == LONGEST_PATIENCE
    choice.accepted()
    assert choice.patience == PATIENCE


def test_a_full_fast_queue_loses_its_oldest_and_counts_it() -> None:
    queue = OutgoingQueues(3)
    for number in range(5):
        assert queue.put(OutgoingMessage("t", b"%d" % number))
    assert queue.dropped == 2
    assert [message.payload for message in iter(queue.next_fast, None)] == [b"2", b"3", b"4"]


def test_a_full_sure_queue_refuses_the_newest() -> None:
    queue = OutgoingQueues(2)
    assert [queue.put(OutgoingMessage("t", b"", qos=1)) for _ in range(3)] == [True, True, False]
    assert queue.dropped == 0
    assert len(queue.sure) == 2


def test_what_is_put_back_comes_first_and_in_order() -> None:
    queue = OutgoingQueues(10)
    queue.put(OutgoingMessage("t", b"3", qos=1))
    queue.put_back([OutgoingMessage("t", b"1", qos=1), OutgoingMessage("t", b"2", qos=1)])
    assert [message.payload for message in iter(queue.next_sure, None)] == [b"1", b"2", b"3"]


def test_where_another_uses_our_name_the_pauses_are_long_until_it_is_gone() -> None:
    backoff = Backoff(1.0, random.Random(1))
    pauses = []
    for _ in range(8):
        backoff.record_takeover()
        backoff.record_end(1.0)
        pauses.append(backoff.delay())
    for pause, bound in zip(pauses, (15, 30, 60, 120, 240, 300, 300, 300), strict=True):
        assert bound / 2 <= pause <= bound
    backoff.record_end(0.0)  # an attempt that only failed waits as usual
    assert backoff.delay() <= 1.0
    backoff.record_end(TWIN_LONGEST)
    backoff.record_takeover()
    backoff.record_end(1.0)
    assert backoff.delay() <= 15.0


def test_a_client_of_our_name_is_told_of_even_while_we_are_connected_again() -> None:
    condition = ConnectionState("broker", 1883, "edged-rig")
    assert condition.problem == "not connected yet"
    condition.connected()
    assert condition.disconnected("Session taken over")
    condition.record_end()
    assert "device.id" in (condition.problem or "")
    condition.connected()
    assert "another client calls itself edged-rig" in (condition.problem or "")


def test_what_was_wrong_is_not_told_any_more_once_we_are_connected() -> None:
    condition = ConnectionState("broker", 1883, "edged-rig")
    condition.complain("mqtt_unreachable", "connection refused", "does a broker listen?")
    condition.record_end()
    assert condition.problem == "no connection to the broker: connection refused (does a broker listen?)"
    condition.connected()
    assert condition.problem is None


def test_connections_that_break_at_once_raise_a_suspicion_only_after_some() -> None:
    condition = ConnectionState("broker", 1883, "edged-rig")
    told = []
    for _ in range(4):
        condition.connected()
        told.append(condition.problem is not None)
        assert not condition.disconnected("Unspecified error")
        condition.record_end()
    assert told == [False, False, False, True]
    assert "does another client call itself edged-rig?" in (condition.problem or "")
