"""What a simulation has found: of each round and device, and of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.training.message import Message

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.json_fields import JsonObject
    from edged.domain.training.weight_deltas import Weights
    from edged.fleet.coordinator.journal import RoundRecord
    from edged.fleet.simulation.shared import SharedSetup
    from edged.fleet.simulation.virtual_device import ModelReport, VirtualDevice


class SimulationFigures(Message):
    """Base of figures; the field `global_` is called `global` in JSON."""

    def to_json(self) -> JsonObject:
        """Return the fields as JSON values."""
        return {name.rstrip("_"): value for name, value in super().to_json().items()}


@dataclass(frozen=True)
class AccuracySpread(SimulationFigures):
    """Mean accuracy over devices, and that of the worst one."""

    mean: float
    worst: float
    std: float


@dataclass(frozen=True)
class RoundFigures(SimulationFigures):
    """One round: its model on `unseen` rows and on each device, and what that serves afterwards (`mixed`)."""

    round: int
    accepted: bool
    seconds: float
    updates: int
    left_out: tuple[str, ...]
    unseen: float | None
    global_: AccuracySpread | None
    mixed: AccuracySpread | None


@dataclass(frozen=True)
class FinalFigures(SimulationFigures):
    """The last model; `share` is its mean share in the mixtures."""

    unseen: float | None
    global_: AccuracySpread | None
    mixed: AccuracySpread | None
    share: float | None


@dataclass(frozen=True)
class SentBytes(SimulationFigures):
    """Bytes of an update: as float32, sent in the mean and at the most, and the ratio of the first two."""

    float32: int
    mean: float | None
    most: int | None
    ratio: float | None


@dataclass(frozen=True)
class DeviceFigures(SimulationFigures):
    """One device: rows it learned from and was tested on, accuracies, rounds it sent to, bytes sent."""

    device: str
    attack: str | None
    learned: int
    tested: int
    global_: float | None
    mixed: float | None
    share: float | None
    rounds: int
    bytes: int


@dataclass(frozen=True)
class FleetFigures(SimulationFigures):
    """Rounds, the last model, the traffic, and devices; harmful ones are not asked how well they do."""

    rounds: tuple[RoundFigures, ...]
    final: FinalFigures
    bytes: SentBytes
    per_device: tuple[DeviceFigures, ...]


@dataclass(frozen=True)
class ComparedFigures(SimulationFigures):
    """Accuracy of models that are trained without the fleet, to compare: on unseen rows, and over devices."""

    epochs: int
    unseen: float
    mean: float
    worst: float


@dataclass(frozen=True)
class ClosedFormFigures(SimulationFigures):
    """The last layer solved for from all rows together: accuracy on unseen rows, and how far the fleet's is.

    `difference` is the largest one between two parameters.
    """

    unseen: float
    difference: float


@dataclass(frozen=True)
class SimulationReport(SimulationFigures):
    """A simulation: its settings, and what came of it for the fleet and each group with a model of its own.

    To compare: `central`, one model trained on all rows together; `alone`, one for each device; `closed_form`
    of rounds of statistics. They are None where they were not wanted.
    """

    data: str
    plan: Mapping[str, Any]
    devices: int
    poisoned: tuple[str, ...]
    seconds: float
    figures: FleetFigures
    groups: Mapping[str, FleetFigures] = field(default_factory=dict)
    alone: ComparedFigures | None = None
    central: ComparedFigures | None = None
    closed_form: ClosedFormFigures | None = None

    def to_json(self) -> JsonObject:
        """Return the fields as JSON values, all figures on one level."""
        known = {name: value for name, value in self.without("figures").items() if value is not None}
        return {**known, **self.figures.to_json()}


def measured(
    bench: SharedSetup,
    devices: Sequence[VirtualDevice],
    lineage: Sequence[RoundRecord],
    models: Mapping[str, Weights],
    unseen: NDArray[np.int64],
    scratch: Path,
) -> FleetFigures:
    """Measure the results of a simulation.

    `lineage` are the coordinator's rounds, `models` their models by fingerprint, `unseen` the rows of those
    that took no part. `scratch` is a file that may be written over.
    """
    honest = [device for device in devices if device.attack is None]
    rounds = [_round_figures(bench, honest, devices, entry, models, unseen, scratch) for entry in lineage]
    last = [device.log.models[-1] for device in honest if device.log.models]
    whole = sum(bench.initial()[name].nbytes for name in bench.bundle.trainable)
    sent = [size for device in devices for size in device.log.sent.values()]
    mean = float(np.mean(sent)) if sent else None
    return FleetFigures(
        rounds=tuple(rounds),
        final=FinalFigures(
            unseen=rounds[-1].unseen if rounds else None,
            global_=_spread([report.alone.metric for report in last]),
            mixed=_spread([report.mixed.metric for report in last]),
            share=float(np.mean([report.share or 0.0 for report in last])) if last else None,
        ),
        bytes=SentBytes(whole, mean, max(sent, default=None), None if mean is None else mean / whole),
        per_device=tuple(_device_figures(device) for device in devices),
    )


def _round_figures(
    bench: SharedSetup, honest: Sequence[VirtualDevice], devices: Sequence[VirtualDevice],
    entry: RoundRecord,
    models: Mapping[str, Weights], unseen: NDArray[np.int64], scratch: Path,
) -> RoundFigures:  # fmt: skip
    reports = [found for device in honest if (found := _report_of(device, entry.model)) is not None]
    weights, asked = models.get(entry.model), None
    if weights and len(unseen):
        asked = bench.evaluate({**bench.initial(), **weights}, scratch, unseen)[0]
    return RoundFigures(
        round=entry.round,
        accepted=entry.accepted,
        seconds=entry.seconds,
        updates=sum(entry.round in device.log.sent for device in devices),
        left_out=entry.left_out,
        unseen=None if asked is None else asked.metric,
        global_=_spread([found.alone.metric for found in reports]),
        mixed=_spread([found.mixed.metric for found in reports]),
    )


def _report_of(device: VirtualDevice, digest: str) -> ModelReport | None:
    return next((report for report in reversed(device.log.models) if report.model == digest), None)


def _spread(values: Sequence[float]) -> AccuracySpread | None:
    if not values:
        return None
    return AccuracySpread(float(np.mean(values)), float(np.min(values)), float(np.std(values)))


def _device_figures(device: VirtualDevice) -> DeviceFigures:
    last = device.log.models[-1] if device.log.models else None
    return DeviceFigures(
        device=device.name,
        attack=device.attack,
        learned=len(device.learned),
        tested=len(device.kept),
        global_=None if last is None else last.alone.metric,
        mixed=None if last is None else last.mixed.metric,
        share=None if last is None else last.share,
        rounds=len(device.log.sent),
        bytes=sum(device.log.sent.values()),
    )
