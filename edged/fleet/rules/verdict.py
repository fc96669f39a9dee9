"""Verdict on the model of a round, from the reports of devices, the worst among them included.

A mean hides those that a model serves badly (Mohri et al., "Agnostic federated learning", 2019; Li et al.,
"Fair resource allocation in federated learning", 2020). Reports may be false, too: the mean is trimmed, and
the worst is a quantile: of `n` reports `FALSE_SHARE * (n - 1)`, rounded down, may be false and decide
nothing, of three or more at least one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edged.domain.federated.messages import Evaluation, Quality
from edged.fleet.config import GateSection

FALSE_SHARE = 0.1
"""Share of reports that may be false, and of devices that may be worse than is allowed for the worst."""


@dataclass(frozen=True)
class StageVerdict:
    """The decision on a stage, its reason, and the numbers behind it.

    `dissenters` are the devices that report a worse loss than is allowed for the worst, by name.
    """

    accepted: bool
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    dissenters: tuple[str, ...] = ()


def judge(reports: Collection[Evaluation], asked: int, tolerance: GateSection) -> StageVerdict:
    """Compare a model with the one before it, on the holdouts of the devices that know both.

    `reports` are those on the model, one a device, of which so many were `asked`.
    """
    numbers = spread_of(reports)
    if not reports or len(reports) < tolerance.reports * asked:
        return StageVerdict(False, f"{len(reports)} of {asked} devices have reported", numbers)
    known = {r.device: (r.model.loss, r.standing.loss) for r in reports if r.standing is not None}
    if not known:
        return StageVerdict(True, "no device knows the model before", numbers)
    new, old = np.array(list(known.values()), np.float64).T
    change = (new - old) / max(float(np.median(np.abs(old))), 1e-12)
    cut = borne(len(change))
    kept = np.sort(change)[cut : len(change) - cut]
    mean, worst = float(kept.mean()), float(kept[-1])
    numbers |= {"compared": float(len(change)), "change_mean": mean, "change_worst": worst}
    summary = f"loss {mean:+.1%} in the mean and {worst:+.1%} for the worst of {len(change)} devices"
    accepted = mean <= tolerance.mean and worst <= tolerance.worst
    limits = f", at most {tolerance.mean:+.1%} and {tolerance.worst:+.1%}"
    against = tuple(
        name for name, one in zip(known, change.tolist(), strict=True) if not one <= tolerance.worst
    )
    return StageVerdict(accepted, summary if accepted else summary + limits, numbers, against)


def worse_of(reports: Collection[Evaluation], tolerance: GateSection) -> tuple[str, ...]:
    """Return the devices that report a worse loss than is allowed for the worst, by name."""
    return judge(reports, 0, tolerance).dissenters


def borne(reports: int) -> int:
    """Return how many of `reports` can be false and decide nothing.

    >>> [borne(n) for n in (1, 2, 3, 10, 21)]
    [0, 0, 1, 1, 2]
    """
    return max(int(FALSE_SHARE * (reports - 1)), int(reports > 2))


def spread_of(reports: Iterable[Evaluation]) -> dict[str, float]:
    """Loss and metric over the devices, for the model, and for what they served before."""
    kept = list(reports)
    found = {"devices": float(len(kept)), "taken": float(sum(r.taken for r in kept))}
    kinds: dict[str, Sequence[Quality]] = {
        "before": [r.before for r in kept],
        "global": [r.model for r in kept],
    }
    for kind, values in kinds.items():
        for what in ("loss", "metric"):
            numbers = np.array([getattr(v, what) for v in values], np.float64)
            found |= {f"{kind}_{what}_{name}": value for name, value in _summary(numbers).items()}
    return found


def _summary(values: NDArray[np.float64]) -> dict[str, float]:
    if not values.size:
        return {}
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "least": float(values.min()),
        "most": float(values.max()),
    }
