"""`edged evaluate`: a recorded stream through the whole loop, on a virtual clock.

The buffer, the triggers, the trainer process, the gate, the registry and the serving code are the
daemon's own; only the broker and the threads are left out, so that the same seed gives the same
result. Prequential: every sample is predicted by the champion of that moment before its label can
be seen. Training takes no virtual time: a candidate is ready at the sample that triggered it.
"""

from __future__ import annotations

import resource
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.clock import VirtualClock
from edged.domain import metrics
from edged.domain.outputs import answers
from edged.domain.sample import Batch, LabelUpdate
from edged.domain.standardise import RunningMoments
from edged.engines.inference import InferenceModel
from edged.errors import ConfigError, TrainingError
from edged.loop.bootstrap import with_bundle
from edged.loop.ingest import Forecast
from edged.loop.learn import Learner
from edged.loop.promote import Promoter
from edged.loop.serve import Server
from edged.storage.bundles import Bundle
from edged.storage.recorded import read_stream
from edged.storage.registry import Registry
from edged.storage.samples import SampleLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edged.config import Config
    from edged.domain.protocols import Served
    from edged.domain.schema import Schema
    from edged.storage.recorded import Recorded

PRETRAIN_SHARE = 0.1
BLOCK = 256
WINDOW = 1000
ALARM_QUANTILE = 0.99


@dataclass(frozen=True)
class Options:
    """How labels come. `delay` is in samples; `rate` is the share that ever arrives."""

    delay: int = 100
    rate: float = 1.0
    seed: int = 0
    pretrain: int | None = None


@dataclass
class Stream:
    """The recorded stream in the shape of the configured task."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    t: NDArray[np.float64]
    keys: list[str]
    labelled: NDArray[np.bool_]
    truth: NDArray[np.float64] | None

    def __len__(self) -> int:
        return len(self.x)


def shape_stream(recorded: Recorded, config: Config, options: Options) -> Stream:
    """Check the recording against the configuration and decide which labels arrive.

    Raises
    ------
    ConfigError
        When widths, labels or lengths do not fit.
    """
    schema = config.stream.to_schema()
    recorded = _named_columns(recorded, schema)
    n, width = recorded.x.shape
    if width != schema.width:
        raise ConfigError(
            f"the data has {width} features, the stream {schema.width}",
            where="stream.features",
            remedy=f"set features: {width}",
        )
    if n < 50:
        raise ConfigError(f"the data has {n} rows, at least 50 are needed", where="--data")
    y, truth = _targets(recorded, schema, config)
    good = schema.check(recorded.x, y) if schema.task != "forecast" else np.isfinite(recorded.x).all(axis=1)
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        raise ConfigError(
            f"{int((~good).sum())} rows have a NaN, an infinity or a label outside the classes, "
            f"the first is row {row}",
            where="--data",
            remedy="clean the file or correct stream.classes",
        )
    t = recorded.t if recorded.t is not None else np.arange(n, dtype=np.float64)
    arrives = np.asarray(np.random.default_rng(options.seed).random(n) < options.rate)
    return Stream(recorded.x, y, t, recorded.key or ["stream"] * n, arrives, truth)


def _named_columns(recorded: Recorded, schema: Schema) -> Recorded:
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
    recorded: Recorded, schema: Schema, config: Config
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
    y = np.asarray(_by_name(recorded, schema), np.float32).reshape(len(recorded.x), -1)
    if y.shape[1] != schema.targets:
        classify = schema.task == "classify"
        raise ConfigError(
            f"the data has {y.shape[1]} targets, the stream {schema.targets}",
            where="--data" if classify else "stream.targets",
            remedy="give one class a row" if classify else f"set targets: {y.shape[1]}",
        )
    return y, None


def _by_name(recorded: Recorded, schema: Schema) -> NDArray[np.float64]:
    """Labels; text labels of the recording as positions in the stream's classes."""
    if recorded.y is None:
        raise ConfigError("the data has no labels y", where="--data")
    if not recorded.classes or schema.task != "classify":
        return np.asarray(recorded.y)
    unknown = [name for name in recorded.classes if name not in schema.classes]
    if unknown:
        raise ConfigError(
            f"the data has the label {unknown[0]!r}",
            where="stream.classes",
            remedy=f"set classes: [{', '.join(recorded.classes)}]",
        )
    places = np.array([schema.classes.index(name) for name in recorded.classes], np.float64)
    return np.asarray(places[np.asarray(recorded.y, np.int64)])


