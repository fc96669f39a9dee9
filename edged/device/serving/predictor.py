"""The champion answers every sample, and is exchanged by one reference assignment."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edged.config import GateConfig, ServingConfig
from edged.device.serving.head_teacher import HeadTeacher
from edged.domain.arrays import quantiles
from edged.domain.drift.live import DriftRules, LiveDrift
from edged.domain.json_fields import JsonObject
from edged.domain.judging.expert_mix import Mix, StreamModel, is_untrained, mix_of
from edged.domain.judging.gate import Probation
from edged.domain.judging.metrics import QualityFigures
from edged.domain.judging.outputs import answers, probabilities
from edged.domain.judging.predictions import LiveQuality, Predictions, QualityDrop, RecentAnswers
from edged.domain.protocols import ServedModel
from edged.domain.stream.anomaly import AnomalyRules, AnomalyVerdicts
from edged.domain.stream.schema import Schema
from edged.domain.stream.temporal_context import pad
from edged.errors import ModelError, RefusedError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.domain.judging.prediction_sets import PredictionSets
    from edged.domain.stream.anomaly import Anomalies

Outputs = tuple[NDArray[np.float32], NDArray[np.float32] | None, NDArray[np.bool_] | None]


log = get_logger("edged.serve")

COVERED = 2000  # newest sets of which it is told how many contained the label
ENOUGH_LABELS = 100  # for a share of wrong answers to say something


class Predictor:
    """Predicts with the champion and learns from labels how good it is live.

    `predict` and `label` are called by one thread at a time, `swap` from any other meanwhile. `teacher` has
    the head of `mix` learn each label.
    """

    def __init__(
        self,
        config: ServingConfig,
        gate: GateConfig,
        schema: Schema,
        champion: ServedModel,
        drift: DriftRules | None = None,
        anomaly: AnomalyRules | None = None,
        mix: Mix | None = None,
        sets: PredictionSets | None = None,
        teacher: HeadTeacher | None = None,
    ) -> None:
        self._config = config
        self._gate = gate
        self.schema = schema
        self.champion = champion
        self.previous: ServedModel | None = None
        self.mix = mix or mix_of(schema)
        self.sets = sets
        self.teacher = teacher
        self._memory = RecentAnswers(config.constants.remember, schema)
        self._unkept: tuple[Predictions, NDArray[np.float32] | float] | None = None
        self.quality, self.repeated = LiveQuality(), LiveQuality()
        self._covered = LiveQuality(COVERED)
        self._last: NDArray[np.float32] | float = np.nan  # the newest label
        self.drift = LiveDrift(classes=schema.task == "classify", features=schema.channels, rules=drift)
        self.anomalies: Anomalies | None = None
        if schema.labels_itself:
            from edged.domain.stream.anomaly import Anomalies

            self.anomalies = Anomalies(anomaly or AnomalyRules())
        self._watching = threading.Lock()
        self._probation: Probation | None = None
        self._fall = QualityDrop()
        self._fallen = False
        self.failed: tuple[ServedModel, str] | None = None
        self.predictions = 0
        self.unanswerable = 0
        self.label_delay: int | None = None
        self._newest = 0
        self._overdue: tuple[Probation, float] | None = None
        self._missed = 0  # rows that only the predecessor could answer, in this probation

    # ---- predicting ------------------------------------------------------------------------

    def predict(self, offsets: NDArray[np.int64], x: NDArray[np.float32]) -> Predictions:
        """Return the answers for `x` `(n, d)`.

        A champion that fails is replaced by its predecessor at once. What labels are judged by is kept with
        the next call, so that the answer need not wait for it.

        Raises ModelError when there is no predecessor, or none that answers.
        """
        self._keep()
        if self.teacher is not None:
            self.teacher.refresh()
        made = self._by_champion(offsets, x)
        if self.sets is not None or self._config.min_confidence:
            promise = None if self.sets is None else self.sets.promise(made.output)
            made = replace(made, promise=promise, least=max(made.least, self._config.min_confidence))
        forecast = self.schema.forecast
        self._unkept = made, x[:, forecast] if forecast else self._last
        self.predictions += len(offsets)
        self._newest = int(offsets[-1]) if len(offsets) else self._newest
        return made

    def _keep(self) -> None:
        """Keep what labels of the last prediction will be joined with, and watch how sure it was."""
        unkept, self._unkept = self._unkept, None
        if unkept is None:
            return
        made, repeated = unkept
        self._memory.remember(made, repeated)
        confidence = _unmixed_confidence(made)
        if confidence is not None:
            with self._watching:
                self.drift.confidence(confidence, made.offsets, made.version)

    def answer(self, x: NDArray[np.float32], version: int | None = None) -> Predictions:
        """Predict rows `x` `(n, d)` that are no samples: drift detection and history ignore them.

        They may come without context, as if each was like those before it.

        Raises RefusedError when the model `version` is not loaded; ModelError when no model has an answer.
        """
        if self.teacher is not None:
            self.teacher.refresh()
        x = pad(x, self.schema.width)
        offsets, champion = np.zeros(len(x), np.int64), self.champion
        if version in (None, champion.version):
            made = self._by_champion(offsets, x)
        else:
            previous = self.previous
            if previous is None or previous.version != version:
                raise RefusedError("this version is not loaded", where=f"version {version}")
            made = self._decode(previous, offsets, x, _outputs(previous, x), None)
        self.predictions += len(x)
        return made

    def _by_champion(self, offsets: NDArray[np.int64], x: NDArray[np.float32]) -> Predictions:
        served = self.champion
        while True:
            try:
                made = self._decode(served, offsets, x, self._run(served, x), self.missing)
                # Random weights can be sure of anything: nothing that they say is a class.
                alone = self.mix.head is None and is_untrained(served.model)
                return replace(made, least=np.inf) if alone else made
            except ModelError as problem:
                served = self._fall_back(served, problem)

    def ignore(self, offsets: NDArray[np.int64]) -> None:
        """Judge by no label of these samples, which have been answered."""
        self._keep()
        self._memory.forget(offsets)

    def shadow(self, offsets: NDArray[np.int64], x: NDArray[np.float32]) -> None:
        """Do what can wait until a batch is published: watch its inputs; on probation ask the predecessor."""
        self._keep()
        if len(offsets) == 0:
            return
        with self._watching:
            # Of a window its last reading: in windows that overlap every reading would count several times.
            measured = x[:, : self.schema.measured]
            self.drift.inputs(measured[:, -self.schema.channels :], offsets)
        probation, previous = self._probation, self.previous
        if probation is None or previous is None:
            return
        try:
            raw = previous.model.predict(x)
        except ModelError as problem:
            log.error("previous_failed", version=previous.version, problem=problem.line())
            self._probation = None  # without a predecessor there is nothing to compare with
            return
        self._memory.remember_shadow(offsets, answers(self.schema, raw))

    def _run(self, served: ServedModel, x: NDArray[np.float32]) -> Outputs:
        """Raw outputs as `_outputs` gives them; rows without an answer count."""
        outputs = _outputs(served, x)
        missing = outputs[2]
        if missing is not None:
            self._compare(served, x[missing])
            self.unanswerable += int(missing.sum())
        return outputs

    def _compare(self, served: ServedModel, x: NDArray[np.float32]) -> None:
        """On probation: whether the predecessor answers rows `x` that the champion does not."""
        if self._probation is None or self.previous is None or served is not self.champion:
            return
        try:
            raw = self.previous.model.predict(x)
        except ModelError:
            return
        self._missed += int(np.isfinite(raw).all(axis=1).sum())
        if self._missed >= max(10, self._gate.probation // 10):
            raise ModelError(
                f"no answer to {self._missed} rows that its predecessor answers",
                where=f"version {served.version}",
            )

    def _fall_back(self, served: ServedModel, problem: ModelError) -> ServedModel:
        log.error("champion_failed", version=served.version, problem=problem.line())
        if self.champion is not served:
            return self.champion  # another has taken its place meanwhile
        previous = self.previous
        if previous is not None and previous.version != served.version:
            self.revert(previous)
            self.failed = (served, problem.line())
            return previous
        raise problem

    def _decode(
        self,
        served: ServedModel,
        offsets: NDArray[np.int64],
        x: NDArray[np.float32],
        outputs: Outputs,
        lacks: str | None,
    ) -> Predictions:
        raw, experts, missing = outputs
        answer = answers(self.schema, raw)
        if missing is not None:
            answer[missing] = np.nan  # no class, not the first one
        output, sure = raw, None
        if self.schema.task == "classify":
            output = probabilities(raw)
            sure = np.maximum.reduce(output, axis=1)
        elif self.schema.labels_itself:
            weight = served.scale if served.scale is not None else np.float32(1)
            with np.errstate(over="ignore"):  # infinite: as unusual as can be, and no answer
                output = (np.abs(raw - x) * weight).mean(axis=1, keepdims=True)
        return Predictions(served.version, offsets, answer, output, sure, experts, lacks)

    # ---- exchanging ------------------------------------------------------------------------

    def swap(self, served: ServedModel, *, watch: bool = True) -> None:
        """Serve another model from the next batch on; with `watch` it is on probation."""
        if self.champion.scale is None and served.scale is not None:
            self.quality.clear()  # errors have another unit from now on
            self.repeated.clear()
        self.previous = self.champion
        self._watch(watch)
        self.champion = served

    def revert(self, served: ServedModel) -> None:
        """Serve an earlier model from the next batch on; what has failed is not gone back to."""
        self.champion, self.previous = served, None
        self._watch(False)

    def resume(self, previous: ServedModel) -> None:
        """Go on with a probation that the end of an earlier process cut short."""
        self.previous = previous
        self._watch(True)

    def _watch(self, watch: bool) -> None:
        self._missed = 0
        rules = self._gate
        self._probation = (
            Probation(self.schema.task, rules.probation, rules.probation_drop)
            if watch and rules.probation
            else None
        )

    @property
    def on_probation(self) -> bool:
        """True if the champion is compared with its predecessor."""
        return self._probation is not None

    def expire_probation(self, monotonic: float) -> None:
        """End a probation without labels in time; call this regularly, with monotonic seconds."""
        probation = self._probation
        if probation is None:
            return
        if self._overdue is None or self._overdue[0] is not probation:
            self._overdue = probation, monotonic + self._gate.constants.probation_time
        elif monotonic >= self._overdue[1]:
            log.warning("probation_lapsed", version=self.champion.version, labelled=probation.count)
            self._probation = None

    def label(
        self,
        offsets: NDArray[np.int64],
        y: NDArray[np.float32],
        x: NDArray[np.float32] | None = None,
    ) -> bool | None:
        """Join labels `(n, targets)` to answers. The probation's outcome once it is known.

        `x` `(n, d)` are the samples; without them they are read where the head learns them.
        """
        self._keep()
        champion = self.champion
        good = np.ones(len(offsets), bool)
        if self.schema.open is not None:
            y = self.schema.open.mapped(y)
            good = y[:, 0] >= 0
        offsets, y, x = offsets[good], y[good], None if x is None else x[good]
        joined = self._memory.join(offsets, y, champion.scale, watched=champion.version)
        if joined.experts is not None:
            self.mix.update(joined.experts, joined.labels)
        if self.teacher is not None:
            self.teacher.teach(offsets, y, x)
        if joined.promised is not None and self.sets is not None:
            kept = joined.promised
            covered = self.sets.learn(kept.promise, kept.answers, kept.y)
            self._covered.add(covered.mean(axis=1))
        if len(joined.offsets):
            # The median of this group of labels: a few that are very late say nothing of the rest.
            self.label_delay = int(self._newest - quantiles(joined.offsets, [0.5])[0])
        limit = np.inf if self.anomalies is None else self.anomalies.limit
        usual = joined.errors <= limit
        wrong = joined.errors[usual]
        self.quality.add(wrong)
        self.repeated.add(joined.repeated[np.isfinite(joined.repeated)])
        if len(y) and not self.schema.labels_itself:
            self._last = y[-1]
        with self._watching:
            self.drift.errors(wrong, joined.offsets[usual])
        self._fallen |= self._fall.add(wrong)
        probation = self._probation
        if probation is None:
            return None
        # What is unusual to both says nothing of either: a model need not reconstruct anomalies.
        both = np.minimum(joined.beside, joined.shadow) <= limit
        probation.add(joined.beside[both], joined.shadow[both])
        outcome = probation.outcome()
        if outcome is not None:
            self._probation = None
        return outcome

    @property
    def missing(self) -> str | None:
        """Labels that are missing before answers mean anything, such as `7 of 20 labels`; None later."""
        if not is_untrained(self.champion.model):
            return None
        teacher = None if self.mix.head is None else self.teacher
        return "a first training run" if teacher is None else teacher.missing

    @property
    def knows_one_class(self) -> bool:
        """True if the model is untrained and all labels so far are of one class."""
        head = self.mix.head
        return head is not None and len(head.first) == 1 and is_untrained(self.champion.model)

    def detect_anomalies(
        self, made: Predictions, keys: Sequence[str], ts: NDArray[np.float64]
    ) -> AnomalyVerdicts:
        """Detect unusual samples in a stream that labels itself; none before a model is trained."""
        if self.anomalies is None or self.champion.scale is None:
            return AnomalyVerdicts(np.zeros(len(made.offsets), bool), [])
        return self.anomalies.detect(keys, made.offsets, ts, made.output[:, 0])

    def pop_quality_drop(self) -> bool:
        """Return whether live quality has fallen since the last call."""
        fallen, self._fallen = self._fallen, False
        return fallen

    def drift_state(self) -> JsonObject:
        """The state of the drift detectors, as of one moment; from any thread."""
        with self._watching:
            return self.drift.state()

    def reset_drift(self) -> None:
        """Reset all drift detectors; from any thread."""
        with self._watching:
            rules = self.drift.rules
            self.drift = LiveDrift(
                classes=self.schema.task == "classify", features=self.schema.channels, rules=rules
            )

    def configure(self, gate: GateConfig) -> None:
        """Watch probations by other rules, from the next on."""
        self._gate = gate

    def live_error(self) -> float | None:
        """Return the share of the newest answers that were wrong; None for values and for few labels."""
        known = self.schema.task == "classify" and self.quality.count >= ENOUGH_LABELS
        return self.quality.mean if known else None

    def live_quality(self) -> QualityFigures:
        """Measure the newest labelled predictions, and with `serving.coverage` their sets."""
        of_classes = self.schema.task == "classify"
        ours, repeated = (
            None if mean is None else 1.0 - mean if of_classes else mean
            for mean in (self.quality.mean, self.repeated.mean)
        )
        coverage = None if self.sets is None else self._covered.mean
        return QualityFigures(
            ours, self.quality.count, repeated, of_classes, coverage, sets=self.sets is not None
        )


def _unmixed_confidence(made: Predictions) -> NDArray[np.float32] | None:
    """Return the confidence with equal weights of experts, which change without any change of inputs."""
    if made.experts is None or made.confidence is None:
        return made.confidence
    mean = np.add.reduce(made.experts, axis=1) / np.float32(made.experts.shape[1])  # faster than `mean`
    return np.asarray(np.maximum.reduce(probabilities(mean), axis=1), np.float32)


def _outputs(served: ServedModel, x: NDArray[np.float32]) -> Outputs:
    """Raw outputs, what experts say, and which rows are themselves too extreme for the model; NaN in these.

    None where no row is. Raises when zeros are, too.
    """
    experts = None
    try:
        if isinstance(served.model, StreamModel):
            raw, experts = served.model.predict_both(x)
        else:
            raw = served.model.predict(x)
    except ModelError:
        raw = _one_by_one(served, x)
    finite = np.isfinite(raw)
    if finite.all():
        return raw, experts, None
    if not np.isfinite(served.model.predict(np.zeros_like(x[:1]))).all():
        raise ModelError("the model's output is not finite", where=f"version {served.version}")
    missing = np.asarray(~finite.all(axis=1))
    return np.where(missing[:, None], np.float32("nan"), raw), None, missing


def _one_by_one(served: ServedModel, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Raw outputs where a batch fails as a whole; NaN in the rows to blame. Raises when zeros fail, too."""
    rest = served.model.predict(np.zeros_like(x[:1]))
    raw = np.full((len(x), rest.shape[1]), np.nan, np.float32)
    for i in range(len(x)):
        try:
            raw[i] = served.model.predict(x[i : i + 1])[0]
        except ModelError as problem:
            log.warning("row_unanswerable", version=served.version, problem=problem.line())
    return raw
