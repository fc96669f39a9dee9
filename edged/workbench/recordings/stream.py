"""A recorded stream in the shape of the configured task, its windows cut as the daemon cuts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.nearest import did_you_mean, one_of
from edged.domain.stream.sample import Reading
from edged.domain.stream.windowing import Windowing
from edged.errors import ConfigError, RejectedSampleError
from edged.storage.recordings import Recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.config import Config
    from edged.domain.stream.sample import LabelValue
    from edged.domain.stream.schema import Schema
    from edged.domain.stream.windowing import WindowRules

SMALLEST = 50


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
        recorded, readings = cut_windows(recorded, config.stream.window.rules())
    n = len(recorded.x)
    if n < SMALLEST:
        raise ConfigError(f"the data has {n} usable rows, at least {SMALLEST} are needed", where="--data")
    y, truth = _targets(recorded, schema, config)
    known = np.asarray(np.isfinite(y).all(axis=1))
    _check_labels(schema, recorded, y, known)
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


def _check_labels(
    schema: Schema, recorded: Recording, y: NDArray[np.float32], known: NDArray[np.bool_]
) -> None:
    if schema.task != "classify" or recorded.y is None:
        return
    label = y[:, 0]
    outside = known & ((label < 0) | (label >= len(schema.classes)) | (label != np.floor(label)))
    if outside.any():
        first = int(np.flatnonzero(outside)[0])
        raise ConfigError(
            f"{int(outside.sum())} rows have a label outside the {len(schema.classes)} classes, the first is "
            f"row {first} with {np.asarray(recorded.y).reshape(len(y), -1)[first, 0]:g}",
            where="stream.classes",
            remedy="correct stream.classes or the file",
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
    y = np.asarray(_by_name(recorded, recorded.y, schema), np.float32).reshape(len(recorded.x), -1)
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


def _by_name(recorded: Recording, y: NDArray[np.float64], schema: Schema) -> NDArray[np.float64]:
    """Labels; text labels of the recording as positions in the stream's classes."""
    if schema.task != "classify":
        return np.asarray(y)
    if schema.open is not None and y.ndim == 1:
        return _by_open_name(recorded, np.asarray(y, np.float64), schema)
    if not recorded.classes:
        return _by_number(np.asarray(y, np.float64), schema)
    unknown = [name for name in recorded.classes if name not in schema.classes]
    if unknown:
        raise ConfigError(
            f"the data has the label {unknown[0]!r}, the stream the classes {one_of(schema.classes)}",
            where="stream.classes",
            remedy=f"set classes: [{', '.join(recorded.classes)}]",
        )
    places = np.array([schema.classes.index(name) for name in recorded.classes], np.float64)
    there = np.isfinite(y)
    positions = np.full(len(y), np.nan)
    positions[there] = places[np.asarray(y[there], np.int64)]
    return positions


def _by_open_name(recorded: Recording, y: NDArray[np.float64], schema: Schema) -> NDArray[np.float64]:
    """Labels as the daemon reads them, one after the other: a new name makes a class."""
    names = recorded.classes or None
    places = {}
    for value in dict.fromkeys(y[np.isfinite(y)].tolist()):
        name = value if names is None else names[int(value)]
        try:
            places[value] = schema.parse_label(name)
        except RejectedSampleError as problem:
            raise ConfigError(problem.what, where="stream.max_classes", remedy="raise it") from problem
    return np.array([places.get(value, np.nan) for value in y.tolist()], np.float64)


def _by_number(y: NDArray[np.float64], schema: Schema) -> NDArray[np.float64]:
    """Numbers as the daemon reads them: names where the classes are named by numbers, else positions."""
    if not schema.numeric_names or y.ndim != 1:
        return y
    names = np.array([float(name) for name in schema.classes])
    places = np.full(len(y), np.nan)
    for position, name in enumerate(names):
        places[y == name] = position
    unknown = np.isfinite(y) & ~np.isfinite(places)
    places[unknown] = -1.0
    return places


def cut_windows(recorded: Recording, rules: WindowRules) -> tuple[Recording, dict[str, int]]:
    """Windows of a recording in which each row is one reading `(n, c)`, and what was counted on the way.

    In a recording without times the readings of a key are evenly spaced, at the rate where there is one; then
    the windows have no times either. Raises ConfigError when not one window comes of it.
    """
    channels = recorded.x.shape[1]
    if recorded.t is None and rules.rate is None:
        rules = replace(rules, max_gap=None)
    windowing = Windowing(rules, channels)
    made = [window for reading in _readings(recorded, rules) for window in windowing.accept(reading)]
    counted = {
        "taken": len(recorded),
        "gaps": windowing.gaps,
        "out_of_order": windowing.late,
        "forgotten": windowing.forgotten,
    }
    if not made:
        raise ConfigError(
            f"no window of {rules.size} readings comes of {len(recorded)} ({windowing.gaps} gaps)",
            where="stream.window",
            remedy="lower size, or see whether rate and max_gap fit the times of the data",
        )
    cut = Recording(
        np.array([window.values for window in made], np.float32),
        _labels(recorded, [window.label for window in made]),
        None if recorded.t is None else np.array([window.ts for window in made]),
        None if recorded.key is None else [window.key for window in made],
        classes=recorded.classes,
    )
    return cut, counted


def _readings(recorded: Recording, rules: WindowRules) -> Iterator[Reading]:
    keys = recorded.key or ["stream"] * len(recorded)
    seen: Counter[str] = Counter()
    for i, key in enumerate(keys):
        ts = seen[key] / (rules.rate or 1.0) if recorded.t is None else float(recorded.t[i])
        seen[key] += 1
        yield Reading(key, recorded.x[i], ts, _label(recorded, i))


def _label(recorded: Recording, i: int) -> LabelValue | None:
    if recorded.y is None or not np.isfinite(recorded.y[i]).all():
        return None
    return float(recorded.y[i]) if recorded.y.ndim == 1 else tuple(recorded.y[i].tolist())


def _labels(recorded: Recording, labels: list[LabelValue | None]) -> NDArray[np.float64] | None:
    if recorded.y is None:
        return None
    unknown = np.full(recorded.y.shape[1:], np.nan)
    return np.array([unknown if label is None else label for label in labels], np.float64)
