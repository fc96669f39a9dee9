"""Who serves: promotion and serving together, durable first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edged.config import GateConfig, ServingConfig
from edged.device.events import Events
from edged.device.promotion.rollout import Rollout
from edged.device.serving.predictor import Predictor
from edged.domain.judging.verdict import MANY
from edged.errors import ModelError, RefusedError
from tests.device.gates import Gate
from tests.device.linear import BAD, BROKEN, GOOD, SCHEMA, candidate, inputs, numbered
from tests.device.partners import Recorder


class House:
    """A gate, a server, and what was told of them."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.heard = Recorder()
        self.predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, gate.champion)
        self.rollout = Rollout(gate.evaluator, gate.models, self.predictor, Events(self.heard))

    @property
    def told(self) -> list[tuple[str, Mapping[str, Any]]]:
        """All events."""
        return self.heard.events

    def consider(self, slope: float, run: int = 1) -> int | None:
        """The version that took over."""
        _, served = self.rollout.consider(candidate(self.gate.candidates, run, slope))
        return None if served is None else served.version

    def serving(self) -> tuple[int, int | None]:
        """Versions that answer and that are durable."""
        return self.predictor.champion.version, self.gate.registry.champion()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """The model that serves is always wrong."""
    with closing(Gate(tmp_path, BAD)) as gate:
        yield House(gate)


def test_a_better_candidate_takes_over_and_it_is_told(house: House) -> None:
    assert house.consider(GOOD) == 2
    assert house.serving() == (2, 2)
    assert house.predictor.previous is not None
    assert house.predictor.previous.version == 1
    ((event, told),) = house.told
    assert (event, told["version"], told["parent"], told["run"], told["accepted"]) == (
        "model_promoted",
        2,
        1,
        1,
        True,
    )


def test_refusal_after_refusal_is_told_once_and_ends_with_the_next_candidate_that_is_accepted(
    house: House,
) -> None:
    house.consider(GOOD)
    for run in range(2, MANY + 1):
        house.consider(BAD, run)
    assert not house.rollout.problem
    house.consider(BAD, MANY + 1)
    house.consider(BAD, MANY + 2)
    (told,) = house.heard.named("candidates_refused")
    assert (told["count"], told["cause"]) == (MANY, "they are worse on the newest labels")
    assert "right in 0 of " in told["reasons"][0]
    assert house.rollout.problem == f"the last {MANY + 1} candidates were refused: {told['cause']}"
    assert house.consider(GOOD, MANY + 3) == house.predictor.champion.version
    assert not house.rollout.problem


def test_a_refused_candidate_changes_nothing_and_the_reasons_are_told(house: House) -> None:
    house.consider(GOOD)
    assert house.consider(BAD, 2) is None
    assert house.serving() == (2, 2)
    event, told = house.told[-1]
    assert (event, told["run"], told["accepted"]) == ("candidate_rejected", 2, False)
    assert "right in 0 of " in told["reasons"][0]


def test_the_candidate_of_a_dry_run_is_judged_and_thrown_away(house: House) -> None:
    judged = house.rollout.rehearse(candidate(house.gate.candidates, 1, GOOD))
    assert (judged.verdict.accepted, judged.to_json()["promoted"]) == (True, None)
    assert (house.serving(), house.told) == ((1, 1), [])
    assert not list(house.gate.candidates.iterdir())
    assert len(house.gate.registry.records()) == 1


@pytest.mark.parametrize("passed", [True, False])
def test_probation_confirms_or_rolls_back(house: House, passed: bool) -> None:
    house.consider(GOOD)
    house.rollout.probation_ended(2, passed)
    assert house.serving() == ((2, 2) if passed else (1, 1))
    assert house.gate.registry.get(2).proven == passed
    assert (house.told[-1][0] == "model_rolled_back") != passed


def test_the_outcome_of_a_model_that_serves_no_more_is_void(house: House) -> None:
    house.consider(GOOD)
    house.consider(GOOD, 2)
    house.rollout.probation_ended(2, passed=False)
    assert house.serving() == (3, 3)


