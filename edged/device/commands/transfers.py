"""What comes into the device in chunks (weights, models, bundles), wired together with its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.device.commands.announce import TransferCommands
from edged.device.commands.install import InstallCommands
from edged.device.commands.weights import WeightsCommands
from edged.device.events import Extension
from edged.device.transfers.installer import TransferInstaller
from edged.device.transfers.receiver import TransferReceiver
from edged.domain.training.trainer_messages import AdoptModel, AdoptWeights
from edged.storage.journal.transfers import TransferStaging

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edged.clock import Clock
    from edged.config import Config
    from edged.device.events import Events
    from edged.device.learning.trainer_client import TrainerClient
    from edged.device.learning.worker import TrainingWorker
    from edged.device.outbound.publisher import OutboundRouter
    from edged.device.outbound.weight_updates import WeightUpdates
    from edged.device.promotion.rollout import Rollout
    from edged.device.transfers.bundle_installer import BundleInstaller
    from edged.domain.training.training_run import Candidate
    from edged.mqtt.client.session import Session
    from edged.mqtt.topics import Topics
    from edged.storage.journal.transfers import Transfer
    from edged.storage.models.registry import Registry

Request = dict[str, Any]


class TransferService(Extension):
    """Transfers that come in, carried out between two training runs.

    Parameters
    ----------
    config, clock, registry, session, topics, publishing, updates, learning, succession, process
        The parts that it brings together.
    installing
        Makes candidates of bundles, and knows which bundle trains.
    events
        Hears what becomes of transfers.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        registry: Registry,
        session: Session,
        topics: Topics,
        publishing: OutboundRouter,
        updates: WeightUpdates,
        learning: TrainingWorker,
        succession: Rollout,
        process: TrainerClient,
        installing: BundleInstaller,
        events: Events,
    ) -> None:
        self._config, self._session, self._topics = config, session, topics
        self._learning, self._process = learning, process
        process.bundle = installing.present
        staging = TransferStaging(
            config.storage.dir,
            max_bytes=max(config.weights.max_bytes, config.install.max_bytes),
            expire=config.weights.expire,
            clock=clock,
        )
        self._incoming = TransferReceiver(staging, acknowledge=session.ack, complete=self._received)
        self._applying = TransferInstaller(
            registry=registry,
            make={"weights": self._mixed, "model": self._model, "bundle": installing.candidate},
            bring=self._fetch,
            whole=self._incoming.whole,
            done=self._incoming.end,
            consider=succession.consider,
            notify=events.event,
            clock=clock,
        )
        transfers = TransferCommands(self._incoming, self._applying, topics)
        self._weights = WeightsCommands(
            config.weights,
            updates=updates,
            outbound=publishing,
            rollout=succession,
            transfers=transfers,
        )
        self._installs = InstallCommands(config.install, transfers, signed=bool(config.model.keys))

    def commands(self) -> dict[str, Callable[[Request], Request]]:
        """The commands with their handlers."""
        return {
            "weights.get": self._weights.get,
            "weights.apply": self._weights.apply,
            "model.install": self._installs.install_model,
            "bundle.install": self._installs.install_bundle,
        }

    def start(self) -> None:
        """Take chunks, where any are wanted; call it before the session is started."""
        if self._config.weights.accept or self._config.install.accept:
            self._session.subscribe([self._topics.incoming_weights], 1, self._incoming.receive)
            self._incoming.resume()

    def stop(self) -> None:
        """Take no more."""
        self._incoming.stop()

    def _received(self, transfer: Transfer) -> None:
        def carry_out() -> None:
            served = self._applying.apply(transfer)
            if served is not None:
                self._learning.crowned(served)

        self._learning.between(carry_out)

    def _mixed(self, run: int, transfer: Transfer, folder: Path) -> Candidate:
        return self._process.run(AdoptWeights(run, folder, bool(transfer.note.get("mix", True))))

    def _model(self, run: int, _: Transfer, folder: Path) -> Candidate:
        return self._process.run(AdoptModel(run, folder))

    def _fetch(self, transfer: Transfer) -> None:
        url = transfer.note.get("url")
        if url is not None:
            from edged.host.download import fetch  # memory that few devices need

            self._incoming.fill(transfer, fetch(url, transfer.pieces[0].size, self._config.install.timeout))
