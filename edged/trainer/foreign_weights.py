"""Weights from elsewhere, in the trainer process: a candidate made of an update, and where to go on.

An update becomes a candidate in the proportion with the champion's own weights that has the smallest loss on
the device's holdout. It takes over through the gate or not at all; once it has, training goes on from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edged.domain.federated.personal_layers import fitting, only
from edged.domain.training.batch_pool import labels_for
from edged.domain.training.training_run import Candidate, FleetModelResult, Received
from edged.domain.training.weight_deltas import fingerprint
from edged.domain.training.weight_mixing import SHARES, best_share, mixed
from edged.engines.model_parameters import WEIGHTS_FILE, initial_parameters, parameters_of
from edged.engines.onnx.exported import parameters_within
from edged.errors import CorruptError, EdgedError, RefusedError, StorageError, TrainingError
from edged.mqtt import update_encoding, weight_encoding
from edged.storage.files.atomic import read_manifest
from edged.storage.journal.transfers import read_transfer
from edged.storage.models.candidates import publish_candidate
from edged.storage.models.registry import MODELS, champion_folder, present_reign
from edged.storage.models.sent_updates import PERSONAL, ROUNDS, SentUpdates
from edged.trainer.quality import quality

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.domain.federated.evaluation import Quality
    from edged.domain.protocols import Engine, Holdout, Model
    from edged.domain.stream.sample import Window
    from edged.domain.stream.schema import Schema
    from edged.domain.training.trainer_messages import AdoptInitial, AdoptModel, AdoptWeights, TryFleetModel
    from edged.domain.training.training_run import Source
    from edged.storage.models.bundles import Bundle

    Weights = Mapping[str, NDArray[np.float32]]

T = TypeVar("T")
SOURCE: Source = "weights"
JUDGED_ROWS = 1024
PROBE_ROWS = 16


class WeightImporter:
    """Makes candidates of updates that came in, with the engine of a trainee between two runs.

    Parameters
    ----------
    schema, bundle, engine, holdout
        Of the stream.
    state
        The state directory.
    load_model
        Loads a model file, as serving will.
    max_bytes
        Cap of an update when it is unpacked.
    quantised
        Files of the quantised form of a model with these weights, where it is wanted.
    """

    def __init__(
        self,
        *,
        schema: Schema,
        bundle: Bundle,
        engine: Engine,
        holdout: Holdout,
        state: Path,
        load_model: Callable[[Path], Model],
        max_bytes: int,
        quantised: Callable[[Weights], dict[str, bytes]] = lambda _: {},
    ) -> None:
        self._schema = schema
        self._bundle = bundle
        self._engine = engine
        self._holdout = holdout
        self._state = state
        self._load_model = load_model
        self._max_bytes = max_bytes
        self._quantised = quantised
        self._initial = engine.parameters()

    def apply(self, order: AdoptWeights) -> Candidate:
        """The candidate of a transfer that has come whole.

        Raises
        ------
        RefusedError
            When the update does not fit this model, builds on weights that are not known here, or is worse
            than the champion in every proportion.
        CorruptError
            When it is damaged.
        """
        manifest, chunks = read_transfer(order.folder)
        blob = weight_encoding.join(manifest, chunks)
        other = self._fitting(update_encoding.received(manifest, blob, self._known, self._max_bytes))
        own = self._champion() if order.mix else None
        losses = self._losses(own, other) if own is not None else {}
        share = best_share(losses) if losses else 1.0
        if share == 0.0:
            told = ", ".join(f"{tried:g}: {loss:.4g}" for tried, loss in losses.items())
            raise RefusedError(f"the device's own weights do better on its holdout: losses by share {told}")
        chosen = other if share is None or own is None else mixed(own, other, share)
        received = Received(
            order.folder.name,
            manifest["sha256"],
            share=1.0 if share is None else share,
            losses={f"{tried:g}": loss for tried, loss in losses.items()},
        )
        return self._candidate(order.run, received, chosen, None if share is None else losses.get(share))

    def model(self, order: AdoptModel) -> Candidate:
        """The candidate that has the weights of a model file which has come whole, unmixed.

        Raises
        ------
        RefusedError
            When it is another network than the bundle's.
        CorruptError
            When it is no ONNX model.
        """
        manifest, chunks = read_transfer(order.folder)
        names = (*self._bundle.trainable, *self._bundle.frozen)
        other = self._fitting(parameters_within(b"".join(chunks), names))
        return self._candidate(order.run, Received(order.folder.name, manifest["sha256"]), other)

    def of_fleet(self, order: TryFleetModel) -> FleetModelResult:
        """What a fleet's model is worth here: its evaluation, and a candidate where a share of it helps.

        Of the personal layers, the ones that the device's last round has trained are mixed like the rest.

        Raises
        ------
        RefusedError
            When it is not a model of this network.
        CorruptError
            When it is not the one that was announced.
        """
        own, patterns = self.own(), order.personal
        other = self._of_fleet(order.model, order.hash, own, patterns)
        window = self._judged()
        losses = self._losses(own, other)
        share = best_share(losses)
        best = None if share is None else mixed(own, other, share)
        serves = best is not None and fingerprint(best) == fingerprint(own)
        candidate = None
        if order.adopt and best is not None and share is not None and not serves:
            received = Received(order.id, order.hash, share)
            candidate = self._candidate(order.run, received, best, losses.get(share))
        return FleetModelResult(
            run=order.run,
            share=share,
            samples_judged=len(window),
            before=self._quality(own, window),
            model=self._quality(other, window),
            standing=self._standing(order, own, patterns, window),
            mixed=None if best is None else self._quality(best, window),
            candidate=candidate,
            serves=serves,
        )

    def _of_fleet(self, model: Path, expected: str, own: Weights, patterns: Sequence[str]) -> Weights:
        shared = update_encoding.fleet_model(model, expected, self._max_bytes)
        last = SentUpdates(self._state, ROUNDS).newest()
        trained = {} if last is None else only(last.held(PERSONAL), patterns)
        return fitting(shared, {**own, **trained}, self._bundle.trainable, patterns)

    def _standing(
        self, order: TryFleetModel, own: Weights, patterns: Sequence[str], window: Window
    ) -> Quality | None:
        """What the fleet had before, where that is still kept here and whole."""
        if order.standing is None or order.standing_hash is None:
            return None
        try:
            return self._quality(self._of_fleet(order.standing, order.standing_hash, own, patterns), window)
        except (CorruptError, RefusedError, StorageError):
            return None

    def _quality(self, values: Weights, window: Window) -> Quality | None:
        return self._with(
            values,
            lambda: quality(
                self._engine, window, self._schema, self._labels(window), self._load_model,
                self._bundle.inference_model.suffix,
            ),
        )  # fmt: skip

    def initial(self, order: AdoptInitial) -> Candidate:
        """The candidate that is the bundle's own model; that it is made shows that the bundle trains here."""
        received = Received(order.transfer, order.update)
        return self._candidate(order.run, received, self._initial, source="bundle_install")

    def own(self) -> dict[str, NDArray[np.float32]]:
        """All parameters of the model that is served."""
        return self._champion() or self._engine.parameters()

    def _fitting(self, other: Weights) -> dict[str, NDArray[np.float32]]:
        """The update's parameters, those that it may leave out as they are; all of them finite."""
        present = self.own()
        for name, value in other.items():
            where = f"parameter {name}"
            if name not in present:
                raise RefusedError("this device's model has no such parameter", where=where)
            if value.shape != present[name].shape:
                raise RefusedError(f"has shape {value.shape}, here {present[name].shape}", where=where)
            if not np.isfinite(value).all():
                raise RefusedError("holds numbers that are not finite", where=where)
        left_out = set(self._bundle.trainable) - other.keys()
        if left_out:
            raise RefusedError("the update leaves it out", where=f"parameter {min(left_out)}")
        return {**present, **other}

    def _judged(self) -> Window:
        window = self._holdout.holdout_window(JUDGED_ROWS)
        good = self._schema.check(window.x, window.y)
        return window if good.all() else window.take(good)

    def _labels(self, window: Window) -> NDArray[Any]:
        return labels_for(self._bundle.label_loss, window.y, self._bundle.output.width)

    def _losses(self, own: Weights, other: Weights) -> dict[float, float]:
        window = self._judged()
        if len(window) == 0:
            return {}
        labels = self._labels(window)
        return {share: self._loss(mixed(own, other, share), window.x, labels) for share in SHARES}

    def _loss(self, values: Weights, x: NDArray[np.float32], labels: NDArray[Any]) -> float:
        def evaluate() -> float:
            try:
                return self._engine.evaluate(x, labels)
            except TrainingError:
                return float("nan")  # a graph may fail on numbers that are not finite

        return self._with(values, evaluate)

    def _candidate(
        self,
        run: int,
        received: Received,
        chosen: Weights,
        loss: float | None = None,
        source: Source = SOURCE,
    ) -> Candidate:
        folder, bundle = self._publish(run, chosen), self._bundle.fingerprint
        return Candidate(run, folder, bundle, source, loss_last=loss, received=received)

    def _publish(self, run: int, chosen: Weights) -> Path:
        probe = self._holdout.holdout_window(PROBE_ROWS).x
        if len(probe) == 0:
            probe = np.zeros((1, self._schema.width), np.float32)
        notes = {WEIGHTS_FILE: weight_encoding.pack(chosen), **self._quantised(chosen)}
        folder, suffix = self._state / "candidates", self._bundle.inference_model.suffix
        return self._with(
            chosen,
            lambda: publish_candidate(
                folder, run, self._engine.export, self._load_model, probe, notes, suffix=suffix
            ),
        )

    def _with(self, values: Weights, act: Callable[[], T]) -> T:
        """Do something with these weights in the engine, and put its own back."""
        before = self._engine.parameters()
        self._engine.set_parameters(values)
        try:
            return act()
        finally:
            self._engine.set_parameters(before)

    # ---- what is known here ----------------------------------------------------------------

    def _champion(self) -> dict[str, NDArray[np.float32]] | None:
        folder = champion_folder(self._state)
        return None if folder is None else _readable(folder, self._bundle)

    def _known(self, wanted: str) -> Weights | None:
        return next((values for values in self._candidates() if fingerprint(values) == wanted), None)

    def _candidates(self) -> Iterator[Weights]:
        """What a difference may be to: models of this device, what it has sent, the bundle's own."""
        champion = champion_folder(self._state)
        folders = sorted((self._state / MODELS).iterdir(), key=lambda path: path != champion)
        for folder in folders:
            if folder.name.isdigit() and (found := _readable(folder, self._bundle)) is not None:
                yield found
        for sent in SentUpdates(self._state).all():
            yield sent.held()
        if self._bundle.portable is not None:
            yield initial_parameters(self._bundle)


def _readable(folder: Path, bundle: Bundle) -> dict[str, NDArray[np.float32]] | None:
    try:
        return parameters_of(folder, bundle, lambda blob: weight_encoding.unpack(blob)[0])
    except EdgedError:
        return None


def weights_to_follow(
    state: Path, bundle: Bundle, followed: int
) -> tuple[int, dict[str, NDArray[np.float32]]] | None:
    """Version and weights that training is to go on from, other than its own; None where there are none.

    Those are a champion's that came from elsewhere after version `followed`, and where that one was rolled
    back, those of the model that is served in its place.
    """
    reign = present_reign(state)
    if reign is None or reign.version == followed:
        return None
    folder = state / MODELS / str(reign.version)
    try:
        source = read_manifest(folder)["model"]["source"]
    except (StorageError, CorruptError, KeyError, TypeError):
        return None
    # Below 0 stands for a learner that begins anew, though another bundle was learned from before.
    arrived = (source == SOURCE and reign.version > followed) or followed < 0
    undone = followed > 0 and reign.previous == followed and reign.outgoing == "rolled_back"
    found = _readable(folder, bundle) if arrived or undone else None
    return None if found is None else (reign.version, found)
