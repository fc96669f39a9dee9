"""Writes reference.json: where river's ADWIN sees drift on the streams of the parity tests.

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


def drifts(detector: Any, readings: Any) -> list[int]:
    """Positions of drifts."""
    return [at for at, reading in enumerate(readings) if detector.update(reading).drift_detected]


def main() -> None:
    river, drift = importlib.import_module("river"), importlib.import_module("river.drift")
    found = {kind: [drifts(drift.ADWIN(), stream(kind, seed)) for seed in range(SEEDS)] for kind in KINDS}
    REFERENCE.write_text(json.dumps({"river": river.__version__, "drifts": found}) + "\n")
    sys.stdout.write(f"{REFERENCE.name}: {REFERENCE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
