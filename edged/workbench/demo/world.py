"""What the demo publishes: a simulated plant, or a recorded stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edged.errors import ConfigError
from edged.storage.recordings import read_stream
from edged.workbench.demo.plant import CLASSES, FEATURES, Plant, phases

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RATE = 180.0  # samples a second: what one core of a laptop publishes with ease while the other trains
COMMISSION = 1500


@dataclass
class DemoStream:
    """What is published: samples `x` `(n, d)`, truth `y` `(n,)`, names, and where it changes."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    names: tuple[str, ...]
    classes: tuple[str, ...]
    phases: list[tuple[int, str]]
    commission: int

    def __len__(self) -> int:
        return len(self.x)


def simulated(seconds: int, seed: int, rate: float | None = None) -> DemoStream:
    """The plant, long enough for `seconds` at the demo's rate; looked at less often at a lower one."""
    total = COMMISSION + int(RATE * seconds)
    commission = min(COMMISSION, int(0.9 * phases(total)[1][0]))
    live = total - commission if rate is None else min(total - commission, int(rate * seconds))
    rows = np.concatenate([np.arange(commission), np.linspace(commission, total - 1, live).astype(int)])
    x, y = Plant(seed, total=total).sample(total)
    return DemoStream(
        x[rows],
        y[rows],
        tuple(f.name for f in FEATURES),
        CLASSES,
        [(int(np.searchsorted(rows, start)), name) for start, name, _ in phases(total)],
        commission,
    )


def replayed(path: Path, seconds: int, rate: float | None = None) -> DemoStream:
    """A recorded classification stream, as much of it as the time allows."""
    recorded = read_stream(path)
    if recorded.y is None or np.asarray(recorded.y).ndim != 1 or (np.asarray(recorded.y) % 1 != 0).any():
        raise ConfigError("the demo replays streams with one class label a row", where=str(path))
    y = np.asarray(recorded.y, np.int64)
    total = min(len(y), COMMISSION + int((rate or RATE) * seconds * 4))
    commission = min(COMMISSION, total // 4)
    classes = recorded.classes or tuple(str(i) for i in range(int(y.max()) + 1))
    return DemoStream(recorded.x[:total], y[:total], (), classes, [(0, path.stem)], commission)
