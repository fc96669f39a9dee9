"""Regimes that end and come back, with a real sample log, registry and models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edged.config import GateConfig, ServingConfig
from edged.device.events import Events
from edged.device.learning.regime_recall import EVERY, FEWEST, NEAR, RegimeRecall
from edged.device.promotion.rollout import Rollout
from edged.device.serving.predictor import Predictor
from edged.domain.drift.signals import DriftSignal, Level
from edged.domain.judging.regimes import BANK, Regimes
from tests.device.gates import Gate
from tests.device.learning_rig import batch
from tests.device.linear import BAD, GOOD, SCHEMA, candidate, classes, inputs
from tests.device.partners import Recorder


class Stream:
    """A device whose world turns round: what was yes becomes no, and back."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.recall = RegimeRecall(SCHEMA, gate.regimes, gate.log)
        self.heard = Recorder()
        self.predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, gate.champion)
        self.rollout = Rollout(gate.evaluator, gate.models, self.predictor, Events(self.heard))
        self.consumed = 0
        self.runs = 0

    def feed(self, n: int, *, turned: bool = False, shift: float = 0.0) -> None:
        """Labelled samples; the inputs of another regime may lie elsewhere."""
        x = inputs(n, self.gate.log.last_seq())
        labels = [1.0 - c if turned else c for c in classes(x)]  # type: ignore[operator]
        x[:, 1:] += np.float32(shift)
        self.gate.log.commit(batch(self.gate.log, x, labels))

    def learned(self, slope: float) -> int:
        """A run that ends in a model of that slope, taken over by the gate."""
        self.runs += 1
        self.consumed = self.gate.log.last_seq()
        found = candidate(self.gate.candidates, self.runs, slope)
        served = self.gate.judge(found, first=True)[1]
        assert served is not None
        self.gate.models.set_champion(served.version, "for the test")
        self.predictor.swap(served)
        self.gate.models.record_judged(found)
        self.recall.record_champion(served.version)
        return served.version

    def tried(self) -> int | None:
        """The version that was recalled."""
        found = self.recall.worth_trying(self.consumed, self.predictor.champion.version)
        served = None if found is None else self.rollout.recall(*found)
        return None if served is None else served.version


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    with closing(Gate(tmp_path, BAD, samples=0)) as gate:
        yield Stream(gate)


def back_and_forth(stream: Stream, *, shift: float = 0.0) -> int:
    """Two regimes, learned one after the other; the version that served the first."""
    first = stream.learned(GOOD)
    stream.feed(1000)
    assert stream.recall.record_regime_end("error")
    stream.feed(400, turned=True, shift=shift)
    stream.learned(BAD)
    return first


def test_the_model_of_a_regime_that_is_back_serves_at_once(stream: Stream) -> None:
    first = back_and_forth(stream)
    stream.feed(FEWEST - 1)
    assert stream.tried() is None, "too few labels to say so"
    stream.feed(EVERY)
    assert stream.tried() == first
    assert (stream.predictor.champion.version, stream.gate.registry.champion()) == (first, first)
    ((event, told),) = stream.heard.events
    assert (event, told["version"], told["origin"], told["accepted"]) == (
        "model_promoted",
        first,
        "bank",
        True,
    )
    assert "of the newest labelled cases, the current model in 0" in told["reasons"][0]
    assert stream.rollout.origins == {"bank": 1}
    assert "its regime is back" in str(stream.gate.registry.reigns(1)[0].reason)


def test_while_the_world_stays_the_champion_stays(stream: Stream) -> None:
    back_and_forth(stream)
    for _ in range(5):
        stream.feed(EVERY, turned=True)
        assert stream.tried() is None
    assert stream.heard.events == []


def test_a_regime_with_other_inputs_is_not_tried(stream: Stream) -> None:
    back_and_forth(stream)
    stream.feed(60, shift=5 * NEAR)
    assert stream.recall.worth_trying(stream.consumed, stream.predictor.champion.version) is None


def test_rows_that_were_learned_from_are_no_evidence(stream: Stream) -> None:
    back_and_forth(stream)
    stream.feed(60)
    found = stream.recall.worth_trying(stream.consumed, stream.predictor.champion.version)
    assert found is not None
    assert found[1].seq.min() > stream.consumed
    stream.consumed = stream.gate.log.last_seq()
    stream.feed(EVERY - 10)
    assert stream.recall.worth_trying(stream.consumed, stream.predictor.champion.version) is None


def test_a_pinned_model_stays_whatever_comes_back(stream: Stream) -> None:
    back_and_forth(stream)
    stream.gate.registry.pin(stream.predictor.champion.version)
    stream.feed(60)
    assert stream.tried() is None


def test_the_bank_is_kept_when_models_are_pruned(stream: Stream) -> None:
    first = back_and_forth(stream)
    for _ in range(12):
        stream.feed(30, turned=True)
        stream.learned(BAD)
    kept = [record.version for record in stream.gate.registry.records()]
    assert first in kept
    assert len(kept) <= 12
    stream.feed(60)
    assert stream.tried() == first


def test_a_model_of_the_bank_that_is_damaged_is_passed_over(stream: Stream) -> None:
    stream.gate.damage(back_and_forth(stream))
    stream.feed(60)
    assert stream.tried() is None


def test_the_model_before_the_change_is_banked_not_the_one_that_adapts(stream: Stream) -> None:
    first = stream.learned(GOOD)
    stream.feed(1000)
    stream.feed(200, turned=True)
    adapting = stream.learned(BAD)
    assert stream.recall.record_regime_end("error")
    assert stream.recall.bank() == [first] != [adapting]


def test_only_a_drift_ends_a_regime_and_only_a_few_are_banked(stream: Stream) -> None:
    stream.learned(GOOD)
    for i in range(BANK + 3):
        stream.feed(500)
        offset = stream.gate.log.last_seq()
        assert not stream.recall.drifted(DriftSignal(Level.WARNING, "adwin", "error", 2.0, 1.0, offset))
        assert stream.recall.drifted(DriftSignal(Level.DRIFT, "adwin", "error", 2.0, 1.0, offset))
        stream.learned(GOOD if i % 2 else BAD)
    assert len(stream.recall.bank()) == BANK


def test_what_is_known_of_regimes_survives_a_restart(stream: Stream) -> None:
    first = back_and_forth(stream)
    stream.gate.registry.set_value("regimes", stream.recall.regimes.state())
    again = RegimeRecall(
        SCHEMA, Regimes.from_state(stream.gate.registry.get_value("regimes")), stream.gate.log
    )
    stream.feed(60)
    found = again.worth_trying(stream.consumed, stream.predictor.champion.version)
    assert found is not None
    assert found[0] == [first]


def test_a_model_that_was_rolled_back_since_is_not_tried_again(stream: Stream) -> None:
    stream.gate.registry.set_status(back_and_forth(stream), "rolled_back")
    stream.feed(60)
    assert stream.tried() is None
