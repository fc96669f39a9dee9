"""How good an engine's present weights are on labelled rows: loss, and the metric of the task."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.federated.evaluation import Quality
from edged.domain.judging.outputs import answers, errors
from edged.domain.model_files import file_name
from edged.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edged.domain.protocols import Engine, Model
    from edged.domain.stream.sample import Window
    from edged.domain.stream.schema import Schema

AT_ONCE = 1024


def quality(
    engine: Engine,
    window: Window,
    schema: Schema,
    labels: NDArray[Any],
    load: Callable[[Path], Model],
    suffix: str = ".onnx",
) -> Quality | None:
    """Loss and metric: the accuracy of classes, and the negative mean absolute error of values.

    More is better in both tasks. None without rows, and where the weights give no finite loss.

    Parameters
    ----------
    engine
        Whose weights.
    window
        Rows with their labels.
    schema
        Of the stream.
    labels
        The same labels as the engine takes them.
    load
        Loads the model that the engine exports.
    suffix
        Of the file that it exports.
    """
    if len(window) == 0:
        return None
    try:
        loss = engine.evaluate(window.x, labels)
    except TrainingError:
        return None  # a graph may fail on numbers that are not finite
    if not math.isfinite(loss):
        return None
    with tempfile.TemporaryDirectory(prefix="edged-quality-") as folder:
        path = Path(folder) / file_name(suffix)
        engine.export(path)
        model = load(path)
        parts = range(0, len(window), AT_ONCE)
        raw = np.concatenate([model.predict(window.x[i : i + AT_ONCE]) for i in parts])
    wrong = float(errors(schema, answers(schema, raw), window.y).mean())
    if not math.isfinite(wrong):
        return None
    return Quality(float(loss), 1.0 - wrong if schema.task == "classify" else -wrong)
