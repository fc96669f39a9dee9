"""Whether labels contradict the model in a way that no change of the world does: now and then.

A change of the world, such as a sensor that ages or a machine that is set up anew, makes a model wrong for a
while and for some inputs: wrong answers come one after the other, or where inputs lie together. Labels that
somebody falsifies contradict the model for one class and for inputs that the others' labels confirm. So each
pair of a class that was predicted and another that was said is followed by a sequential test (Page 1954) of
the model's own probabilities; only the first of several contradictions in a row counts. What the test finds
is a suspicion, and so is a source whose labels contradict the model far more often than those of others: it
is put to `explained`, which knows the inputs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import comb, log, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.judging.predictions import Predictions

FALSE_SHARE = 0.2  # of the labels of a class: so many false ones are looked for
SURE = 0.5  # probability of the answer from which a label can contradict it
ALARM, EARLY, CONFIRMED = 8.0, 4.0, 15.0
"""Logarithms of likelihood ratios: of a suspicion, of an early one, and of stored labels that confirm it."""

USUAL, KNOWN, LONGEST = 0.02, 600, 2000  # share of contradictions at first, for how many labels; the memory
LEAST = 0.03  # share of contradictions that is never suspicious
TIMES, MOST_USUAL = 1.5, 0.06  # times the usual share are not either, up to this one
MOST_UNSURE = 0.2  # nor what the model itself holds possible, up to this
FORGIVEN = 1000  # contradictions of a kind that are believed after somebody has accepted some
ROWS = 60  # newest labels that a suspicion is judged by
RECENT = 2000  # newest labels that are set aside afterwards
PROVEN, TIMES_BETTER = 100, 6.5
"""An answer is believed against its only source where so many labels had agreed with it, and so many times
fewer had contradicted it than a guess by the frequency of the class."""

MOST_KEYS = 4096
MOST_CLASSES = 300  # of a stream that is watched: memory grows with their square
EXPLAINED = 0.05  # p-value below which the inputs explain which labels contradict the model
FEW = 5  # labels of a source by which it can be blamed
APART = 3.0  # standard errors between a source that is to blame and the others
ENOUGH, FAR_APART = 8, 5.0  # the same where the sources alone are a reason for suspicion


class _Label(NamedTuple):
    offset: int
    predicted: int
    said: int
    source: str
    key: int


class _Evidence(NamedTuple):
    """Labels since a test began to rise, and whether the model was proven then."""

    labels: deque[_Label]
    proven: bool


@dataclass(frozen=True)
class Suspicion:
    """Labels `said` where the model `predicted` otherwise, and those beside them that confirm it.

    The model is `proven` where labels had agreed with this answer before. An `early` suspicion, of an only
    source, counts where stored labels confirm the answer.
    """

    predicted: int
    said: int
    labels: tuple[_Label, ...]
    proven: bool = False
    early: bool = False

    @property
    def offsets(self) -> list[int]:
        """Offsets of the samples of the labels, oldest label first."""
        return [label.offset for label in self.labels]

    def contradicts(self, offsets: Sequence[int]) -> NDArray[np.bool_]:
        """Which of these samples have a label that contradicts the model, `(n,)`."""
        against = {label.offset for label in self.labels if label.said == self.said}
        return np.array([offset in against for offset in offsets], bool)


@dataclass(frozen=True)
class Dispute:
    """A source whose labels say `said` where the model `predicted`; `whole` if it stands apart from others.

    Then all its labels are set aside; otherwise those that contradict the model so, if it is `proven`. Else
    none are: perhaps the model is wrong.
    """

    source: str
    predicted: int
    said: int
    whole: bool
    proven: bool = False

    def covers(self, label: _Label) -> bool:
        """Whether a label is set aside by it."""
        contradicts = (label.predicted, label.said) == (self.predicted, self.said)
        return label.source == self.source and (self.whole or (self.proven and contradicts))


class LabelWatch:
    """Follows the labels of a stream of `classes` classes beside the newest `size` answers of its model.

    Labels without a source are those of people who give them by command; they are not watched. May be used
    from several threads.
    """

    def __init__(self, classes: int, size: int) -> None:
        self._size = size
        self._offsets = np.zeros(size, np.int64)  # plus 1
        self._keys, predicted, sure = np.zeros((3, size), np.uint32)
        self._predicted, self._sure = predicted.view(np.int32), sure.view(np.float32)
        self._score = np.zeros((classes, classes))
        self._usual = np.full((classes, classes), USUAL)
        self._count = np.full(classes, KNOWN)
        self._joined = np.zeros((classes, classes))  # labels by what was predicted, and what they say
        self._forgiven: dict[tuple[int, int], int] = {}
        self._agreed: dict[tuple[int, int], bool] = {}
        self._since: dict[tuple[int, int], _Evidence] = {}
        self._recent: deque[_Label] = deque(maxlen=RECENT)
        self._suspicions: list[Suspicion] = []
        self._aside: list[int] = []
        self._disputes: list[Dispute] = []
        self._lock = threading.Lock()

    @property
    def disputes(self) -> tuple[Dispute, ...]:
        """Which sources are in dispute until somebody decides."""
        return tuple(self._disputes)

    # ---- answers and labels ----------------------------------------------------------------

    def remember(self, made: Predictions, keys: Sequence[str]) -> None:
        """Keep the answers of a batch, whose samples have these keys."""
        if made.confidence is None:
            return
        place = made.offsets % self._size
        answered = np.isfinite(made.confidence) & np.isfinite(made.answers[:, 0])
        self._offsets[place] = np.where(answered, made.offsets + 1, 0)
        self._predicted[place] = np.where(answered, made.answers[:, 0], 0)
        self._sure[place] = made.confidence
        self._keys[place] = [crc32(key.encode()) for key in keys]

    def forget(self, offsets: NDArray[np.int64]) -> None:
        """Forget the answers of these samples."""
        place = offsets % self._size
        self._offsets[place[self._offsets[place] == offsets + 1]] = 0

    def judge(
        self, offsets: NDArray[np.int64], y: NDArray[np.float32], sources: Sequence[str]
    ) -> NDArray[np.bool_]:
        """Follow labels `(n, 1)`, in order of arrival; which of them are set aside, `(n,)`."""
        with self._lock:
            said = zip(offsets.tolist(), y[:, 0].astype(int).tolist(), sources, strict=True)
            return np.array([self._judge(*one) for one in said], bool)

    def _judge(self, offset: int, said: int, source: str) -> bool:
        if not source:
            return False
        place = offset % self._size
        known = self._offsets[place] == offset + 1 and self._sure[place] >= SURE
        predicted = int(self._predicted[place]) if known else -1
        label = _Label(offset, predicted, said, source, int(self._keys[place]))
        if any(dispute.covers(label) for dispute in self._disputes):
            self._aside.append(offset)
            return True
        if known:
            self._recent.append(label)
            self._follow(label, float(self._sure[place]))
            if said != predicted and (predicted, said) not in self._forgiven:
                self._compare(label)
        return False

    def _compare(self, label: _Label) -> None:
        """Suspect a source whose labels contradict the model far more often than others' of the same keys."""
        pair = label.predicted, label.said
        near = [one for one in self._recent if one.predicted == pair[0] and one.said in pair][-ROWS:]
        sources: dict[int, set[str]] = {}
        for one in near:
            sources.setdefault(one.key, set()).add(one.source)
        shared = tuple(one for one in near if len(sources[one.key]) > 1)
        found = Suspicion(*pair, shared)
        if shared and _apart(label.source, *_counts(found), ENOUGH, FAR_APART):
            self._suspicions.append(found)

    def _follow(self, label: _Label, sure: float) -> None:
        predicted, said = label.predicted, label.said
        agrees = said == predicted
        self._joined[predicted, said] += 1
        if self._joined[predicted].sum() > LONGEST:
            self._joined /= 2
        before = self._agreed.pop((label.key, predicted), False)
        self._agreed[label.key, predicted] = agrees  # the newest are at the end
        if len(self._agreed) > MOST_KEYS:
            del self._agreed[next(iter(self._agreed))]
        if agrees or before:
            self._add(label, sure)
        counts = np.zeros(len(self._usual))
        counts[said] = before and not agrees
        self._count[predicted] = min(self._count[predicted] + 1, LONGEST)
        self._usual[predicted] += (counts - self._usual[predicted]) / self._count[predicted]

    def _add(self, label: _Label, sure: float) -> None:
        """One more step of the tests of what was predicted, and a suspicion where one has come to its end."""
        predicted, said = label.predicted, label.said
        step = np.full(len(self._usual), log(1.0 - FALSE_SHARE))
        if said != predicted and not self._forgives(predicted, said):
            usual = min(MOST_USUAL, TIMES * self._usual[predicted, said])
            usual = max(LEAST, usual, min(MOST_UNSURE, 1.0 - sure))
            step[said] = log(1.0 - FALSE_SHARE + FALSE_SHARE / usual)
        score = self._score[predicted]
        below = score <= EARLY
        np.maximum(0.0, score + step, out=score)
        score[predicted] = 0.0
        for other in np.flatnonzero(score > 0).tolist():
            pair = predicted, other
            if pair not in self._since:
                self._since[pair] = _Evidence(deque(maxlen=ROWS), self._is_proven(predicted))
            if said in (other, predicted):
                self._since[pair].labels.append(label)
        for pair in [pair for pair in self._since if pair[0] == predicted and score[pair[1]] == 0]:
            del self._since[pair]
        for other in np.flatnonzero(below & (score > EARLY)).tolist():
            labels, _ = self._since[predicted, other]
            if len({one.source for one in labels}) == 1:  # else others will contradict
                self._suspicions.append(Suspicion(predicted, other, tuple(labels), early=True))
        for other in np.flatnonzero(score > ALARM).tolist():
            score[other] = 0.0
            labels, proven = self._since.pop((predicted, other))
            self._suspicions.append(Suspicion(predicted, other, tuple(labels), proven))

    def _is_proven(self, predicted: int) -> bool:
        return advantage(self._joined, predicted) > TIMES_BETTER

    def _forgives(self, predicted: int, said: int) -> bool:
        left = self._forgiven.pop((predicted, said), 0)
        if left > 1:
            self._forgiven[predicted, said] = left - 1
        return left > 0

    # ---- disputes --------------------------------------------------------------------------

    def pop_suspicions(self) -> list[Suspicion]:
        """Return the suspicions since the last call."""
        with self._lock:
            found, self._suspicions = self._suspicions, []
            return found

    def confirm(self, suspicion: Suspicion) -> list[Dispute]:
        """Put the sources to blame in dispute, and set aside what these have said lately."""
        with self._lock:
            against, of = _counts(suspicion)
            liars = [source for source in of if _apart(source, against, of, FEW, APART)]
            whole = bool(liars)
            if not whole:
                share = sum(against.values()) / sum(of.values())
                liars = [source for source in of if against[source] >= share * of[source] / 2]
            pair = suspicion.predicted, suspicion.said
            found = [Dispute(one, *pair, whole, suspicion.proven) for one in liars]
            made = [dispute for dispute in found if dispute not in self._disputes]
            self._disputes += made
            covered = {label for label in self._recent if any(one.covers(label) for one in made)}
            self._aside += sorted(label.offset for label in covered)
            self._recent = deque((label for label in self._recent if label not in covered), RECENT)
            return made

    def release(self, source: str) -> bool:
        """Trust a source again, also where it contradicts the model as before; whether it was in dispute."""
        with self._lock:
            ended = [dispute for dispute in self._disputes if dispute.source == source]
            for dispute in ended:
                self._forgiven[dispute.predicted, dispute.said] = FORGIVEN
                self._disputes.remove(dispute)
            return bool(ended)

    def pop_aside(self) -> list[int]:
        """Offsets whose labels are to be set aside since the last call."""
        with self._lock:
            found, self._aside = self._aside, []
            return found

    def dump(self) -> list[list[Any]]:
        """Return the disputes as JSON values."""
        return [list(astuple(one)) for one in self._disputes]

    def load(self, values: Sequence[Sequence[Any]] | None) -> None:
        """Go on with the disputes that `dump` gave, and none before."""
        with self._lock:
            self._disputes = [Dispute(*value) for value in values or ()]
            self._recent.clear()


