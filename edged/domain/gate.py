"""The gate: whether the candidate is better than the champion."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edged.domain.schema import Task

Errors = NDArray[np.float64]


@dataclass(frozen=True)
class GateRules:
    """Limits of the gate; gains and regrets are absolute for classes, relative for values."""

    min_gain: float = 0.0
    max_regret: float = 0.02
    min_holdout: int = 20


@dataclass(frozen=True)
class Evidence:
    """Errors `(n,)` of both models on the same rows."""

    candidate: Errors
    champion: Errors


@dataclass(frozen=True)
class Verdict:
    """The decision, with every reason and number."""

    accepted: bool
    reasons: tuple[str, ...]
    numbers: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For the registry and MQTT."""
        return asdict(self) | {"reasons": list(self.reasons)}


def refuse(reason: str, **numbers: float) -> Verdict:
    """A verdict that needs no comparison."""
    return Verdict(False, (reason,), numbers)


def gain(task: Task, evidence: Evidence) -> float:
    """How much better the candidate is: accuracy points for classes, a share of the error otherwise."""
    candidate, champion = float(evidence.candidate.mean()), float(evidence.champion.mean())
    if task == "classify":
        return champion - candidate
    return (champion - candidate) / max(champion, 1e-12)


def judge(task: Task, recent: Evidence, older: Evidence | None, rules: GateRules) -> Verdict:
    """Compare on the newest holdout, and see that nothing older was forgotten.

    Without any earlier holdout only the newest decides. Equal errors are accepted when
    `min_gain` is 0: the candidate has seen more.
    """
    n = len(recent.candidate)
    if n < rules.min_holdout:
        return refuse(f"only {n} labelled holdout samples, {rules.min_holdout} needed", holdout=float(n))
    won = gain(task, recent)
    numbers = {
        "holdout": float(n),
        "candidate_error": float(recent.candidate.mean()),
        "champion_error": float(recent.champion.mean()),
        "gain": won,
    }
    reasons = []
    accepted = won >= rules.min_gain
    reasons.append(f"gain {won:+.4f} on {n} newest holdout samples, {rules.min_gain:+.4f} needed")
    if older is not None and len(older.candidate) >= rules.min_holdout:
        kept = gain(task, older)
        numbers |= {"older_holdout": float(len(older.candidate)), "older_gain": kept}
        if -kept > rules.max_regret + max(won, 0.0):
            accepted = False
            reasons.append(
                f"loses {-kept:.4f} on {len(older.candidate)} older holdout samples, "
                f"at most {rules.max_regret:.4f} beyond its gain allowed"
            )
    return Verdict(accepted, tuple(reasons), numbers)


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
