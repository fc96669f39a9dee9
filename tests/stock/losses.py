"""Losses of the portable engine, as a program that runs where edged is installed: `python losses.py FOLDER`.

For every bundle `FOLDER/<name>` it takes the batches in `FOLDER/<name>.npz` (`x` and `y`, one row of each
array a batch) and prints one JSON object of the losses, `{name: [...]}`. It needs no more than edged does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.storage.models.bundles import Bundle

RATE = LearningRate(0.01, warmup=5, total=400)


def losses(name: str, bundle: Path, batches: Path) -> list[float]:
    """The loss of every step of engine `name`, from the bundle's own weights."""
    engine = open_engine(name, Bundle.open(bundle))
    engine.begin(RATE)
    with np.load(batches, allow_pickle=False) as data:
        return [engine.step(x, y).loss for x, y in zip(data["x"], data["y"], strict=True)]


def main(folder: Path) -> None:
    """Print the losses of all bundles in `folder`."""
    found = {
        path.stem: losses("portable", path.with_suffix(""), path) for path in sorted(folder.glob("*.npz"))
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
