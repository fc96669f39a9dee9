"""How fast late messages go, and what they say of themselves."""

from __future__ import annotations

import json

from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
from edged.domain.token_bucket import TokenBucket


def test_events_go_before_weights_before_metrics_before_predictions() -> None:
    assert sorted(MessageKind) == [
        MessageKind.EVENT,
        MessageKind.WEIGHTS,
        MessageKind.METRICS,
        MessageKind.PREDICTION,
    ]


def test_a_late_message_says_so_and_weights_stay_as_they_are() -> None:
    late = json.loads(OutboxMessage(MessageKind.METRICS, "m", b'{"ts":1.5,"seq":7}').late_payload)
    assert late == {"ts": 1.5, "seq": 7, "historical": True}
    assert OutboxMessage(MessageKind.WEIGHTS, "w", b"\x00}").late_payload == b"\x00}"


def test_the_pace_is_kept_over_any_span() -> None:
    pace, sent, now = TokenBucket(50.0, burst=5.0), 0, 100.0
    while now < 110.0:
        allowed = pace.allowed(now)
        assert allowed <= 5
        pace.spend(allowed)
        sent += allowed
        now += max(pace.wait(now), 0.001)
    assert 495 <= sent <= 506


def test_a_slow_pace_still_sends() -> None:
    pace = TokenBucket(0.1, burst=1.0)
    assert pace.allowed(0.0) == 1
    pace.spend(1)
    assert round(pace.wait(0.0), 6) == 10.0
    assert pace.allowed(9.0) == 0
    assert pace.allowed(10.5) == 1
