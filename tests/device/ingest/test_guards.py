"""What guards a stream before it is stored: floods, wrong clocks, sensors that stand still."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from edged.clock import VirtualClock
from edged.config import MqttConfig
from edged.domain.stream.admission import AdmissionRules
from edged.domain.stream.sample import LabelUpdate
from tests.device.dock import Dock, again, delivery, running
from tests.running_device import wait_until


def guarded(folder: Path, rules: AdmissionRules) -> Dock:
    """A dock whose stream is guarded, on a device whose clock has been set."""
    dock = Dock(folder)
    dock.close()
    dock.clock, dock.rules = VirtualClock(1.8e9), rules
    dock.open()
    return dock


def test_what_floods_is_acknowledged_and_counted_but_not_stored(tmp_path: Path) -> None:
    with closing(guarded(tmp_path, AdmissionRules(key_rate=1.0, key_burst=10))) as dock:
        messages = [delivery(mid, f"s/{'loud' if mid % 5 else 'calm'}") for mid in range(1, 51)]
        dock.work(messages)
        assert len(dock.acknowledged) == 50
        assert dock.stored() == 20
        assert dock.ingestor.admission.flooded == 30
        assert dock.notices[0] == ("sensor_flooding", {"key": "loud", "more": 0})


def test_a_time_in_the_far_future_gives_way_to_the_arrival_and_no_age_is_negative(tmp_path: Path) -> None:
    with closing(guarded(tmp_path, AdmissionRules(skew=86400.0))) as dock:
        dock.work([delivery(1, ts=1.8e9 + 90_000), delivery(2, ts=1.8e9 - 5), delivery(3, ts=1.8e9 + 60)])
        assert dock.batches[0].ts.tolist() == [1.8e9, 1.8e9 - 5, 1.8e9 + 60]
        assert dock.ingestor.admission.skewed == 1
        assert dock.committer.lag == 0.0


def test_a_sensor_that_stands_still_is_told_of_until_it_moves(tmp_path: Path) -> None:
    with closing(guarded(tmp_path, AdmissionRules(stuck_after=20))) as dock:
        dock.work([delivery(mid, payload=b'{"x": [%d, 1]}' % mid) for mid in range(1, 31)])
        dock.work([delivery(mid, payload=b'{"x": [30, 1]}') for mid in range(31, 61)])
        told = {"key": "m1", "features": [0], "more": 0}
        assert dock.notices == [("sensor_stuck", told)]
        assert dock.ingestor.admission.stuck == 1
        dock.work([delivery(61, payload=b'{"x": [31, 1]}')])
        assert dock.notices[1:] == [("sensor_moves", told)]


def test_values_that_cannot_be_are_answered_and_stored_but_not_learned_from_and_told(tmp_path: Path) -> None:
    with closing(guarded(tmp_path, AdmissionRules())) as dock:
        usual = [delivery(mid, payload=b'{"x": [%d, 1], "label": "ok"}' % (mid % 7)) for mid in range(1, 121)]
        glitch = delivery(121, payload=b'{"x": [1e9, 1], "label": "worn"}')
        dock.work([*usual, glitch, delivery(122, payload=b'{"x": [3, 1], "label": "worn"}')])
        told = {"key": "m1", "feature": 0, "value": 1e9, "more": 0}
        assert dock.notices == [], "the first hundred tell what is usual"
        dock.work([delivery(123, payload=b'{"x": [1e9, 1], "label": "worn"}')])
        assert dock.notices == [("sample_implausible", told)]
        assert dock.batches[-1].aside == {123}
        assert dock.stored() == 123
        dock.log.commit(None, [LabelUpdate(123, 0.0, 1.0)])
        assert len(dock.log.rows([122, 123])) == 1, "whatever label comes later"
        dock.log.erase(labels=True)
        dock.log.commit(None, [LabelUpdate(122, 0.0, 1.0), LabelUpdate(123, 0.0, 1.0)])
        assert dock.log.rows([122, 123]).offsets.tolist() == [122]


def test_readings_of_a_failed_commit_do_not_count_twice_for_stillness(tmp_path: Path) -> None:
    with closing(guarded(tmp_path, AdmissionRules(stuck_after=20))) as dock:
        dock.work([delivery(mid, payload=b'{"x": [%d, 1]}' % mid) for mid in range(1, 31)])
        still = [delivery(mid, payload=b'{"x": [30, 1]}') for mid in range(31, 46)]
        dock.log.failing = frozenset({dock.log.commits + 1})
        dock.work(still)
        assert dock.committer.problem is not None
        dock.work([again(message) for message in still])
        assert dock.stored() == 45
        assert dock.notices == []


@pytest.mark.parametrize(("ahead", "kept"), [(2 * 86400.0, False), (80_000.0, True), (-1e9, True)])
def test_event_times_are_believed_up_to_a_day_ahead_of_the_arrival(
    tmp_path: Path, ahead: float, *, kept: bool
) -> None:
    ts = 1.8e9 + ahead
    with closing(Dock(tmp_path)) as dock:
        dock.clock.advance_to(1.8e9)
        dock.rules = dock.stream.admission_rules()
        dock.close()
        dock.open()
        dock.work([delivery(1, ts=ts)])
        assert (dock.batches[0].ts.tolist() == [ts]) is kept


def test_beyond_the_rate_the_acknowledgement_waits_but_the_commit_does_not(tmp_path: Path) -> None:
    with closing(guarded(tmp_path, AdmissionRules(rate=200.0))) as dock:
        started = time.monotonic()
        dock.work([delivery(mid) for mid in range(1, 301)])
        assert time.monotonic() - started >= 0.49
        assert dock.durable_at_ack == [300]


def test_at_qos_0_the_inbox_has_an_end(tmp_path: Path) -> None:
    """Nothing else holds them back; at QoS 1 it is the broker that waits."""
    with closing(Dock(tmp_path)) as dock:
        check_the_end_of(dock)


def check_the_end_of(dock: Dock) -> None:
    room = 5 * MqttConfig().constants.receive_maximum + dock.config.constants.commit_rows
    for mid in range(room + 70):
        dock.ingestor.receive(delivery(0, payload=b'{"x": [%d, 1]}' % mid))
    assert (dock.ingestor.waiting, dock.ingestor.overrun) == (room, 70)
    dock.ingestor.receive(delivery(5))
    assert dock.ingestor.waiting == room + 1


def test_what_is_too_old_goes_while_nothing_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.device.ingest.ingestor.IDLE_SECONDS", 0.01)
    with closing(guarded(tmp_path, AdmissionRules())) as dock:
        dock.close()
        dock.max_age = 100.0
        dock.open()
        dock.work([delivery(1)])
        with running(dock):
            dock.clock.advance_to(1.8e9 + 1000)
            wait_until(lambda: dock.log.counters().evicted == 1)
