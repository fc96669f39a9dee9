"""The commands that send weights, and that install weights, models and bundles.

What comes in comes as chunks over MQTT.
"""

from __future__ import annotations

from typing import Literal

from edged.config import Config
from edged.config.commands import InstallConfig
from edged.device.outbound.publisher import OutboundRouter
from edged.device.outbound.weight_updates import WeightUpdates
from edged.device.promotion.rollout import Rollout
from edged.device.transfers.receiver import TransferReceiver
from edged.domain.commands.rules import Answer, Request
from edged.errors import ConfigError, RefusedError
from edged.mqtt.weight_encoding import MAX_UPDATE_BYTES
from edged.storage.journal.transfers import TransferPurpose


class TransferCommands:
    """Handlers of `weights.get`, `weights.apply`, `model.install` and `bundle.install`.

    `config`: section `install`. `transfers` opens transfers that come in. `updates` makes the
    updates that are asked for. `publishing` sends them. `rollout` knows the version that serves.
    """

    def __init__(
        self,
        config: Config,
        transfers: TransferReceiver,
        updates: WeightUpdates,
        publishing: OutboundRouter,
        rollout: Rollout,
    ) -> None:
        self._config, self._transfers = config, transfers
        self._updates, self._publishing, self._rollout = updates, publishing, rollout

    def get_weights(self, request: Request) -> Answer:
        """Send the weights of a version, or some chunks of them, by the way that updates go.

        Takes `version` (the champion's when absent), `dtype` as in section `weights`, and `chunks`, a list of
        numbers. Raises ConfigError when a field is not usable; EdgedError when there is no such version, or
        its weights cannot be read.
        """
        update = self._updates.update(request.get("version") or self._rollout.champion, request.get("dtype"))
        chunks = _chunks(request.get("chunks"), len(update.chunks))
        self._publishing.update(update, chunks)
        return {
            "version": update.about.version,
            "chunks": len(update.chunks),
            "sent": len(update.chunks) if chunks is None else len(chunks),
            "manifest": {name: value for name, value in update.manifest().items() if name != "chunks"},
        }

    def apply_weights(self, request: Request) -> Answer:
        """Announce an update, or ask how it stands: which chunks are missing, or how it has ended.

        Takes `transfer`, a name that the sender chooses, and `manifest` as `weights.get` publishes it. Raises
        ConfigError when a field is not usable; RefusedError when updates are not accepted, this one is too
        large, or another is under way.
        """
        told = self._transfers.announce(
            request["transfer"], request["manifest"], TransferPurpose(), MAX_UPDATE_BYTES
        )
        return told.to_json()

    def install_bundle(self, request: Request) -> Answer:
        """Announce a bundle file, or ask how it stands.

        Takes `transfer`, a name that the sender chooses, and `manifest` (`bytes`, `sha256`, `chunks`). Raises
        ConfigError when a field is not usable; RefusedError when bundles are not accepted, this one is too
        large, or another is under way.

        With `allow_downgrade` a signed bundle may be older than one before; RefusedError unless this device
        takes the command with a signature only.
        """
        if request.get("allow_downgrade", False):
            commands = self._config.commands
            if "bundle.install" in commands.unsigned():
                raise RefusedError(
                    "counts only where this command must be signed",
                    where="allow_downgrade",
                    remedy="set commands.keys, and bundle.install in commands.require_signed",
                )
        return self._install("bundle", request)

    def install_model(self, request: Request) -> Answer:
        """Announce a model file of the network that the device has; fields and errors as for a bundle.

        Raises RefusedError also where only signed bundles are accepted.
        """
        return self._install("model", request)

    def _install(self, kind: Literal["model", "bundle"], request: Request) -> Answer:
        purpose = TransferPurpose(kind, downgrade=request.get("allow_downgrade", False))
        limit = (self._config.install or InstallConfig()).max_bytes
        return self._transfers.announce(request["transfer"], request["manifest"], purpose, limit).to_json()


def _chunks(numbers: list[int] | None, count: int) -> list[int] | None:
    if numbers is None:
        return None
    if max(numbers, default=0) >= count:
        raise ConfigError(f"expected numbers from 0 to {count - 1}", where="chunks")
    return sorted(set(numbers))
