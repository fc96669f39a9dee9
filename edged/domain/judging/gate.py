"""The gate: whether a candidate takes the champion's place.

A candidate has learned from newer data than the champion, and staleness costs more than noise: so it need not
prove that it is better, but it must not be worse beyond chance (non-inferiority). It is judged on the newest
holdout, and on what is kept of earlier regimes, so that it does not pay for the present with the past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edged.domain import outcomes
from edged.domain.judging.outputs import answers, errors, unit_scale
from edged.domain.judging.paired_test import PairedComparison, compare
from edged.domain.judging.regimes import Regimes, elsewhere
from edged.domain.judging.verdict import Verdict, refuse
from edged.domain.outcomes import too_few
from edged.domain.protocols import Holdout, Model, ModelReader
from edged.domain.stream.sample import Window
from edged.domain.stream.schema import Schema, Task

Errors = NDArray[np.float64]

# Significance of the test on earlier regimes, shared by all of them (Bonferroni). Every candidate is put to
# it, a thousand in a stream: at 0.05 chance alone refused every thirteenth on elec2.
FORGETTING = 0.01
# Significance at which a model of an earlier regime replaces the champion, shared by those that are tried.
RECALL = 0.01
# Significance at which a class is lost on the newest holdout, shared by the classes that are there.
LOST_CLASS = 0.01
RETAINED_ROWS = 200  # holdout samples of an earlier regime that are asked at most


@dataclass(frozen=True)
class GateRules:
    """Limits of the gate; gains and regrets are absolute for classes, relative for values."""

    min_gain: float = 0.0
    max_regret: float = 0.02
    min_holdout: int = 5
    significance: float = 0.1


@dataclass(frozen=True)
class Evidence:
    """Errors `(n,)` of both models on the same rows, oldest first; `said` `(n,)` their classes, if any.

    `classes` are the names of classes, as far as they are known.
    """

    candidate: Errors
    champion: Errors
    said: NDArray[np.int64] | None = None
    classes: Sequence[str] = ()

    def newest(self, n: int) -> Evidence:
        """Return the last `n` rows."""
        said = None if self.said is None else self.said[-n:]
        return Evidence(self.candidate[-n:], self.champion[-n:], said, self.classes)

    def name_of(self, said: int) -> str:
        """Return the name of a class."""
        return self.classes[said] if said < len(self.classes) else f"class {said}"

    def of_class(self, said: int) -> Evidence:
        """Return the rows of one class."""
        chosen = self.said == said
        return Evidence(self.candidate[chosen], self.champion[chosen])


@dataclass(frozen=True)
class Retained:
    """Holdout of an earlier regime, with the answers of both models.

    `elsewhere`: its inputs lie elsewhere than those of now, so what is learned now does not contradict it.
    `drifted`: a drift of the errors has ended it.
    """

    name: str
    evidence: Evidence
    elsewhere: bool = True
    drifted: bool = False

    def superseded(self, champion_now: float) -> bool:
        """True if other answers have become right for the same inputs: remembering them would be wrong.

        So it is after a drift of the errors, and where the champion errs more now than it did then.
        """
        return not self.elsewhere and (self.drifted or champion_now > float(self.evidence.champion.mean()))


def judge(task: Task, recent: Evidence, retained: Sequence[Retained], rules: GateRules) -> Verdict:
    """Compare on the newest holdout, and see that no earlier regime was forgotten.

    The newest half of the holdout is asked first: what it shows beyond chance decides, and only where it
    shows nothing the older half is added. So a candidate that follows an abrupt change is not held up by rows
    from before the change.
    """
    n = len(recent.candidate)
    if n < rules.min_holdout:
        return refuse(outcomes.too_few(n, rules.min_holdout), holdout=float(n))
    found, better = _newest(task, recent, rules)
    numbers = {"holdout": float(found.n), **_figures(recent, found), "p_worse": found.p_worse}
    numbers["significance"] = rules.significance
    worse = not better and found.p_worse < rules.significance and found.gain < min(rules.min_gain, 0.0)
    enough = rules.min_gain <= 0.0 or found.gain >= rules.min_gain
    reasons = [outcomes.beside(task, found)]
    if not enough and not worse:
        reasons.append(outcomes.gain_needed(task, rules.min_gain))
    if worse or not enough:
        return Verdict(False, tuple(reasons), numbers)
    lost = [] if better else _lost_classes(recent, numbers)
    if lost:
        return Verdict(False, (*reasons, *lost), numbers)
    forgotten = _forgotten(task, recent, retained, rules, numbers)
    return Verdict(not forgotten, (*reasons, *forgotten), numbers, forgets=bool(forgotten))


def judge_recalled(task: Task, evidence: Evidence, tried: int) -> Verdict:
    """Judge if a model of an earlier regime, one of `tried`, is better than the champion beyond chance."""
    found = compare(task, evidence.candidate, evidence.champion)
    limit = RECALL / max(1, tried)
    reason = outcomes.beside(task, found, "of the newest labelled cases")
    numbers = {"samples": float(found.n), **_figures(evidence, found), "significance": limit}
    return Verdict(found.p_better < limit, (reason,), numbers)


def _figures(evidence: Evidence, found: PairedComparison) -> dict[str, float]:
    return {
        "candidate_error": float(evidence.candidate.mean()),
        "champion_error": float(evidence.champion.mean()),
        "gain": found.gain,
        "judged_error": found.candidate,
        "judged_before": found.champion,
        "both": float(found.both),
        "wins": float(found.wins),
        "losses": float(found.losses),
        "p_better": found.p_better,
    }


def _newest(task: Task, recent: Evidence, rules: GateRules) -> tuple[PairedComparison, bool]:
    """The comparison that decides, and whether it shows the candidate to be better."""
    n = len(recent.candidate)
    half = recent.newest(n // 2)
    if n // 2 >= rules.min_holdout:
        found = compare(task, half.candidate, half.champion)
        if min(found.p_better, found.p_worse) < rules.significance:
            return found, found.p_better < rules.significance
    found = compare(task, recent.candidate, recent.champion)
    return found, found.p_better < rules.significance


def _lost_classes(recent: Evidence, numbers: dict[str, float]) -> list[str]:
    """Reasons for a refusal, one a class of which fewer are found, beyond chance; the worst is in `numbers`.

    Whoever is better on the whole may be worse on a class: its border has moved.
    """
    if recent.said is None:
        return []
    classes = sorted(set(recent.said.tolist()))
    reasons = []
    for said in classes:
        evidence = recent.of_class(said)
        found = compare("classify", evidence.candidate, evidence.champion)
        if found.p_worse < LOST_CLASS / len(classes):
            numbers["lost_class"] = float(said)
            reasons.append(outcomes.lost_class(recent.name_of(said), found))
    return reasons


def _forgotten(
    task: Task,
    recent: Evidence,
    retained: Sequence[Retained],
    rules: GateRules,
    numbers: dict[str, float],
) -> list[str]:
    """Reasons for a refusal, one a regime on which too much is lost; a gain of now is set against a loss."""
    won = compare(task, recent.candidate, recent.champion).gain
    now = float(recent.champion.mean())
    tested = [r for r in retained if len(r.evidence.candidate) >= rules.min_holdout]
    reasons, worst = [], 0.0
    for regime in tested:
        found = compare(task, regime.evidence.candidate, regime.evidence.champion)
        lost = -found.gain
        worst = max(worst, lost)
        if (
            lost > rules.max_regret + max(won, 0.0)
            and found.p_worse < FORGETTING / len(tested)
            and not regime.superseded(now)
        ):
            reasons.append(outcomes.forgets(task, regime.name, found))
    numbers |= {"regimes": float(len(tested)), "older_gain": -worst}
    return reasons


@dataclass
class Probation:
    """Watches a new champion beside its predecessor on the same live labelled samples.

    Both models answered the same samples, so a change of the world hits both alike and only a
    worse model is rolled back. Fails when the new champion's error exceeds its predecessor's by
    `drop` (relative for values) and by two standard errors of the difference.
    """

    task: Task
    length: int
    drop: float
    count: int = 0
    _sum: float = 0.0
    _squares: float = 0.0
    _base: float = 0.0

    def add(self, champion: Errors, previous: Errors) -> None:
        """Errors `(n,)` of both on newly labelled samples."""
        difference = champion - previous
        self.count += len(difference)
        self._sum += float(difference.sum())
        self._squares += float((difference**2).sum())
        self._base += float(previous.sum())

    @property
    def worse(self) -> float:
        """Mean error of the new champion above its predecessor's."""
        return self._sum / self.count if self.count else 0.0

    def outcome(self) -> bool | None:
        """True passed, False failed, None still watching."""
        if self.length == 0:
            return True
        if self.count >= max(10, self.length // 10):
            limit = self.drop if self.task == "classify" else self.drop * self._base / self.count
            variance = max(self._squares / self.count - self.worse**2, 0.0)
            if self.worse > limit and self.worse > 2.0 * float(np.sqrt(variance / self.count)):
                return False
        return True if self.count >= self.length else None


class ModelComparison:
    """Asks champion and candidate about the same rows, which neither has learned from.

    `reader` lets other threads run between pieces of work that hold the interpreter's lock.
    """

    def __init__(
        self,
        schema: Schema,
        holdout: Holdout,
        rules: GateRules,
        regimes: Regimes,
        reader: ModelReader,
    ) -> None:
        self.schema = schema
        self._holdout = holdout
        self.rules = rules
        self._regimes = regimes
        self._reader = reader

    def scale(self, window: Window) -> NDArray[np.float32] | None:
        """Return the scale `(k,)` that makes errors of targets comparable; None for classes or one row."""
        return unit_scale(window.y) if self.schema.task != "classify" and len(window) > 1 else None

    def evaluate(
        self,
        model: Model,
        champion: Model,
        recent: Window,
        scale: NDArray[np.float32] | None,
    ) -> Verdict:
        """The verdict on a candidate, from the newest holdout rows `recent` and those of earlier regimes."""
        if len(recent) == 0:
            return refuse(too_few(0, self.rules.min_holdout), holdout=0.0)
        evidence = self.evidence(model, champion, recent, scale)
        retained = self._retained(model, champion, recent, scale)
        return judge(self.schema.task, evidence, retained, self.rules)

    def evidence(
        self, model: Model, champion: Model, window: Window, scale: NDArray[np.float32] | None
    ) -> Evidence:
        """Both models' errors on the rows of a window."""
        candidate, other = (
            errors(self.schema, answers(self.schema, m.predict(window.x)), window.y, scale)
            for m in (model, champion)
        )
        said = window.y[:, 0].astype(np.int64) if self.schema.task == "classify" else None
        return Evidence(candidate, other, said, self.schema.classes)

    def _retained(
        self, model: Model, champion: Model, recent: Window, scale: NDArray[np.float32] | None
    ) -> list[Retained]:
        """Both models on what is kept of each earlier regime, and of the present one up to the newest."""
        first, regimes = int(recent.seq[0]), self._regimes
        stretches = [
            (f"earlier conditions (up to label {r.until:,})", r.after, r.until, regimes.drifted_since(r))
            for r in regimes.ended
        ]
        stretches.append(("the time before the newest labels", regimes.begun, first, False))
        retained = []
        for name, after, until, drifted in stretches:
            window = self._holdout.older_holdout(
                RETAINED_ROWS, min(until + 1, first), seed=0, after_seq=after
            )
            self._reader.breathe()
            if len(window):
                evidence = self.evidence(model, champion, window, scale)
                retained.append(Retained(name, evidence, elsewhere(window.x, recent.x), drifted))
        return retained