def test_a_fall_back_of_the_serving_loop_becomes_durable(house: House) -> None:
    house.predictor.swap(house.gate.crowned(GOOD, 1))
    broken = house.gate.crowned(GOOD, 2)
    house.predictor.swap(type(broken)(broken.version, house.gate.model(BROKEN)))
    assert house.predictor.predict(numbered(1, 4), inputs(4)).version == 2
    house.rollout.champion_failed(3, "output is not finite")
    assert house.serving() == (2, 2)
    summary = "Model 2 serves in place of model 3: output is not finite."
    told = {"from": 3, "to": 2, "reason": "output is not finite", "summary": summary}
    assert house.told == [("model_rolled_back", told)]
    assert house.gate.registry.get(3).status == "rolled_back"


def test_a_rollback_goes_to_the_model_before_and_not_to_itself(house: House) -> None:
    house.consider(GOOD)
    with pytest.raises(RefusedError, match="serving already"):
        house.rollout.roll_back("command", to=2)
    assert house.rollout.roll_back("command").to_json() == {"from": 2, "to": 1, "reason": "command"}
    assert house.serving() == (1, 1)
    with pytest.raises(RefusedError, match="no other model"):
        house.rollout.roll_back("command", to=77)
    assert house.serving() == (1, 1)


def test_a_candidate_judged_against_a_model_that_is_gone_by_then_is_withdrawn(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.consider(GOOD)
    evaluate = house.gate.evaluator.evaluate

    def meanwhile(*arguments: Any) -> Any:
        house.rollout.roll_back("command")
        return evaluate(*arguments)

    monkeypatch.setattr(house.gate.evaluator, "evaluate", meanwhile)
    assert house.consider(GOOD, 2) is None
    assert house.serving() == (1, 1)
    assert "took over while it was judged" in house.told[-1][1]["reasons"][0]
    assert house.gate.registry.get(3).status == "rejected"


def test_the_failure_of_a_model_that_was_replaced_meanwhile_is_recorded_alone(house: House) -> None:
    house.consider(GOOD)
    house.consider(GOOD, 2)
    house.rollout.champion_failed(2, "output is not finite")
    assert house.serving() == (3, 3)
    assert house.gate.registry.get(2).status == "rolled_back"


def test_a_predecessor_that_was_damaged_on_the_disk_is_replaced_by_another(house: House) -> None:
    house.consider(GOOD)
    house.consider(GOOD, 2)
    house.gate.damage(2)
    house.rollout.probation_ended(3, passed=False)
    assert house.serving() == (1, 1)
    changes = [(e["from"], e["to"]) for name, e in house.told if name == "model_rolled_back"]
    assert changes == [(3, 2), (2, 1)]


def test_when_nothing_on_the_disk_can_be_read_the_predecessor_serves_from_memory(house: House) -> None:
    house.consider(GOOD)
    house.gate.damage(1)
    house.gate.base.write_bytes(b"nothing")
    house.rollout.probation_ended(2, passed=False)
    assert house.predictor.champion.version == 1
    assert house.rollout.persist(), "it is not tried for ever"
    assert house.predictor.predict(numbered(1, 4), inputs(4)).version == 1


def test_a_champion_without_predecessor_is_rescued_by_the_registry(house: House) -> None:
    house.consider(GOOD)
    house.predictor.revert(house.predictor.champion)
    broken = type(house.predictor.champion)(2, house.gate.model(BROKEN))
    house.predictor.champion = broken
    with pytest.raises(ModelError):
        house.predictor.predict(numbered(1, 4), inputs(4))
    assert house.rollout.rescue(broken, "fails") is house.predictor.champion
    assert house.predictor.predict(numbered(1, 4), inputs(4)).version == 1
    assert house.serving() == (1, 1)
    assert house.told[-1][0] == "model_rolled_back"
    assert house.rollout.rescue(house.predictor.champion, "fails") is None, "there is no other"
