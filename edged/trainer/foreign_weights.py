"""Weights from elsewhere: a candidate made of an update, a model file, or a fleet's model.

A candidate takes over through the gate or not at all; once it has, training continues from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.federated.messages import Quality
from edged.domain.federated.round_orders import FleetModelResult, TryFleetModel
from edged.domain.protocols import Engine, Holdout
from edged.domain.stream.sample import Window
from edged.domain.training.trainer_messages import AdoptInitial, AdoptModel, AdoptWeights
from edged.domain.training.training_run import Candidate, Received, Source
from edged.domain.training.weight_coding import fingerprint
from edged.engines.onnx.fields import parameters_within
from edged.errors import CorruptError, RefusedError, StorageError
from edged.mqtt import weight_encoding
from edged.storage.journal.transfers import read_transfer
from edged.trainer.local_models import FOREIGN, PROBE_ROWS, CandidateExporter, LocalModels
from edged.trainer.task import LearningTask, holdout_rows, in_place, quality

Weights = Mapping[str, NDArray[np.float32]]


class WeightImporter:
    """Makes candidates of weights from elsewhere, with a learner's engine between two runs.

    The engine has the bundle's initial weights; `holdout` has the samples that judge it.
    """

    def __init__(
        self,
        task: LearningTask,
        engine: Engine,
        holdout: Holdout,
        models: LocalModels,
        exporter: CandidateExporter,
    ) -> None:
        self._task, self._engine, self._holdout = task, engine, holdout
        self._models, self._exporter = models, exporter
        self._initial = engine.parameters()

    def import_weights(self, order: AdoptWeights) -> Candidate:
        """Make a candidate of the weights in a complete transfer.

        Raises RefusedError when the update does not fit this model; CorruptError when it is damaged.
        """
        manifest, blob = read_transfer(order.folder)
        weights = self.checked(weight_encoding.received(manifest, blob, weight_encoding.MAX_UPDATE_BYTES))
        return self._candidate(order.run, Received(order.folder.name, manifest.sha256), weights)

    def import_model(self, order: AdoptModel) -> Candidate:
        """Make a candidate of the weights in a model file that a transfer holds.

        Raises RefusedError when it is another network than the bundle's; CorruptError when it is no ONNX
        model.
        """
        manifest, content = read_transfer(order.folder)
        names = (*self._task.bundle.trainable, *self._task.bundle.frozen)
        other = self.checked(parameters_within(content, names))
        return self._candidate(order.run, Received(order.folder.name, manifest.sha256), other)

    def import_initial(self, order: AdoptInitial) -> Candidate:
        """Make a candidate of the bundle's own model, which shows that the bundle trains here."""
        received = Received(order.transfer, order.update)
        return self._candidate(order.run, received, self._initial, source="bundle_install")

    def evaluate_fleet_model(self, order: TryFleetModel) -> FleetModelResult:
        """Evaluate a fleet's model, and make a candidate of it.

        Raises RefusedError when it is not a model of this network; CorruptError when it is not the one that
        was announced.
        """
        own, window = self.own(), holdout_rows(self._holdout, self._task)
        other = self._of_fleet(order.model, order.hash)
        judged, serves = self._quality(other, window), fingerprint(other) == fingerprint(own)
        candidate = None
        if order.adopt and not serves:
            received, loss = Received(order.id, order.hash), None if judged is None else judged.loss
            candidate = self._candidate(order.run, received, other, loss)
        return FleetModelResult(
            run=order.run,
            samples_judged=len(window),
            before=self._quality(own, window),
            model=judged,
            standing=self._standing(order, window),
            candidate=candidate,
            serves=serves,
        )

    def own(self) -> Weights:
        """Return all parameters of the model that is served."""
        return self._models.champion_parameters() or self._engine.parameters()

    def _of_fleet(self, model: Path, expected: str) -> Weights:
        return self.checked(weight_encoding.fleet_model(model, expected))

    def _standing(self, order: TryFleetModel, window: Window) -> Quality | None:
        """Evaluate what the fleet had before; None where that is no longer kept here, or damaged."""
        if order.standing is None or order.standing_hash is None:
            return None
        try:
            return self._quality(self._of_fleet(order.standing, order.standing_hash), window)
        except (CorruptError, RefusedError, StorageError):
            return None

    def _quality(self, values: Weights, window: Window) -> Quality | None:
        with in_place(values, self._engine):
            return quality(self._engine, window, self._task)

    def checked(self, other: Weights) -> Weights:
        """Return the update's parameters, and the present ones where it may leave them out; all finite."""
        present = self.own()
        for name, value in other.items():
            where = f"parameter {name}"
            if name not in present:
                raise RefusedError("this device's model has no such parameter", where=where)
            if value.shape != present[name].shape:
                raise RefusedError(f"has shape {value.shape}, here {present[name].shape}", where=where)
            if not np.isfinite(value).all():
                raise RefusedError("holds numbers that are not finite", where=where)
        left_out = set(self._task.bundle.trainable) - other.keys()
        if left_out:
            raise RefusedError("the update leaves it out", where=f"parameter {min(left_out)}")
        return {**present, **other}

    def _candidate(
        self,
        run: int,
        received: Received,
        chosen: Weights,
        loss: float | None = None,
        source: Source = FOREIGN,
    ) -> Candidate:
        probe = self._holdout.holdout_window(PROBE_ROWS).x
        if len(probe) == 0:
            probe = np.zeros((1, self._task.schema.width), np.float32)
        with in_place(chosen, self._engine):
            folder = self._exporter.export(run, self._engine, probe, weight_encoding.pack(chosen))
        return Candidate(
            run, folder, self._task.bundle.fingerprint, source, loss_last=loss, received=received
        )
