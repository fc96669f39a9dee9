"""How hard each sample is for an engine's present weights."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.judging.outputs import probabilities, unit_scale
from edged.domain.training.hard_examples import Hardness, losses

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.domain.protocols import Engine, Model
    from edged.domain.stream.sample import Window
    from edged.domain.stream.schema import Schema

AT_ONCE = 1024


def hardness(engine: Engine, rows: Window, schema: Schema, load: Callable[[Path], Model]) -> Hardness:
    """Losses of rows, oldest offset first, by the model that the engine would export now."""
    if len(rows) == 0:
        return Hardness(np.empty(0, np.int64), np.empty(0))
    with tempfile.TemporaryDirectory(prefix="edged-hard-") as folder:
        path = Path(folder) / "model.onnx"
        engine.export(path)
        model = load(path)
        raw = np.concatenate([model.predict(rows.x[i : i + AT_ONCE]) for i in range(0, len(rows), AT_ONCE)])
    classify = schema.task == "classify"
    made = probabilities(raw) if classify else raw
    unit = 1.0 if classify or len(rows) < 2 else unit_scale(rows.y)
    order = np.argsort(rows.offsets, kind="stable")
    return Hardness(rows.offsets[order], losses(schema.task, made, rows.y, unit)[order])