class Replay:
    """The loop on a recorded stream."""

    def __init__(
        self,
        config: Config,
        stream: Stream,
        options: Options,
        folder: Path,
        on_progress: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:
        pretrain = options.pretrain or max(20, int(len(stream) * PRETRAIN_SHARE))
        if not 20 <= pretrain < len(stream):
            raise ConfigError(
                f"{pretrain} rows of pre-training do not fit into {len(stream)}", where="--pretrain"
            )
        self._stream, self._options, self._pretrain = stream, options, pretrain
        self._on_progress = on_progress
        self.schema = config.stream.to_schema()
        config = _in_folder(config, folder, options.seed)
        self.config = config = with_bundle(config, _statistics(config, stream, pretrain))
        self._clock = VirtualClock(float(stream.t[0]))
        self.events: list[dict[str, Any]] = []
        with ExitStack() as stack:
            self._open(stack, config)
            self._close = stack.pop_all()
        self._forecast = (
            Forecast(config.stream.forecast_columns, config.stream.horizon)
            if self.schema.task == "forecast"
            else None
        )
        width = 1 if self.schema.task == "classify" or self.schema.labels_itself else self.schema.targets
        self.answers = np.zeros((len(stream), width), np.float32)
        self.versions = np.zeros(len(stream), np.int64)
        self.labels_used = 0
        self._started = float(stream.t[pretrain])
        self._next_schedule = self._after(self._started)

    def _open(self, stack: ExitStack, config: Config) -> None:
        folder = config.storage.dir
        bundle = Bundle.open(config.model.bundle or folder / "bundle")
        bundle.check_schema(self.schema)
        self.registry = Registry.open(folder)
        stack.callback(self.registry.close)
        self.log = SampleLog.open(
            folder / "samples.db",
            self.schema,
            holdout=config.gate.holdout,
            max_bytes=config.storage.max_bytes,
            max_age=config.storage.max_age,
            quarantine_rows=config.storage.quarantine_rows,
        )
        stack.callback(self.log.close)
        self.promoter = Promoter(
            config=config.gate,
            schema=self.schema,
            registry=self.registry,
            holdout=self.log,
            load_model=self._load_model,
            clock=self._clock,
            keep_models=config.storage.keep_models,
            staging=config.storage.dir / "candidates",
        )
        self.server = Server(
            config.serving, config.gate, self.schema, self.promoter.boot(bundle.inference_model)
        )
        self.learner = Learner(
            config,
            clock=self._clock,
            labelled_since=self.log.labelled_since,
            begin=self.registry.begin_run,
            end=self.registry.end_run,
            notify=self._notify,
        )
        stack.callback(self.learner.process.close)

    def _load_model(self, path: Path) -> InferenceModel:
        return InferenceModel(path, threads=self.config.serving.threads)

    def _notify(self, event: str, fields: dict[str, Any]) -> None:
        self.events.append({"event": event, "sample": self._position, **fields})

    _position = 0

    def _after(self, moment: float) -> float:
        """When the schedule fires next; runs missed in between are made up for once, as in the daemon."""
        every, cron = self.config.training.every, self.config.training.cron
        if cron is not None:
            from apscheduler.triggers.cron import CronTrigger

            after = datetime.fromtimestamp(moment + 1.0, timezone.utc)
            due = CronTrigger.from_crontab(cron, timezone.utc).get_next_fire_time(None, after)
            return float("inf") if due is None else float(due.timestamp())
        if not every:
            return float("inf")
        return self._started + every * (max(0.0, (moment - self._started) // every) + 1.0)

    # ---- running ---------------------------------------------------------------------------

    def run(self) -> None:
        """Pre-train, then the rest of the stream, prequentially.

        Raises
        ------
        TrainingError
            When pre-training failed: there would be nothing to compare with.
        """
        with self._close:
            self.frozen = self._pre_train()
            if self.schema.labels_itself:
                # What is normal is known from here alone: the alarm's threshold follows from it.
                self.answers[: self._pretrain] = self._answers_of(self.frozen)[: self._pretrain]
            position = self._pretrain
            while position < len(self._stream):
                end = min(position + self._block(position), len(self._stream))
                self._replay(position, end)
                position = self._position = end
                self._learn()
                self._on_progress(position, len(self._stream), self.server.champion.version)

    def _pre_train(self) -> Served:
        head = np.arange(self._pretrain)
        for start in range(0, self._pretrain, BLOCK):
            self._append(head[start : start + BLOCK], with_labels=True)
        result = self.learner.train("pretraining", {})
        if result is None:
            raise TrainingError(
                "pre-training failed",
                where="first part of the stream",
                remedy=str(self.events[-1].get("error", "see the log")),
            )
        verdict, served = self.promoter.consider(result, self.server.champion, first=True)
        if served is None:
            raise TrainingError("the pre-trained model is unusable", remedy="; ".join(verdict.reasons))
        self.promoter.crown(served, "pre-training")
        self.first_holdout = self.log.holdout_window(self._pretrain)
        self.promoter.promotions = 0
        self.learner.trainings = 0
        self.server.swap(served, watch=False)
        self.server.quality.clear()
        return served

    def _block(self, position: int) -> int:
        """How many samples can pass before a trigger could fire: each brings one label at most."""
        rules = self.learner.triggers.rules
        need = BLOCK
        if rules.new_labels is not None:
            need = max(1, rules.new_labels - self.learner.new())
        due = int(np.searchsorted(self._stream.t, self._next_schedule, side="left"))
        return max(1, min(BLOCK, need, due - position + 1))

    def _replay(self, start: int, end: int) -> None:
        index = np.arange(start, end)
        self._clock.advance_to(float(self._stream.t[end - 1]))
        made = self.server.predict(index + 1, self._stream.x[index])
        self.server.shadow(index + 1, self._stream.x[index])
        self.answers[index] = made.output if self.schema.labels_itself else made.answers
        self.versions[index] = made.version
        self._append(index, with_labels=False)
        self._arrive(max(self._pretrain, start - self._options.delay), end - self._options.delay)

    def _append(self, index: NDArray[np.int64], *, with_labels: bool) -> None:
        """Store rows; the offset of row i is i + 1."""
        stream = self._stream
        labels: list[Any] = [None] * len(index)
        if with_labels and self._forecast is None and not self.schema.labels_itself:
            labels = [_label(row) for row in stream.y[index]]
        batch = Batch(
            index + 1,
            [stream.keys[i] for i in index],
            stream.t[index],
            stream.t[index],
            stream.x[index],
            labels,
            [None] * len(index),
            [None] * len(index),
        )
        updates = self._forecast.update(batch) if self._forecast is not None else []
        self.log.commit(batch, updates)
        if self.schema.labels_itself:
            self._judge(index, stream.x[index], scored=not with_labels)
        elif updates:
            rows = np.array([u.offset - 1 for u in updates])
            self._judge(rows, stream.y[rows], scored=not with_labels)

    def _arrive(self, start: int, end: int) -> None:
        """Labels of rows `start` to `end` become known."""
        if end <= start or self._forecast is not None or self.schema.labels_itself:
            return
        rows = np.arange(start, end)[self._stream.labelled[start:end]]
        now = self._clock.now()
        self.log.commit(None, [LabelUpdate(int(i) + 1, _label(self._stream.y[i]), now) for i in rows])
        self._judge(rows, self._stream.y[rows], scored=True)

    def _judge(self, rows: NDArray[np.int64], y: NDArray[np.float32], *, scored: bool) -> None:
        if not scored or len(rows) == 0:
            return
        self.labels_used += len(rows)
        outcome = self.server.label(rows + 1, y)
        if outcome is True:
            self.promoter.confirm(self.server.champion.version)
        elif outcome is False:
            self._roll_back()

    def _roll_back(self) -> None:
        failing, previous = self.server.champion.version, self.server.previous
        served = self.promoter.rollback(
            failing, "probation failed", to=previous.version if previous else None
        )
        self.server.swap(served, watch=False)
        self._notify("model_rolled_back", {"from": failing, "to": served.version})

    def _learn(self) -> None:
        if self._clock.now() >= self._next_schedule:
            self.learner.triggers.scheduled = True
            self._next_schedule = self._after(self._clock.now())
        result = self.learner.step()
        if result is None:
            return
        verdict, served = self.promoter.consider(result, self.server.champion)
        if served is None:
            self._notify("candidate_rejected", {"run": result["run"], **verdict.as_dict()})
            return
        self.promoter.crown(served, "; ".join(verdict.reasons))
        self.server.swap(served)
        self._notify("model_promoted", {"run": result["run"], "version": served.version, **verdict.as_dict()})

    # ---- the report ------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """The figures of CONTRACT.md."""
        stream, start = self._stream, self._pretrain
        scored = np.arange(start, len(stream))
        if self.schema.task == "forecast":
            scored = scored[np.isfinite(stream.y[scored]).all(axis=1)]
        return {
            "samples": len(stream),
            "scored": len(scored),
            "metric": self._score(scored, self.answers),
            "frozen": self._score(scored, self._answers_of(self.frozen)),
            "no_change": self._score(scored, self._no_change()),
            "windows": self._windows(scored),
            "trainings": self.learner.trainings,
            "promotions": self.promoter.promotions,
            "rejections": self.promoter.rejections,
            "rollbacks": self.promoter.rollbacks,
            "drifts": [],
            "labels_used": self.labels_used,
            "forgetting": self._forgetting(),
            "engine": self.learner.engine,
            "train_seconds": round(self.learner.train_seconds, 3),
        }

    def _answers_of(self, served: Served) -> NDArray[np.float32]:
        out = np.zeros_like(self.answers)
        for start in range(0, len(self._stream), 4096):
            x = self._stream.x[start : start + 4096]
            raw = served.model.predict(x)
            if self.schema.labels_itself:
                weight = served.scale if served.scale is not None else np.float32(1)
                out[start : start + 4096] = (np.abs(raw - x) * weight).mean(axis=1, keepdims=True)
            else:
                out[start : start + 4096] = answers(self.schema, raw)
        return out

    def _no_change(self) -> NDArray[np.float32]:
        """The last label that had arrived: that of row j is known for rows after j + delay."""
        stream = self._stream
        if self.schema.labels_itself:
            return np.zeros_like(self.answers)
        if self.schema.task == "forecast":
            # The label that arrives with a sample is the sample's own value.
            return stream.x[:, list(self.config.stream.forecast_columns)]
        known = stream.labelled.copy()
        known[: self._pretrain] = True
        newest = np.maximum.accumulate(np.where(known, np.arange(len(stream)), 0))
        # All labels of the pre-training part are known from its end on.
        last = np.maximum(np.arange(len(stream)) - 1 - self._options.delay, self._pretrain - 1)
        return stream.y[newest[last]]

    def _score(self, rows: NDArray[np.int64], answer: NDArray[np.float32]) -> dict[str, float]:
        if self.schema.labels_itself:
            if self._stream.truth is None:
                return {"mean_score": float(answer[rows].mean())}
            threshold = np.quantile(answer[: self._pretrain, 0], ALARM_QUANTILE)
            score = answer[rows, 0].astype(np.float64)
            return metrics.detection(self._stream.truth[rows], score, score > threshold)
        y = self._stream.y[rows].astype(np.float64)
        return metrics.score(self.schema, y, answer[rows].astype(np.float64))

    def _main(self) -> str:
        if self.schema.task == "classify":
            return "accuracy"
        return "mean_score" if self.schema.labels_itself else "mae"

    def _windows(self, scored: NDArray[np.int64]) -> list[float]:
        parts = [scored[i : i + WINDOW] for i in range(0, len(scored), WINDOW)]
        if self.schema.labels_itself:
            return [float(self.answers[part].mean()) for part in parts]
        return [self._score(part, self.answers)[self._main()] for part in parts]

    def _forgetting(self) -> float | None:
        """Loss of skill on the pre-training part's holdout: first champion against the last one.

        Lopez-Paz & Ranzato (2017), backward transfer with the sign turned, for the first task.
        """
        window = self.first_holdout
        if len(window) == 0:
            return None
        ours, theirs = (
            metrics.score(
                self.schema,
                window.y.astype(np.float64),
                answers(self.schema, served.model.predict(window.x)).astype(np.float64),
            )
            for served in (self.server.champion, self.frozen)
        )
        name = "accuracy" if self.schema.task == "classify" else "mae"
        return theirs[name] - ours[name] if name == "accuracy" else ours[name] - theirs[name]


def _label(row: NDArray[np.float32]) -> Any:
    return float(row[0]) if len(row) == 1 else tuple(row.tolist())


def _in_folder(config: Config, folder: Path, seed: int) -> Config:
    storage = config.storage.model_copy(update={"dir": folder})
    training = config.training.model_copy(update={"seed": seed})
    return config.model_copy(update={"storage": storage, "training": training})


def _statistics(config: Config, stream: Stream, rows: int) -> dict[str, list[float]]:
    """Input (and target) statistics of the pre-training part, for the standard bundle."""
    moments = RunningMoments(rows)
    moments.update(stream.x[:rows])
    mean, scale = moments.scale()
    statistics = {"mean": mean.tolist(), "scale": scale.tolist()}
    task = config.stream.resolved_task
    if task in ("regress", "forecast"):
        target = RunningMoments(rows)
        # The last targets of a forecast lie beyond these rows; the column itself has the same statistics.
        columns = list(config.stream.forecast_columns)
        target.update(stream.y[:rows] if task == "regress" else stream.x[:rows, columns])
        mean, scale = target.scale()
        statistics |= {"target_mean": mean.tolist(), "target_scale": scale.tolist()}
    return statistics


def run(
    config: Config,
    data: Path,
    options: Options,
    out: Path | None = None,
    on_progress: Callable[[int, int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Evaluate and return the report; `out` keeps the state directory, else it is temporary.

    Raises
    ------
    EdgedError
        One clear line on anything that stops it.
    """
    started = time.monotonic()
    if out is not None and (out / "samples.db").exists():
        raise ConfigError("holds an evaluation already", where=str(out), remedy="name a new directory")
    stream = shape_stream(read_stream(data), config, options)
    with tempfile.TemporaryDirectory(prefix="edged-evaluate-") as temporary:
        replay = Replay(config, stream, options, out or Path(temporary), on_progress)
        replay.run()
        report = replay.report()
    usage = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return report | {"seconds": round(time.monotonic() - started, 3), "peak_rss_mb": round(usage / 1024, 1)}