def advantage(joined: NDArray[np.float64], predicted: int) -> float:
    """How many times rarer labels contradict an answer than a guess; `joined` `(c, c)` counts them by answer.

    0 where fewer than `PROVEN` labels agree.
    """
    agreed, frequency = joined[predicted, predicted], joined[:, predicted].sum()
    if agreed < PROVEN:
        return 0.0
    wrong = 1.0 - agreed / joined[predicted].sum()
    guessing = 1.0 - frequency / joined.sum()  # 0 for a single class: then nothing is proven
    return float(guessing / max(wrong, 1.0 / joined[predicted].sum()))


def _counts(suspicion: Suspicion) -> tuple[dict[str, int], dict[str, int]]:
    """Of each source how many labels contradict the model, and how many there are."""
    against: dict[str, int] = {}
    of: dict[str, int] = {}
    for label in suspicion.labels:
        of[label.source] = of.get(label.source, 0) + 1
        against[label.source] = against.get(label.source, 0) + (label.said == suspicion.said)
    return against, of


def _apart(source: str, against: dict[str, int], of: dict[str, int], few: int, errors: float) -> bool:
    """Whether a source contradicts the model far more often than all others together.

    With `few` labels of both, and by so many standard errors.
    """
    n, rest = of.get(source, 0), sum(of.values()) - of.get(source, 0)
    if min(n, rest) < few:
        return False
    both = sum(against.values()) / (n + rest)
    difference = against[source] / n - (sum(against.values()) - against[source]) / rest
    return difference > errors * sqrt(both * (1.0 - both) * (1.0 / n + 1.0 / rest))


def explained(x: NDArray[np.float32], contradicts: NDArray[np.bool_]) -> bool:
    """Whether inputs `(n, d)` tell which labels contradict the model, `(n,)`: then the world has changed.

    By the neighbours of those that do: whether more of them do, too, than by chance.

    >>> x = np.array([[0], [1], [2], [3], [10], [11], [12], [13]], np.float32)
    >>> explained(x, x[:, 0] > 5), explained(x, x[:, 0] % 2 == 1)
    (True, False)
    """
    n, few = len(x), int(contradicts.sum())
    if few < 2 or few == n:
        return True
    spread = x.std(axis=0)
    unit = (x / np.where(spread > 0, spread, 1)).astype(np.float64)
    square = (unit**2).sum(axis=1)
    far = square[:, None] + square - 2.0 * unit @ unit.T
    np.fill_diagonal(far, np.inf)
    hits, chance = int(contradicts[far.argmin(axis=1)][contradicts].sum()), (few - 1) / (n - 1)
    tail = sum(comb(few, k) * chance**k * (1 - chance) ** (few - k) for k in range(hits, few + 1))
    return bool(tail < EXPLAINED)
