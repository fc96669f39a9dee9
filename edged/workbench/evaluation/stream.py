"""A recorded stream in the shape of the configured task, and what a replay begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.config import Config
from edged.domain.stream.running_statistics import RunningMoments
from edged.domain.stream.sample import Batch
from edged.domain.stream.schema import Schema
from edged.domain.stream.temporal_context import TemporalContext
from edged.domain.stream.windowing import Windowing, WindowRules
from edged.errors import ConfigError, RejectedSampleError, did_you_mean, one_of
from edged.storage.recordings.rows import Recording
from edged.storage.recordings.samples import cut_windows

SMALLEST = 50  # rows
PRETRAIN_SHARE = 0.1
FEWEST_ROWS = 20


@dataclass(frozen=True)
class LabelOptions:
    """How labels come. `delay` is in samples; `rate` is the share that ever arrives.

    With `ask` those arrive that the device asks for, `rate` of all, instead of random ones.
    """

    delay: int = 100
    rate: float = 1.0
    seed: int = 0
    pretrain: int | None = None
    ask: bool = False


@dataclass
class Stream:
    """The recorded stream in the shape of the configured task.

    `known` are rows whose target the recording has at all, `labelled` those of them whose label ever
    arrives; `refused` counts rows that a daemon would have quarantined, which are left out, and `warnings`
    says why; `sources` where each label comes from, None where all come from the same; `readings` what
    became of the readings that windows were cut from, None where the rows are samples already.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    t: NDArray[np.float64]
    keys: list[str]
    labelled: NDArray[np.bool_]
    known: NDArray[np.bool_]
    truth: NDArray[np.float64] | None
    refused: int = 0
    readings: dict[str, int] | None = None
    warnings: tuple[str, ...] = ()
    sources: list[str] | None = None

    def __len__(self) -> int:
        return len(self.x)


def shape_stream(recorded: Recording, config: Config, options: LabelOptions) -> Stream:
    """Check the recording against the configuration and decide which labels arrive.

    ConfigError when widths, labels or lengths do not fit.
    """
    schema = config.stream.to_schema()
    recorded = _named_columns(recorded, schema)
    _check_width(recorded.x.shape[1], schema)
    left_out = recorded.left_out()
    rows = len(recorded)
    recorded, readings = recorded.finite(), None
    refused = rows - len(recorded)
    if config.stream.window is not None and recorded.x.shape[1] == schema.channels and len(recorded):
        recorded, readings = _cut_windows(recorded, config.stream.window.rules())
    n = len(recorded.x)
    if n < SMALLEST:
        raise ConfigError(f"the data has {n} usable rows, at least {SMALLEST} are needed", where="--data")
    y, truth = _targets(recorded, schema, config)
    known = np.asarray(np.isfinite(y).all(axis=1))
    t = recorded.t if recorded.t is not None else np.arange(n, dtype=np.float64)
    arrives = np.asarray(np.random.default_rng(options.seed).random(n) < options.rate)
    return Stream(
        recorded.x, np.nan_to_num(y), t, recorded.key or ["stream"] * n, arrives & known, known, truth,
        refused, readings, () if left_out is None else (left_out,),
    )  # fmt: skip


def _check_width(width: int, schema: Schema) -> None:
    """Rows are samples; or, where samples are windows, readings."""
    if width in (schema.width, schema.channels):
        return
    if schema.steps > 1:
        raise ConfigError(
            f"the data has {width} numbers in a row: it takes {schema.channels} for a reading,"
            f" or {schema.width} for a window",
            where="stream.features",
            remedy=f"set features: {width}, or another stream.window.size",
        )
    raise ConfigError(
        f"the data has {width} features, the stream {schema.width}",
        where="stream.features",
        remedy=f"set features: {width}",
    )


def _named_columns(recorded: Recording, schema: Schema) -> Recording:
    """The stream's features by name, where the recording has names; else by position."""
    found = [name for name in schema.names if name in recorded.names]
    if not found:
        return recorded
    if len(found) < len(schema.names):
        missing = next(name for name in schema.names if name not in found)
        raise ConfigError(
            f"the data has no column {missing!r}",
            where="stream.features",
            remedy=f"it has {', '.join(recorded.names)}",
        )
    columns = [recorded.names.index(name) for name in found]
    return replace(recorded, x=np.ascontiguousarray(recorded.x[:, columns]), names=schema.names)


