"""The beginning of a replay: rows of pre-training, and their statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.stream.running_statistics import RunningMoments
from edged.domain.stream.temporal_context import TemporalContext
from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.config import Config
    from edged.domain.stream.schema import Schema
    from edged.workbench.evaluation.stream import LabelOptions, Stream

PRETRAIN_SHARE = 0.1
FEWEST_ROWS = 20


def rows_of_pretraining(config: Config, stream: Stream, options: LabelOptions) -> int:
    """How many rows come first and are not scored; 0 where the bundle has learned elsewhere."""
    rows = options.pretrain
    if rows is None:
        rows = max(FEWEST_ROWS, int(len(stream) * PRETRAIN_SHARE))
    if rows == 0 and config.model.bundle is None:
        raise ConfigError(
            "nothing has been learned yet that could be gone on from",
            where="--pretrain",
            remedy="name model.bundle, or give rows to pre-train on",
        )
    if rows and not FEWEST_ROWS <= rows < len(stream):
        raise ConfigError(
            f"{rows} rows of pre-training do not fit into {len(stream)}", where="--pretrain",
            remedy=f"at least {FEWEST_ROWS}, or 0 for what the bundle has learned already",
        )  # fmt: skip
    return rows


def in_folder(config: Config, folder: Path, seed: int) -> Config:
    """The configuration with its state in `folder`, and this seed."""
    storage = config.storage.model_copy(update={"dir": folder})
    training = config.training.model_copy(update={"seed": seed})
    return config.model_copy(update={"storage": storage, "training": training})


def with_columns(stream: Stream, schema: Schema) -> Stream:
    """The stream with what the model sees its samples beside."""
    context = TemporalContext.of(schema)
    return stream if context is None else replace(stream, x=context.extend(stream.keys, stream.x))


def statistics(config: Config, stream: Stream, rows: int) -> dict[str, list[float]]:
    """Input (and target) statistics of the pre-training part, for the standard bundle."""
    moments, steps = RunningMoments(rows), config.stream.steps
    # A channel has the same statistics wherever in a window it is: so each is known from many more numbers.
    moments.update(stream.x[:rows].reshape(rows * steps, -1))
    mean, scale = (np.tile(values, steps) for values in moments.scale())
    found = {"mean": mean.tolist(), "scale": scale.tolist()}
    if config.stream.resolved_task == "regress":
        target = RunningMoments(rows)
        target.update(stream.y[:rows][stream.known[:rows]])
        if target.mean is None:
            return found  # not one label is known
        mean, scale = target.scale()
        found |= {"target_mean": mean.tolist(), "target_scale": scale.tolist()}
    return found
