"""Rounds of a fleet in the trainer process: from the announcement to an update that is kept to be sent."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.training.batch_pool import labels_for
from edged.domain.training.training_run import KeptUpdate, RoundResult
from edged.engines import open_engine
from edged.errors import RefusedError
from edged.mqtt import update_encoding
from edged.mqtt.update_encoding import fleet_model
from edged.storage.models.sent_updates import MOVED, PERSONAL, RESIDUAL, ROUNDS, SentUpdates
from edged.trainer.fleet_training import CarriedState, RoundContribution, RoundTrainer
from edged.trainer.quality import quality

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.config import Config
    from edged.domain.federated.evaluation import Quality
    from edged.domain.federated.messages import RoundAnnouncement
    from edged.domain.protocols import Engine, Model
    from edged.domain.training.trainer_messages import TrainRound
    from edged.storage.models.bundles import Bundle
    from edged.storage.samples.log import SampleLog
    from edged.trainer.run import TrainingRun

    Weights = Mapping[str, NDArray[np.float32]]

JUDGED_ROWS = 1024


class FleetUpdateTrainer:
    """Carries out what the daemon orders for a round.

    Parameters
    ----------
    device
        Its name.
    state
        The state directory.
    participant
        Trains.
    own
        All parameters of the device, whose personal layers are trained on.
    last_seq
        The newest position in label order.
    max_bytes
        Cap of the fleet's model when it is unpacked.
    """

    def __init__(
        self,
        device: str,
        state: Path,
        *,
        participant: RoundTrainer,
        own: Callable[[], Weights],
        last_seq: Callable[[], int],
        max_bytes: int,
    ) -> None:
        self._device = device
        self._kept = SentUpdates(state, ROUNDS)
        self._participant, self._own, self._last_seq = participant, own, last_seq
        self._max_bytes = max_bytes

    def contribute(self, order: TrainRound) -> RoundResult:
        """Train in a round, whose settings hold what the device adds to them, and keep the update, durably.

        Raises
        ------
        RefusedError
            When the model is not one for this device.
        CorruptError
            When it is not the model that was announced.
        NoDataError
            When there is nothing to train on.
        """
        started = time.monotonic()
        announced = order.round
        upto = self._last_seq()
        base = fleet_model(order.model, announced.base.hash, self._max_bytes)
        made = self._participant.train_round(
            base,
            announced.config,
            self._own(),
            self._carried(),
            rng=np.random.default_rng(secrets.randbits(256)),
            seconds=order.seconds,
        )
        if not made.coded:
            raise RefusedError("training has changed nothing: there is nothing to send", where="round")
        about = self._about(announced, made, upto)
        kept = self._kept.add(about.to_json(), update_encoding.pack(made.coded), _flat(made.carried))
        return RoundResult(
            run=order.run,
            number=kept.number,
            about=about,
            samples=made.samples,
            steps=made.steps,
            norm=made.norm,
            moved=made.moved,
            before=made.before,
            after=made.after,
            bytes=len(kept.blob),
            seconds=time.monotonic() - started,
        )

    def _about(self, announced: RoundAnnouncement, made: RoundContribution, upto: int) -> KeptUpdate:
        """What goes before the update; with noise nothing that was counted without noise but the samples."""
        loss, metrics = None, {}
        if made.after is not None and not announced.config.noise:
            loss, metrics = made.after.loss, {"metric": made.after.metric}
            if made.before is not None:
                metrics |= {"loss_before": made.before.loss, "metric_before": made.before.metric}
        return KeptUpdate(
            device=self._device,
            round=announced.round,
            id=announced.id,
            base=announced.base.hash,
            samples=made.samples,
            norm=made.norm,
            noise=announced.config.noise,
            loss=loss,
            metrics=metrics,
            consumed=upto,
        )

    def _carried(self) -> CarriedState:
        newest = self._kept.newest()
        if newest is None:
            return CarriedState()
        return CarriedState(newest.held(RESIDUAL), newest.held(PERSONAL), newest.held(MOVED))


def _flat(carried: CarriedState) -> dict[str, NDArray[np.float32]]:
    return {
        **{RESIDUAL + name: value for name, value in carried.residual.items()},
        **{PERSONAL + name: value for name, value in carried.personal.items()},
        **{MOVED + name: value for name, value in carried.moved.items()},
    }


def taking_part(
    config: Config,
    bundle: Bundle,
    engine: str,
    trainee: TrainingRun,
    samples: SampleLog,
    *,
    own: Callable[[], Weights],
    load_model: Callable[[Path], Model],
    rest: Callable[[float], None],
    stopping: Callable[[], bool],
) -> FleetUpdateTrainer:
    """The part of a trainer process in its fleet's rounds.

    Parameters
    ----------
    config
        With the section `fleet`.
    bundle, engine, trainee, samples
        What trains here by itself, and from what.
    own
        All parameters of the model that is served.
    load_model
        Loads a model file, as serving will.
    rest, stopping
        As for a run.
    """
    schema, training = config.stream.to_schema(), config.training

    def begin(held: bool) -> Engine:
        # Only the portable engine can be held to a base.
        return open_engine(
            "portable" if held else engine, bundle, training.threads, providers=training.provider
        )

    def labels(y: NDArray[np.float32]) -> NDArray[Any]:
        return labels_for(bundle.label_loss, y, bundle.output.width)

    def measure(of: Engine) -> Quality | None:
        window = samples.holdout_window(JUDGED_ROWS)
        window = window.take(schema.check(window.x, window.y))
        return quality(of, window, schema, labels(window.y), load_model, bundle.inference_model.suffix)

    participant = RoundTrainer(
        begin=begin, trainable=bundle.trainable, rows=trainee.own_rows, labels=labels, measure=measure,
        rest=rest, stopping=stopping,
    )  # fmt: skip
    return FleetUpdateTrainer(
        config.device.id,
        config.storage.dir,
        participant=participant,
        own=own,
        last_seq=samples.last_seq,
        max_bytes=config.weights.max_bytes,
    )
