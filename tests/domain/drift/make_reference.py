"""Writes reference.json: where river's detectors see drift and warning on the streams of the parity tests.

`pip install river==0.26.1`, then `python -m tests.domain.drift.make_reference` in the repository.
river is no dependency of edged, nor of its tests: they read what this program wrote.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from tests.domain.drift.streams import KINDS, stream

REFERENCE = Path(__file__).with_name("reference.json")
SEEDS = 20


def spans(positions: list[int]) -> list[list[int]]:
    """First and last of each run of neighbours."""
    runs: list[list[int]] = []
    for at in positions:
        if runs and at == runs[-1][1] + 1:
            runs[-1][1] = at
        else:
            runs.append([at, at])
    return runs


def watched(detector: Any, readings: Any) -> dict[str, list[Any]]:
    """Positions of drifts, and spans of warnings where the detector has them."""
    drifts, warnings = [], []
    for at, reading in enumerate(readings):
        detector.update(reading)
        if detector.drift_detected:
            drifts.append(at)
        elif getattr(detector, "warning_detected", False):
            warnings.append(at)
    return {"drifts": drifts, "warnings": spans(warnings)}


def main() -> None:
    river, drift = importlib.import_module("river"), importlib.import_module("river.drift")
    kinds: dict[str, Any] = {
        "adwin": drift.ADWIN,
        "page_hinkley": drift.PageHinkley,
        "ddm": drift.binary.DDM,
        "hddm_w": drift.binary.HDDMW,
    }
    found = {
        name: {k: [watched(make(), stream(name, k, seed)) for seed in range(SEEDS)] for k in KINDS}
        for name, make in kinds.items()
    }
    text = json.dumps({"river": river.__version__, "found": found}, separators=(",", ":"))
    REFERENCE.write_text(text.replace('"}],', '"}],\n').replace("]},{", "]},\n{") + "\n")
    sys.stdout.write(f"{REFERENCE.name}: {REFERENCE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
