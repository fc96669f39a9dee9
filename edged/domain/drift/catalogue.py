"""The streaming detectors by name: at the literature's defaults, quiet ones, and the daemon's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.drift.adwin import ADWIN
from edged.domain.drift.adwin_correlated import CorrelatedADWIN
from edged.domain.drift.ddm import DDM
from edged.domain.drift.hddm_w import HDDMW
from edged.domain.drift.page_hinkley import PageHinkley
from edged.domain.drift.signals import unreadable
from edged.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edged.domain.drift.signals import Detector

DETECTORS: dict[str, type[ADWIN | CorrelatedADWIN | PageHinkley | DDM | HDDMW]] = {
    "adwin": ADWIN,
    "adwin_correlated": CorrelatedADWIN,
    "page_hinkley": PageHinkley,
    "ddm": DDM,
    "hddm_w": HDDMW,
}

QUIET: dict[str, Callable[[], Detector]] = {
    "adwin": lambda: ADWIN(mode="up"),
    "adwin_correlated": lambda: CorrelatedADWIN(mode="up"),
    "page_hinkley": lambda: PageHinkley(delta=0.02, threshold=75.0, mode="up"),
    "ddm": lambda: DDM(warm_start=500, warning_threshold=3.0, drift_threshold=4.0),
    "hddm_w": lambda: HDDMW(drift_confidence=1e-6, warning_confidence=1e-5, lambda_val=0.02),
}


def default_detector() -> Detector:
    """The daemon's detector on an error stream within 0 and 1: ADWIN for errors that come in bursts.

    Parameters are the literature's, but for `mode`: a model that has become better is no reason to
    train. Measured by `benchmarks/drift.py` (20 streams a figure): false alarms per 50,000 stationary
    errors of a rate, independent or in bursts of 5 on the mean; median delay, in readings, after the
    (independent) errors change their rate:

    ====================== ===== ===== ===== ===== ===== ====== =========== ===========
    detector                 1 %   5 %  10 %  30 %  50 % bursts  10 -> 20 %  10 -> 40 %
    ====================== ===== ===== ===== ===== ===== ====== =========== ===========
    this one                   0     0     0     0     0    0.1         344          72
    quiet `adwin`              0     0     0  0.05     0     46         312          56
    `PageHinkley()`            0   0.5   1.2   4.0   4.7     19         418         131
    `DDM()`                  9.0   1.6   0.4   0.4   0.2    225         457         139
    `HDDMW()`                  0     0     0  19.3  39.9    121        2304          57
    quiet `page_hinkley`       0     0     0   0.5   0.5      3        1000         250
    quiet `ddm`              0.3   0.1     0     0     0     10         747         221
    quiet `hddm_w`             0     0     0   0.1   0.5     22       never         104
    ====================== ===== ===== ===== ===== ===== ====== =========== ===========

    At the literature's defaults Page-Hinkley, DDM and HDDM-W exceed 1 per 50,000 at some error rate;
    ADWIN does not, but as all of them it takes bursts for drifts, and errors on sensor streams come
    in bursts. Knowing better costs 10 to 30 % of delay. An update takes 0.8 µs.
    """
    return QUIET["adwin_correlated"]()


def quiet_detector(name: str) -> Detector:
    """The detector `name` with the daemon's parameters: at most 1 false alarm per 50,000.

    Raises
    ------
    ConfigError
        When there is no detector of that name.
    """
    if name not in QUIET:
        raise ConfigError(
            f"there is no drift detector {name!r}",
            where="drift detector",
            remedy=f"one of {', '.join(QUIET)}",
        )
    return QUIET[name]()


def tuned_detector(name: str, delta: float | None) -> Detector:
    """`quiet_detector` with another `delta`, the confidence of the kinds of ADWIN; None leaves theirs.

    Raises
    ------
    ConfigError
        When there is no detector of that name, or it has no `delta` of that meaning, or not this value.
    """
    detector = quiet_detector(name)
    if delta is None:
        return detector
    if not isinstance(detector, ADWIN):
        raise ConfigError("only the kinds of adwin have one", where="drift.delta", remedy="remove it")
    parameters = {own: getattr(detector, own) for own in detector.parameters}
    return type(detector)(**(parameters | {"delta": delta}))


def restore(state: Mapping[str, Any]) -> Detector:
    """The streaming detector that gave `state`; it continues identically.

    Raises
    ------
    CorruptError
        When `state` is not a detector's.
    """
    kind = DETECTORS.get(str(state.get("detector")))
    if kind is None:
        raise unreadable(str(state.get("detector")), f"known detectors are {', '.join(DETECTORS)}")
    return kind.from_state(state)
