"""The gate: whether a candidate takes the champion's place.

A candidate has learned from newer data than the champion, and staleness costs more than noise: so it need not
prove that it is better, but it must not be worse beyond chance (non-inferiority). It is judged on the newest
holdout, and on a sample of the holdout before it, so that it does not pay for the present with the past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edged.domain import outcomes
from edged.domain.drift.two_sample import any_differs
from edged.domain.judging.outputs import answers, errors, unit_scale
from edged.domain.judging.paired_test import PairedComparison, compare
from edged.domain.judging.verdict import Verdict, refuse
from edged.domain.outcomes import too_few
from edged.domain.protocols import Holdout, Model, ModelReader
from edged.domain.stream.sample import Window
from edged.domain.stream.schema import Schema, Task

Errors = NDArray[np.float64]

# Significance of the test on earlier labels. Every candidate is put to it, a thousand in a stream: at 0.05
# chance alone refused every thirteenth on elec2.
FORGETTING = 0.01
# Significance at which a class is lost on the newest holdout, shared by the classes that are there.
LOST_CLASS = 0.01
EARLIER_ROWS = 200  # holdout samples from before the newest, at most


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
class Earlier:
    """Errors of both models on holdout from before the newest; `elsewhere` if its inputs were others."""

    evidence: Evidence
    elsewhere: bool = True

    def superseded(self, champion_now: float) -> bool:
        """True if other answers have become right for the same inputs: remembering them would be wrong.

        The champion errs more now than it did then.
        """
        return not self.elsewhere and champion_now > float(self.evidence.champion.mean())


def judge(task: Task, recent: Evidence, earlier: Earlier | None, rules: GateRules) -> Verdict:
    """Compare on the newest holdout, and check that the candidate keeps what earlier data taught.

    The newest half of the holdout is asked first: what it shows beyond chance decides, and only where it
    shows nothing the older half is added. So a candidate that follows an abrupt change is not held up by rows
    from before the change.
    """
    n = len(recent.candidate)
    if n < rules.min_holdout:
        return refuse(outcomes.too_few(n, rules.min_holdout), holdout=float(n))
    found, better = _newest(task, recent, rules)
    numbers = {
        "holdout": float(found.n),
        "candidate_error": float(recent.candidate.mean()),
        "champion_error": float(recent.champion.mean()),
        "gain": found.gain,
        "judged_error": found.candidate,
        "judged_before": found.champion,
        "both": float(found.both),
        "wins": float(found.wins),
        "losses": float(found.losses),
        "p_better": found.p_better,
        "p_worse": found.p_worse,
        "significance": rules.significance,
    }
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
    if earlier is None or len(earlier.evidence.candidate) < rules.min_holdout:
        return Verdict(True, tuple(reasons), numbers)
    forgotten = _forgotten(task, recent, earlier, rules, numbers)
    return Verdict(not forgotten, (*reasons, *forgotten), numbers, forgets=bool(forgotten))


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
    task: Task, recent: Evidence, earlier: Earlier, rules: GateRules, numbers: dict[str, float]
) -> list[str]:
    """Return the reason for a rejection if too much is lost on earlier rows, less what is won on the newest.

    The gain on earlier rows is added to `numbers`.
    """
    found = compare(task, earlier.evidence.candidate, earlier.evidence.champion)
    won = compare(task, recent.candidate, recent.champion).gain
    numbers |= {"older": float(found.n), "older_gain": found.gain}
    too_much = -found.gain > rules.max_regret + max(won, 0.0) and found.p_worse < FORGETTING
    if not too_much or earlier.superseded(float(recent.champion.mean())):
        return []
    return [outcomes.forgets(task, found)]


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
        reader: ModelReader,
    ) -> None:
        self.schema = schema
        self._holdout = holdout
        self.rules = rules
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
        """The verdict on a candidate, from the newest holdout rows `recent` and those before them."""
        if len(recent) == 0:
            return refuse(too_few(0, self.rules.min_holdout), holdout=0.0)
        evidence = self.evidence(model, champion, recent, scale)
        earlier = self._earlier(model, champion, recent, scale)
        return judge(self.schema.task, evidence, earlier, self.rules)

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

    def _earlier(
        self, model: Model, champion: Model, recent: Window, scale: NDArray[np.float32] | None
    ) -> Earlier | None:
        """Ask both models about rows spread over all holdout before `recent`; None where there are none."""
        window = self._holdout.older_holdout(EARLIER_ROWS, int(recent.seq[0]))
        self._reader.breathe()
        if len(window) == 0:
            return None
        evidence = self.evidence(model, champion, window, scale)
        return Earlier(evidence, any_differs(window.x, recent.x))
