"""Every command of the device with its handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.commands.tasks import Handler

if TYPE_CHECKING:
    from edged.device.commands.labelling import LabelCommands
    from edged.device.commands.models import ModelCommands
    from edged.device.commands.pauses import PauseCommands
    from edged.device.commands.queries import QueryCommands
    from edged.device.commands.settings import SettingsCommands
    from edged.device.commands.training import TrainingCommands
    from edged.device.commands.transfers import TransferCommands
    from edged.device.commands.wipe import WipeCommands


class CommandTable:
    """The handlers of `request/<command>`, by name in `handlers`."""

    def __init__(
        self,
        *,
        training: TrainingCommands,
        models: ModelCommands,
        labels: LabelCommands,
        pauses: PauseCommands,
        settings: SettingsCommands,
        wipe: WipeCommands,
        queries: QueryCommands,
        transfers: TransferCommands,
    ) -> None:
        self._queries = queries
        self.handlers: dict[str, Handler] = {
            "train": Handler(training.train, "later", resume=training.resume),
            "cancel": Handler(training.cancel),
            "checkpoint": Handler(training.checkpoint, "later"),
            "accept": Handler(training.accept),
            "drift.reset": Handler(training.reset_drift),
            "pause": Handler(pauses.pause),
            "resume": Handler(pauses.resume),
            "promote": Handler(models.promote),
            "rollback": Handler(models.roll_back),
            "pin": Handler(models.pin),
            "unpin": Handler(models.unpin),
            "evaluate": Handler(models.evaluate, "aside"),
            "export": Handler(models.export, "aside"),
            "label": Handler(labels.label),
            "wipe": Handler(wipe.wipe, "aside"),
            "config.get": Handler(settings.get, effect=False),
            "config.set": Handler(settings.set),
            "logs.level": Handler(settings.level),
            "status": Handler(queries.status, effect=False),
            "ping": Handler(queries.ping, effect=False),
            "capabilities": Handler(self._capabilities, effect=False),
            "weights.get": Handler(transfers.get_weights),
            "weights.apply": Handler(transfers.apply_weights),
            "model.install": Handler(transfers.install_model),
            "bundle.install": Handler(transfers.install_bundle),
        }

    def _capabilities(self, _: dict[str, Any]) -> dict[str, Any]:
        return self._queries.capabilities(self.handlers)
