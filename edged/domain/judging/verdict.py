"""The gate's verdict on a candidate, as the registry and MQTT hold it, and a streak of refusals."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from edged.domain.training.message import Message

MANY = 8  # refusals in a row that are a problem


@dataclass(frozen=True)
class Verdict(Message):
    """The decision, with every reason and number.

    `forgets` where only earlier labels spoke against it.
    """

    accepted: bool
    reasons: tuple[str, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)
    forgets: bool = False


def refuse(reason: str, **numbers: float) -> Verdict:
    """A verdict that needs no comparison."""
    return Verdict(False, (reason,), numbers)


class RefusalStreak:
    """Counts the candidates that were refused since one was accepted, and tells what they have in common.

    One thread records; `problem` may be read from any.
    """

    def __init__(self) -> None:
        self.count = 0
        self._causes: deque[str] = deque(maxlen=MANY)

    def record(self, verdict: Verdict, *, failed: bool = False) -> bool:
        """Record a verdict, `failed` where it could not be reached; whether `problem` begins or ends with it.

        A refusal that compares nothing, such as one for want of labels, says nothing of the candidate.
        """
        before = self.problem is None
        if verdict.accepted:
            self.count = 0
            self._causes.clear()
        elif failed or "candidate_error" in verdict.numbers:
            self.count += 1
            self._causes.append(_cause(verdict, failed=failed))
        return before != (self.problem is None)

    @property
    def cause(self) -> str:
        """Most frequent cause of the newest rejections; empty before the first."""
        return Counter(self._causes).most_common(1)[0][0] if self._causes else ""

    @property
    def problem(self) -> str | None:
        """Problem once `MANY` in a row were refused; None before, and once one was accepted.

        >>> streak, worse = RefusalStreak(), Verdict(False, ("worse",), {"candidate_error": 0.5})
        >>> [streak.record(worse) for _ in range(8)][-2:], streak.problem
        ([False, True], 'the last 8 candidates were refused: they are worse on the newest labels')
        """
        if self.count < MANY:
            return None
        return f"the last {self.count} candidates were refused: {self.cause}"


def _cause(verdict: Verdict, *, failed: bool) -> str:
    if failed:
        return "they cannot be judged: " + "; ".join(verdict.reasons)
    if "lost_class" in verdict.numbers:
        return "they lose a class: its labels may be wrong"
    if verdict.forgets:
        return "they forget what earlier data taught"
    return "they are worse on the newest labels"