def _targets(
    recorded: Recording, schema: Schema, config: Config
) -> tuple[NDArray[np.float32], NDArray[np.float64] | None]:
    """Targets `(n, targets)`, and the recorded truth where it serves for scoring only."""
    if recorded.classes and schema.task in ("regress", "reconstruct"):
        raise ConfigError(
            f"the data has labels such as {recorded.classes[0]!r}, task {schema.task} needs numbers",
            where="stream.task",
            remedy=f"set classes: [{', '.join(recorded.classes)}]"
            if schema.task == "regress"
            else "write 0 for normal and 1 for anomalous",
        )
    if schema.labels_itself:
        truth = (
            None
            if recorded.y is None
            else np.asarray(recorded.y, np.float64).reshape(len(recorded.x), -1)[:, 0]
        )
        return recorded.x, truth
    if schema.task == "forecast":
        columns, horizon = list(config.stream.forecast_columns), config.stream.horizon
        future = np.full((len(recorded.x), len(columns)), np.nan, np.float32)
        waiting: dict[str, list[int]] = {}
        for i, key in enumerate(recorded.key or ["stream"] * len(recorded.x)):
            line = waiting.setdefault(key, [])
            line.append(i)
            if len(line) > horizon:
                future[line[-1 - horizon]] = recorded.x[i, columns]
        return future, None
    if recorded.y is None:
        raise _no_labels(recorded, config.stream.label_path)
    values = recorded.y
    if schema.task == "classify" and values.ndim == 1:
        values = _class_positions(recorded, values, schema)
    y = np.asarray(values, np.float32).reshape(len(recorded.x), -1)
    if schema.target_max is not None:
        y = np.minimum(y, np.float32(schema.target_max))
    if y.shape[1] != schema.targets:
        classify = schema.task == "classify"
        raise ConfigError(
            f"the data has {y.shape[1]} targets, the stream {schema.targets}",
            where="--data" if classify else "stream.targets",
            remedy="give one class a row" if classify else f"set targets: {y.shape[1]}",
        )
    return y, None


def _no_labels(recorded: Recording, label: str | None) -> ConfigError:
    wanted = "y, label or target" if label is None else f"{label!r} (stream.label), or y, label or target"
    near = did_you_mean(label, recorded.columns) if label else None
    there = f"it has {one_of(recorded.columns)}; stream.label names the column"
    return ConfigError(f"the data has no labels: no column {wanted}", where="--data", remedy=near or there)


def _class_positions(recorded: Recording, y: NDArray[np.float64], schema: Schema) -> NDArray[np.float64]:
    """Labels `(n,)` as positions in the stream's classes, read as the daemon reads them."""
    places = {}
    for value in dict.fromkeys(y[np.isfinite(y)].tolist()):
        name = recorded.classes[int(value)] if recorded.classes else value
        try:
            places[value] = schema.parse_label(name)
        except RejectedSampleError as problem:
            rows, names = np.flatnonzero(y == value), ", ".join(recorded.classes)
            raise ConfigError(
                f"{len(rows)} rows have the label {name!r}, the first is row {rows[0]}: {problem.what}",
                where="stream.classes",
                remedy=f"set classes: [{names}]" if names else "correct stream.classes or the file",
            ) from problem
    return np.array([places.get(value, np.nan) for value in y.tolist()], np.float64)


def _cut_windows(recorded: Recording, rules: WindowRules) -> tuple[Recording, dict[str, int]]:
    """Windows of a recording in which each row is one reading `(n, c)`, and what was counted on the way.

    In a recording without times the readings of a key are evenly spaced, at the rate where there is one; then
    the windows have no times either. Raises ConfigError when not one window comes of it.
    """
    n, keys = len(recorded), recorded.key or ["stream"] * len(recorded)
    if recorded.t is None and rules.rate is None:
        rules = replace(rules, max_gap=None)
    windowing = Windowing(rules, recorded.x.shape[1])
    ts = _even_times(keys, rules.rate or 1.0) if recorded.t is None else recorded.t
    made = cut_windows(Batch(np.arange(n), keys, ts, ts, recorded.x, _label_values(recorded.y, n)), windowing)
    counted = {
        "taken": n,
        "gaps": windowing.gaps,
        "out_of_order": windowing.late,
        "forgotten": windowing.forgotten,
    }
    if not len(made):
        raise ConfigError(
            f"no window of {rules.size} readings comes of {n} ({windowing.gaps} gaps)",
            where="stream.window",
            remedy="lower size, or see whether rate and max_gap fit the times of the data",
        )
    y = None
    if recorded.y is not None:
        unknown = np.full(recorded.y.shape[1:], np.nan)
        y = np.array([unknown if label is None else label for label in made.labels], np.float64)
    cut = replace(
        recorded,
        x=made.x,
        y=y,
        t=None if recorded.t is None else made.ts,
        key=None if recorded.key is None else made.keys,
        names=(),
    )
    return cut, counted


def _even_times(keys: Sequence[str], rate: float) -> NDArray[np.float64]:
    """Times of readings that come at `rate` per key."""
    seen: Counter[str] = Counter()
    times = np.empty(len(keys))
    for i, key in enumerate(keys):
        times[i] = seen[key] / rate
        seen[key] += 1
    return times


def _label_values(y: NDArray[np.float64] | None, n: int) -> list[Any]:
    """Labels as readings have them, None where there is none."""
    if y is None:
        return [None] * n
    known = np.asarray(np.isfinite(y.reshape(n, -1)).all(axis=1)).tolist()
    values = y.tolist() if y.ndim == 1 else list(map(tuple, y.tolist()))
    return [value if there else None for value, there in zip(values, known, strict=True)]


# ---- the beginning of a replay -------------------------------------------------------------------


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
    training = config.training.with_constants(seed=seed)
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
