"""State directories as earlier versions left them, and what today's daemon makes of them.

Each folder beside this file is one recording, made by `python -m tests.earlier.record` with the version that
its `recorded.json` names: `files.tar.xz` with the state directory and the bundle as a directory, as a file
and as a signed file; `edged.yaml`; and in `recorded.json` what was true when its daemon was killed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.storage.models.checkpoints import Checkpoints
from tests.running_device import wait_until
from tests.steered import data

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.running_device import Listener

WIDTH = 3
EVERY = 200
"""Steps between two checkpoints."""
FIXED = [0.5, -0.25, 1.0]
"""The input whose prediction is recorded."""


def batches(n: int) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """`n` batches of 16 rows whose losses are recorded: whether the first feature is above 0."""
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((16, WIDTH)).astype(np.float32) for _ in range(n)]
    return [(x, (x[:, 0] > 0).astype(np.int64)) for x in rows]


def feed(listener: Listener, name: str, count: int, *, wrong: bool = False) -> None:
    """Samples, and when they are predicted their labels: whether the first feature is above 0."""
    before = len(listener.messages["predictions"])
    rows = np.random.default_rng(len(name) + before).normal(size=(count, WIDTH)).round(3).tolist()
    for i, x in enumerate(rows):
        listener.send("sensors/a", {"id": f"{name}{i}", "x": x})
    listener.wait(lambda: len(listener.messages["predictions"]) >= before + count, 60)
    labels = data(listener, "status")["labels"]
    for i, x in enumerate(rows):
        label = "high" if (x[0] > 0) is not wrong else "low"
        listener.publish("labels/a", json.dumps({"id": f"{name}{i}", "label": label}))
    wait_until(lambda: data(listener, "status")["labels"] == labels + count)


def learned(state: Path) -> tuple[int, dict[str, Any]]:
    """Number of the newest checkpoint and what it says of the learner; nothing where there is none."""
    newest = Checkpoints(state / "checkpoints", 2).latest()
    return (0, {}) if newest is None else (newest.number, newest.state["learner"])
