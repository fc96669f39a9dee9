"""What training and the gate have done, in plain words: every kind of stream and of ending."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.domain import outcomes
from edged.domain.judging.gate import Earlier, Evidence, GateRules, judge
from edged.domain.judging.verdict import Verdict, refuse
from edged.domain.stream.schema import Schema, Task
from edged.domain.training.training_run import Candidate, RunEnd

TWO = Schema(("temp",), 1, "classify", ("ok", "worn"))
MANY = Schema(("temp",), 1, "classify", ("idle", "ok", "worn"))
NUMBERED = Schema(("temp",), 1, "classify", ("0", "1"))
REGRESS = Schema(("temp",), 1, "regress", target_units=("°C",))
PAIR = Schema(("temp",), 1, "regress", targets=2)
FORECAST = Schema(("temp",), 1, "forecast", target_units=("kW",))
RECONSTRUCT = Schema(("temp",), 1, "reconstruct")
HALF = np.array([2.0], np.float32)  # errors were doubled: the target's standard deviation is 0.5


def wrong(share: float, n: int = 100) -> Any:
    """0 or 1 of each row, the errors spread evenly."""
    return np.floor((np.arange(n) + 1) * share + 1e-9) - np.floor(np.arange(n) * share + 1e-9)


def verdict(task: Task, candidate: Any, champion: Any, kept: Earlier | None = None, **rules: Any) -> Verdict:
    return judge(task, Evidence(candidate, champion), kept, GateRules(**{"min_holdout": 60} | rules))


def told(
    stream: Schema, found: Verdict, promoted: int | None = 5, scale: Any = None, **candidate: Any
) -> str:
    made = Candidate(3, Path(), None, **({"samples": 64} | candidate))
    return outcomes.judged(stream, made, found, promoted, scale)


BETTER = verdict("classify", wrong(0.03), wrong(0.07))
VALUES = verdict("regress", np.full(100, 0.9), np.full(100, 1.0))


@pytest.mark.parametrize(
    ("stream", "found", "scale", "said"),
    [
        (TWO, BETTER, None, "Tells worn from ok in 97 of 100 held-back cases (was 93)."),
        (MANY, BETTER, None, "Right in 97 of 100 held-back cases (was 93)."),
        (NUMBERED, BETTER, None, "Right in 97 of 100 held-back cases (was 93)."),
        (REGRESS, VALUES, HALF, "Its mean error in 100 held-back cases is 0.45 °C (was 0.5 °C)."),
        (PAIR, VALUES, None, "Its mean error in 100 held-back cases is 10.0 % smaller than before."),
        (FORECAST, VALUES, HALF, "Its mean error in 100 held-back cases is 0.45 kW (was 0.5 kW)."),
        (RECONSTRUCT, VALUES, None,
         ("Its error on 100 usual samples is 10.0 % smaller than before; "
          "alarms now follow this model.")),
    ],
)  # fmt: skip
def test_what_a_new_model_has_learned(stream: Schema, found: Verdict, scale: Any, said: str) -> None:
    assert found.accepted
    material = "labels" if stream.task in ("classify", "regress") else "samples"
    opening = f"Learned from 64 new {material}."
    assert told(stream, found, 5, scale) == f"{opening} {said} In service as model 5."


def test_the_first_model_and_what_comes_from_elsewhere() -> None:
    first = Verdict(True, (outcomes.FIRST,))
    assert told(TWO, first, 2, samples=1) == (
        "Learned from 1 new label. The first model trained for this stream. In service as model 2."
    )
    assert told(TWO, BETTER, source="weights").startswith("Received weights from elsewhere. Tells worn")
    assert told(TWO, BETTER, source="bundle_install").startswith("Received a new bundle. Tells worn")
    assert told(TWO, BETTER, None).endswith("(was 93). It would go into service.")


MORE = "Nothing to do; more labels help."


def test_why_a_model_is_not_used_and_what_to_do() -> None:
    worse = verdict("classify", wrong(0.3), wrong(0.06))
    assert told(TWO, worse, None) == (
        "Learned from 64 new labels. Not used: it would be right in 70 of 100 held-back cases, "
        f"the current model in 94. {MORE}"
    )
    larger = verdict("regress", np.full(100, 1.5), np.full(100, 1.0))
    assert told(REGRESS, larger, None, HALF).endswith(
        "Not used: its mean error in 100 held-back cases would be 0.75 °C, "
        "that of the current model is 0.5 °C. "
        + MORE
    )  # fmt: skip
    assert told(RECONSTRUCT, larger, None).endswith(
        "Not used: its error would be 50.0 % larger than that of the current model. "
        "Nothing to do; more samples help."
    )
    asked = verdict("classify", wrong(0.06), wrong(0.06), min_gain=0.01)
    assert "the current model in 94, and gate.min_gain asks for +1.0 points. " + MORE in told(
        TWO, asked, None
    )
    lost = Earlier(Evidence(wrong(0.3, 200), wrong(0.1, 200)))
    forgetting = verdict("classify", wrong(0.06), wrong(0.06), lost)
    assert forgetting.forgets
    assert told(TWO, forgetting, None).endswith(
        "Not used: it forgets earlier data: right in 140 of 200 earlier held-back cases, "
        "the current model in 180. " + MORE
    )


def test_a_class_that_is_lost_is_named() -> None:
    said = np.arange(200) % 5
    candidate, champion = np.zeros(200), np.zeros(200)
    candidate[np.flatnonzero(said == 1)[:12]] = 1.0
    champion[np.flatnonzero(said == 0)[:12]] = 1.0
    names = ("idle", "worn", "c", "d", "e")
    found = judge("classify", Evidence(candidate, champion, said, names), None, GateRules())
    assert told(MANY, found, None).endswith(
        "Not used: it finds 28 of 40 held-back cases of worn, the current model 40. "
        "Check the newest labels of this class, or add more of them."
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (refuse(outcomes.too_few(3, 5), holdout=3.0), "only 3 labelled held-back cases, 5 needed. " + MORE),
        (refuse(outcomes.pinned(3), pinned=3.0), "model 3 is pinned: unpin it to let new models serve."),
        (refuse("verification failed: not finite"),
         "verification failed: not finite. edged tries again with the next labels; the log has the details."),
    ],
)  # fmt: skip
def test_what_compared_nothing(found: Verdict, said: str) -> None:
    assert told(TWO, found, None) == f"Learned from 64 new labels. Not used: {said}"


def test_rollbacks_pauses_and_failures_say_what_to_do() -> None:
    assert outcomes.rolled_back(5, 4, outcomes.DISAPPOINTED) == (
        "Model 5 did worse on live data than model 4, so model 4 serves again. "
        "Nothing to do; edged keeps learning."
    )
    assert outcomes.rolled_back(5, 4, "output is not finite").startswith("Model 4 serves in place of model 5")
    failed = outcomes.ended(RunEnd(3, outcome="failed", error="killed by SIGSEGV"))
    assert failed == "Training failed: killed by SIGSEGV. edged tries again by itself."
    assert outcomes.ended(RunEnd(3, outcome="stopped", error="cancelled")) == (
        "Training was stopped: cancelled. The current model keeps serving."
    )
    assert outcomes.ended(RunEnd(3)) is None
    assert outcomes.chosen(3) == "Model 3 is in service by command."
