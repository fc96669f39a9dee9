"""Regimes: stretches of the stream between two drifts, and how one is recognised when it comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.drift.two_sample import holm, ks_distance, ks_p_value
from edged.domain.json_fields import JsonObject
from edged.domain.stream.quantiles import quantiles
from edged.domain.training.message import Message
from edged.errors import CorruptError, TrainingError

if TYPE_CHECKING:
    Inputs = NDArray[np.float32]

BANK = 4  # models of earlier regimes that are tried
KEPT = 8
SHORTEST = 200  # labels; what is shorter is the change itself, not a regime
DIFFERENT = 0.01  # significance at which inputs count as lying elsewhere
FEWEST = 20
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def elsewhere(then: Inputs, now: Inputs) -> bool:
    """Return whether any feature of inputs `(n, d)` and `(m, d)` has another distribution.

    Two-sample Kolmogorov-Smirnov test of each feature with Holm's correction; with fewer than `FEWEST` rows
    nothing is known, and the answer is no.
    """
    if min(len(then), len(now)) < FEWEST:
        return False
    a, b = np.sort(then, axis=0), np.sort(now, axis=0)
    p = [ks_p_value(ks_distance(a[:, i], b[:, i]), len(a), len(b)) for i in range(a.shape[1])]
    return bool(holm(np.array(p)).min() < DIFFERENT)


@dataclass(frozen=True)
class Signature(Message):
    """Appearance of a regime: quantiles `(d, q)` of its inputs; for classes, the labels' shares `(c,)`."""

    quantiles: tuple[tuple[float, ...], ...]
    shares: tuple[float, ...] = ()

    @classmethod
    def of(cls, x: Inputs, y: Inputs, classes: int) -> Signature:
        """The signature of labelled rows `(n, d)` and `(n, targets)`, n > 0; `classes` 0 for values."""
        levels = quantiles(x.astype(np.float64), QUANTILES).T
        counts = np.bincount(y[:, 0].astype(np.int64), minlength=classes) if classes else np.zeros(0)
        shares = (counts / len(y)).tolist()
        return cls(tuple(map(tuple, levels.tolist())), tuple(shares))

    def distance(self, other: Signature) -> float:
        """Return the distance of two regimes: 0 for equal ones; about 1 for a shift by a standard deviation.

        Root mean square, over the features, of the mean shift of their quantiles in units of the spread
        between the outer ones (2.56 standard deviations of a normal distribution), plus half the difference
        of shares.
        """
        a, b = np.array(self.quantiles), np.array(other.quantiles)
        spread = np.maximum(a[:, -1] - a[:, 0], b[:, -1] - b[:, 0]) / 2.56
        shift = np.abs(a - b).mean(axis=1) / np.where(spread > 1e-12, spread, 1.0)
        shares = np.abs(np.array(self.shares) - np.array(other.shares)).sum() / 2 if self.shares else 0.0
        return float(np.sqrt((shift**2).mean()) + shares)


@dataclass(frozen=True)
class Regime(Message):
    """A regime that has ended: labels with `after < seq <= until`, and what ended it.

    `version` is the model that served it last. Its JSON is on the disk.
    """

    after: int
    until: int
    source: str
    version: int | None = None
    signature: Signature | None = None


@dataclass
class Regimes:
    """The newest `KEPT` regimes that have ended, oldest first.

    When there are more, the two shortest neighbours become one under the name of the later.
    """

    ended: list[Regime] = field(default_factory=list)

    @property
    def begun(self) -> int:
        """Position in label order after which the present regime began."""
        return self.ended[-1].until if self.ended else 0

    def bank(self) -> list[int]:
        """Versions of the models of the newest regimes, newest first, which the registry must keep."""
        versions = [r.version for r in reversed(self.ended) if r.version is not None]
        return list(dict.fromkeys(versions))[:BANK]

    def forget_samples(self) -> None:
        """Forget what the samples of each regime looked like."""
        self.ended = [replace(regime, signature=None) for regime in self.ended]

    def close_regime(
        self, until: int, source: str, version: int | None = None, signature: Signature | None = None
    ) -> bool:
        """Close the present regime at label `until`, after a drift; False if it was too short to be one."""
        if until - self.begun < SHORTEST:
            return False
        self.ended.append(Regime(self.begun, until, source, version, signature))
        if len(self.ended) > KEPT:
            self._merge()
        return True

    def _merge(self) -> None:
        lengths = [b.until - a.after for a, b in zip(self.ended[:-1], self.ended[1:], strict=True)]
        at = int(np.argmin(lengths))
        first, second = self.ended[at], self.ended[at + 1]
        self.ended[at : at + 2] = [
            Regime(first.after, second.until, second.source, second.version, second.signature)
        ]

    def drifted_since(self, regime: Regime) -> bool:
        """Return whether the errors have drifted at its end or later."""
        return any(r.source == "error" and r.until >= regime.until for r in self.ended)

    def state(self) -> JsonObject:
        """Return the state as JSON values."""
        return {"ended": [regime.to_json() for regime in self.ended]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Regimes:
        """Read what `state` returned; CorruptError when it is something else."""
        try:
            return cls([Regime.from_json(values) for values in state["ended"]])
        except (KeyError, TypeError, TrainingError) as problem:
            raise CorruptError(f"these are no regimes: {problem}", where="regimes") from problem
