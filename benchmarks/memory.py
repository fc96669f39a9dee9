"""Peak memory of training with one engine, in a process of its own: `memory.py ENGINE BUNDLE BATCHES`.

Prints two numbers in MB (10^6 bytes): by how much the peak of the resident set grows over what it is after
the imports and with the batches loaded, and the peak itself, without the batches.
"""

from __future__ import annotations

import importlib
import sys
import time
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.native import api
from edged.storage.models.bundles import Bundle

STEPS, SECONDS = 60, 20.0
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# Written to clear_refs, this sets VmHWM back to VmRSS.
RESET_PEAK = "5"


def peak() -> float:
    """VmHWM in MB."""
    lines = STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6


def main() -> None:
    name, folder, batches = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    importlib.import_module(f"edged.engines.{name}")
    if name == "native":
        api.load("api")
    bundle = Bundle.open(folder)
    with np.load(batches) as file:
        x, y = file["x"], file["y"]
    data = list(zip(x, y, strict=True))
    CLEAR.write_text(RESET_PEAK)
    before = peak()
    engine = open_engine(name, bundle)
    engine.begin(LearningRate(1e-3))
    began = time.monotonic()
    for rows, labels in islice(cycle(data), STEPS):
        engine.step(rows, labels)
        if time.monotonic() - began > SECONDS:
            break
    print(peak() - before, peak() - (x.nbytes + y.nbytes) / 1e6)


if __name__ == "__main__":
    main()
