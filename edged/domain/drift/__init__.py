"""Drift detection: on errors, on the model's confidence, and on the inputs.

`StreamWatch` (see `error_watch` and `confidence_watch`) and `InputDrift` take in what the loop
sees and give `DriftSignal`s, one for each change. Everything here is a pure rule: no clock, no I/O.
"""

from edged.domain.drift.adwin import ADWIN
from edged.domain.drift.adwin_correlated import CorrelatedADWIN
from edged.domain.drift.inputs import InputDrift, InputRules
from edged.domain.drift.live import DriftRules, LiveDrift, confidence_watch
from edged.domain.drift.signals import Cooldown, DriftSignal, FeatureShift, Level
from edged.domain.drift.stream_watch import StreamWatch, bounded, default_detector, error_watch

__all__ = [
    "ADWIN",
    "Cooldown",
    "CorrelatedADWIN",
    "DriftRules",
    "DriftSignal",
    "FeatureShift",
    "InputDrift",
    "InputRules",
    "Level",
    "LiveDrift",
    "StreamWatch",
    "bounded",
    "confidence_watch",
    "default_detector",
    "error_watch",
]
