"""States of keys: few messages, bounded keys, nothing late, and nothing lost while the broker is busy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.clock import VirtualClock
from edged.device.integrations.key_states import (
    CHANGE_SECONDS,
    EVERY_SECONDS,
    FORGET_SECONDS,
    LOOK_SECONDS,
    MOST_KEYS,
    KeyStates,
)
from edged.domain.home_assistant import labelling_state, prediction_state
from edged.domain.judging.predictions import Predictions
from edged.domain.labels.held_labels import HeldLabels
from edged.domain.stream.sample import HoldReading
from edged.domain.stream.schema import Schema

if TYPE_CHECKING:
    from edged.domain.training.message import Message

NOW = 1_800_000_000.0
SCHEMA = Schema(names=("a",), width=1, task="classify", classes=("ok", "worn"))


class Bench:
    """The states of keys, a clock, and what they send while `open`."""

    def __init__(self, *keys: str) -> None:
        self.clock = VirtualClock(NOW)
        self.states = KeyStates(SCHEMA, self.clock, keys)
        self.states.classes = SCHEMA.known_classes
        self.sent: list[tuple[str, Mapping[str, Any]]] = []
        self.open = True

    def send(self, name: str, state: Message) -> bool:
        if self.open:
            self.sent.append((name, state.to_json()))
        return self.open

    def answer(self, label: int, *keys: str, ts: float | None = None, missing: str | None = None) -> bool:
        n, keys = len(keys or ("a",)), keys or ("a",)
        output = np.zeros((n, 2), np.float32)
        output[:, label] = 1.0
        answers, sure = np.full((n, 1), label, np.float32), np.full(n, 0.9, np.float32)
        made = Predictions(3, np.arange(n), answers, output, sure, missing=missing)
        return self.states.answered(made, keys, np.full(n, self.clock.now() if ts is None else ts))

    def after(self, seconds: float) -> list[Mapping[str, Any]]:
        """What is published so much later."""
        self.clock.advance_to(self.clock.now() + seconds)
        before = len(self.sent)
        self.states.publish(self.send, silent=False)
        return [payload for _, payload in self.sent[before:]]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_prediction_is_published_with_its_key(bench: Bench) -> None:
    assert bench.answer(1)
    (told,) = bench.after(0.0)
    assert bench.sent[0][0] == prediction_state("a")
    assert told == {
        "key": "a", "ts": NOW, "label": "worn", "confidence": 0.9, "output": [0.0, 1.0], "model": 3,
        "alarm": False, "silent": False, "untrained": False,
    }  # fmt: skip
    assert bench.after(0.0) == []


def test_the_same_label_is_told_seldom(bench: Bench) -> None:
    """Of 10,000 samples in 100 seconds ten are published."""
    told = 0
    for _ in range(10_000):
        bench.answer(0)
        told += len(bench.after(0.01))
    assert told == pytest.approx(100 / EVERY_SECONDS, abs=1)


def test_labels_that_change_all_the_time_are_bounded_and_the_last_one_is_told(bench: Bench) -> None:
    told, urgent = [], 0
    for i in range(1000):
        urgent += bench.answer(i % 2)
        told += bench.after(0.001)
    assert len(told) <= 1 + 1 / CHANGE_SECONDS
    assert urgent <= 11
    told += bench.after(CHANGE_SECONDS)
    assert told[-1]["label"] == "worn"


def test_what_comes_late_is_not_told(bench: Bench) -> None:
    bench.answer(1)
    bench.after(0.0)
    bench.answer(0, ts=NOW - 3600)
    assert bench.after(EVERY_SECONDS) == []
    bench.answer(0, ts=NOW + 1e6)  # a sensor whose clock was wrong for once
    bench.answer(1)
    assert bench.after(EVERY_SECONDS)[0]["label"] == "worn"


def test_a_sensor_that_is_silent_says_so(bench: Bench) -> None:
    for _ in range(3):
        bench.answer(1)
        bench.after(1.0)
    assert [told["silent"] for told in bench.after(30.0)] == [True]
    bench.answer(1)
    assert [told["silent"] for told in bench.after(CHANGE_SECONDS)] == [False]


def test_a_busy_broker_loses_nothing(bench: Bench) -> None:
    bench.open = False
    bench.answer(1)
    assert bench.after(0.0) == []
    bench.open = True
    assert [told["label"] for told in bench.after(0.0)] == ["worn"]


def test_keys_are_bounded_and_one_that_is_silent_for_a_day_makes_room(bench: Bench) -> None:
    bench.answer(0, *(f"key {number}" for number in range(1000)))
    assert len(bench.states.keys) == MOST_KEYS
    bench.clock.advance_to(NOW + FORGET_SECONDS)
    bench.answer(0, *(f"key {number}" for number in range(1, MOST_KEYS)))
    bench.clock.advance_to(NOW + FORGET_SECONDS + LOOK_SECONDS)
    bench.answer(0, "new", "newer")
    assert "new" in bench.states.keys
    assert "key 0" not in bench.states.keys
    assert "newer" not in bench.states.keys


def test_keys_of_an_earlier_start_are_silent_until_they_come() -> None:
    bench = Bench("a", "b")
    assert [told["silent"] for told in bench.after(0.0)] == [True, True]
    bench.answer(1)
    assert [(told["key"], told["silent"]) for told in bench.after(CHANGE_SECONDS)] == [("a", False)]


def test_a_class_that_was_not_announced_waits(bench: Bench) -> None:
    bench.states.classes = ("ok",)
    bench.answer(1)
    assert bench.after(0.0) == []
    bench.states.classes = ("ok", "worn")
    assert len(bench.after(0.0)) == 1


def test_an_untrained_model_and_an_alarm(bench: Bench) -> None:
    bench.answer(1, missing="3 of 20 labels")
    assert bench.after(0.0)[0]["untrained"]
    bench.states.alarmed("a", alarm=True)
    bench.states.alarmed("unknown", alarm=True)
    assert bench.after(1.0)[0]["alarm"]


def test_labels_that_hold(bench: Bench) -> None:
    held = HeldLabels()
    bench.answer(1)
    bench.states.publish_labels(held, bench.send)
    held.hold(HoldReading("a", 1.0), NOW)
    for _ in range(2):
        bench.states.publish_labels(held, bench.send)
    held.hold(HoldReading("a", None), NOW + 1)
    bench.states.publish_labels(held, bench.send)
    assert bench.sent == [
        (labelling_state("a"), {"key": "a", "label": label}) for label in (None, "worn", None)
    ]
