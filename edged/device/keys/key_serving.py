"""Answers to samples of keys that have models of their own: both models answer, the better one counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.device.serving.key_answers import Share
from edged.domain.events import DriftDetected, EventOfKey
from edged.domain.judging.outputs import errors
from edged.errors import ModelError
from edged.logs import get_logger

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.device.events import Events
    from edged.device.keys.key_pipeline import KeyPipeline
    from edged.device.keys.key_training import KeyTraining
    from edged.device.keys.loaded_keys import LoadedKeys
    from edged.device.pipeline import Pipeline
    from edged.domain.judging.predictions import Predictions

log = get_logger("edged.keys")

ANSWERS = 10_000  # samples whose two answers wait for their label


class KeyServing:
    """Answers with the models of keys, beside that of the stream, `common`; see `KeyAnswers`.

    `keys` has the pipelines. `training` gets the keys that should train soon.
    """

    def __init__(self, common: Pipeline, keys: LoadedKeys, training: KeyTraining, events: Events) -> None:
        self._common, self._keys, self._training, self._events = common, keys, training, events
        self._answered: dict[int, tuple[KeyPipeline, NDArray[np.float32], NDArray[np.float32]]] = {}
        self._changes = 0

    def split(self, keys: Sequence[str]) -> list[Share]:
        """Who answers samples of these keys, in their order of first appearance."""
        now, common = self._common.clock.monotonic(), self._common.predictor
        if self._changes != self._common.teacher.changes:
            self._changes = self._common.teacher.changes
            for loaded in self._keys.all():
                loaded.teacher.forget()
        groups: dict[str | None, list[int]] = {}
        owners: dict[str | None, KeyPipeline] = {}
        for at, key in enumerate(keys):
            own = self._keys.get(key)
            if own is None:
                if key in self._keys:
                    self._keys.want(key, now)
                groups.setdefault(None, []).append(at)
                continue
            own.used = now
            if own.shares:
                groups.setdefault(None, []).append(at)
            else:
                groups.setdefault(key, []).append(at)
                owners[key] = own
        shares = []
        for owner, rows in groups.items():
            one = owners.get(owner)
            if one is not None:
                one.predictor.expire_probation(now)
            serves = one is not None and one.serves
            predictor = one.predictor if one is not None and serves else common
            shares.append(Share(np.array(rows, np.int64), predictor, owner, serves))
        return shares

    def compare(self, share: Share, made: Predictions, x: NDArray[np.float32], keys: Sequence[str]) -> None:
        """Ask the other model about samples that one has answered; call it once the answers are out."""
        own = None if share.key is None else self._keys.get(share.key)
        if own is None or own.shares:
            return
        common = self._common.predictor
        try:
            if share.own:
                ours, second = made, common.predict(made.offsets, x, keys)
            else:
                ours, second = own.predictor.predict(made.offsets, x, keys), made
        except ModelError as problem:
            log.error("not_compared", key=own.key, problem=problem.line())
            return
        for offset, one, other in zip(made.offsets.tolist(), ours.answers, second.answers, strict=True):
            self._answered[offset] = own, one, other
        while len(self._answered) > ANSWERS:
            del self._answered[next(iter(self._answered))]

    def label(
        self,
        offsets: NDArray[np.int64],
        y: NDArray[np.float32],
        x: NDArray[np.float32] | None = None,
        sources: Sequence[str] | None = None,
    ) -> None:
        """Judge both models by labels `(n, targets)` of samples that both have answered."""
        groups: dict[str, tuple[KeyPipeline, list[int], list[Any], list[Any]]] = {}
        for at, offset in enumerate(offsets.tolist()):
            found = self._answered.pop(offset, None)
            if found is not None:
                own, ours, common = found
                group = groups.setdefault(own.key, (own, [], [], []))
                group[1].append(at)
                group[2].append(ours)
                group[3].append(common)
        for own, rows, own_said, common_said in groups.values():
            own_sources = None if sources is None else [sources[at] for at in rows]
            inputs = None if x is None else x[rows]
            outcome = own.predictor.label(offsets[rows], y[rows], inputs, sources=own_sources)
            self._contest(own, np.stack(own_said), np.stack(common_said), y[rows])
            if outcome is not None:
                version = own.predictor.champion.version
                self._keys.defer(partial(own.rollout.probation_ended, version, outcome))
            self._heed(own)

    def failed(self, share: Share, problem: ModelError) -> None:
        """The model of a key could not answer: the stream's does, until the own one proves better again."""
        log.error("key_model_failed", key=share.key, problem=problem.line())
        own = None if share.key is None else self._keys.get(share.key)
        if own is not None:
            own.contest.give_up()
            self._events.event(own.answering())

    def _contest(
        self,
        own: KeyPipeline,
        ours: NDArray[np.float32],
        common: NDArray[np.float32],
        y: NDArray[np.float32],
    ) -> None:
        schema, scale = self._common.schema, own.predictor.champion.scale
        mapped = y if schema.open is None else schema.open.mapped(y)
        good = (mapped >= 0).all(axis=1) if schema.task == "classify" else np.ones(len(y), bool)
        good &= np.isfinite(ours).all(axis=1) & np.isfinite(common).all(axis=1)
        both = [errors(schema, made[good], mapped[good], scale) for made in (ours, common)]
        if own.contest.add(both[0], both[1]):
            self._events.event(own.answering())

    def _heed(self, own: KeyPipeline) -> None:
        """What the detectors of a key have signalled."""
        predictor = own.predictor
        failed, predictor.failed = predictor.failed, None
        if failed is not None:
            self._keys.defer(partial(own.rollout.champion_failed, failed[0].version, failed[1]))
        for signal in predictor.drift.pop_signals():
            event = DriftDetected(signal.named(self._common.schema.names))
            self._events.event(EventOfKey(own.key, event))
            own.scheduler.drifted(signal, predictor.rise)
            self._keys.defer(partial(own.recall.drifted, signal))
        if predictor.pop_quality_drop():
            own.scheduler.fallen(predictor.rise)
        if own.urgent:
            self._training.should_train(own.key)
