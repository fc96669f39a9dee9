"""The figures of a simulation: quality by round, and device by device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.domain.training.weight_deltas import Weights
    from edged.fleet.simulation.shared import SharedSetup
    from edged.fleet.simulation.virtual_device import ModelReport, VirtualDevice


def figures(
    bench: SharedSetup,
    devices: Sequence[VirtualDevice],
    lineage: Sequence[Mapping[str, Any]],
    models: Mapping[str, Weights],
    unseen: NDArray[np.int64],
    scratch: Path,
) -> dict[str, Any]:
    """Measure the results of a simulation; harmful devices are not asked how well they do.

    `lineage` are the coordinator's rounds, `models` their models by fingerprint, `unseen` the rows of those
    that took no part. `scratch` is a file that may be written over.
    """
    honest = [device for device in devices if device.attack is None]
    rounds = [_round(bench, honest, devices, entry, models, unseen, scratch) for entry in lineage]
    last = [device.log.models[-1] for device in honest if device.log.models]
    whole = sum(bench.initial()[name].nbytes for name in bench.bundle.trainable)
    sent = [size for device in devices for size in device.log.sent.values()]
    return {
        "rounds": rounds,
        "final": {
            "unseen": rounds[-1]["unseen"] if rounds else None,
            "global": _spread([told.alone.metric for told in last]),
            "mixed": _spread([told.mixed.metric for told in last]),
            "share": float(np.mean([told.share or 0.0 for told in last])) if last else None,
        },
        "bytes": {
            "float32": whole,
            "mean": float(np.mean(sent)) if sent else None,
            "most": max(sent, default=None),
            "ratio": float(np.mean(sent)) / whole if sent else None,
        },
        "per_device": [_device(device) for device in devices],
    }


def _round(
    bench: SharedSetup, honest: Sequence[VirtualDevice], devices: Sequence[VirtualDevice],
    entry: Mapping[str, Any],
    models: Mapping[str, Weights], unseen: NDArray[np.int64], scratch: Path,
) -> dict[str, Any]:  # fmt: skip
    number, digest = int(entry["round"]), entry["model"]
    told = [found for device in honest if (found := _of(device, digest)) is not None]
    weights = models.get(digest)
    asked = (
        bench.evaluate({**bench.initial(), **weights}, scratch, unseen)[0]
        if weights and len(unseen)
        else None
    )
    return {
        "round": number,
        "accepted": bool(entry["accepted"]),
        "seconds": float(entry["ended"]) - float(entry["opened"]),
        "updates": sum(number in device.log.sent for device in devices),
        "left_out": list(entry.get("left_out", [])),
        "unseen": None if asked is None else asked.metric,
        "global": _spread([found.alone.metric for found in told]),
        "mixed": _spread([found.mixed.metric for found in told]),
    }


def _of(device: VirtualDevice, digest: str) -> ModelReport | None:
    return next((told for told in reversed(device.log.models) if told.model == digest), None)


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"mean": float(np.mean(values)), "worst": float(np.min(values)), "std": float(np.std(values))}


def _device(device: VirtualDevice) -> dict[str, Any]:
    last = device.log.models[-1] if device.log.models else None
    return {
        "device": device.name,
        "attack": device.attack,
        "learned": len(device.learned),
        "tested": len(device.kept),
        "global": None if last is None else last.alone.metric,
        "mixed": None if last is None else last.mixed.metric,
        "share": None if last is None else last.share,
        "rounds": len(device.log.sent),
        "bytes": sum(device.log.sent.values()),
    }
