"""The commands `weights.get` and `weights.apply`: publish updates of weights, and receive them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from edged.config import WeightsConfig
    from edged.device.commands.announce import TransferCommands
    from edged.device.outbound.publisher import OutboundRouter
    from edged.device.outbound.weight_updates import WeightUpdates
    from edged.device.promotion.rollout import Rollout


class WeightsCommands:
    """`weights.get` and `weights.apply`: publish updates of weights, and open transfers of them.

    Parameters
    ----------
    config
        Section `weights`.
    updates
        Builds the updates.
    outbound
        Publishes the updates.
    rollout
        Knows the version that serves.
    transfers
        Opens transfers of received updates.
    """

    def __init__(
        self,
        config: WeightsConfig,
        *,
        updates: WeightUpdates,
        outbound: OutboundRouter,
        rollout: Rollout,
        transfers: TransferCommands,
    ) -> None:
        self._config = config
        self._updates = updates
        self._outbound = outbound
        self._rollout = rollout
        self._transfers = transfers

    def get(self, request: dict[str, Any]) -> dict[str, Any]:
        """Publish the weights of a version, or some chunks of them.

        Takes `version` (the current one by default), `mode`, `dtype`, `base` (`last`, `bundle` or a version)
        as in section `weights`, and `chunks`, a list of numbers.

        Raises
        ------
        ConfigError
            When a field is not valid.
        EdgedError
            When there is no such version, or its weights cannot be read.
        """
        wish = self._updates.wish(
            mode=request.get("mode"),
            dtype=request.get("dtype"),
            base=_base(request.get("base")),
        )
        update = self._updates.asked(request.get("version") or self._rollout.champion, wish)
        chunks = _chunks(request.get("chunks"), len(update.chunks))
        self._outbound.update(update, chunks)
        return {
            "version": update.version,
            "chunks": len(update.chunks),
            "sent": len(update.chunks) if chunks is None else len(chunks),
            "manifest": {name: value for name, value in update.manifest.items() if name != "chunks"},
        }

    def apply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Announce an update or report its state: which chunks are missing, or its outcome.

        Takes `transfer`, a name that the sender chooses, `manifest` as `weights.get` publishes it, and `mix`
        (true by default): whether the device may mix the weights with its own.

        Raises
        ------
        ConfigError
            When a field is not valid.
        RefusedError
            When updates are not accepted, this one is too large, or another transfer is open.
        """
        if not self._config.accept:
            raise RefusedError("this device takes no weights", where="weights.accept")
        note = {"mix": request.get("mix", True)}
        return self._transfers.announce(
            request["transfer"], request["manifest"], note, self._config.max_bytes
        )


def _base(value: Any) -> str | int | None:
    if value in (None, "last", "bundle") or (isinstance(value, int) and not isinstance(value, bool)):
        base: str | int | None = value
        return base
    raise ConfigError(f"{value!r} is no version number", where="base", remedy="or last, or bundle")


def _chunks(numbers: list[int] | None, count: int) -> list[int] | None:
    if numbers is None:
        return None
    if max(numbers, default=0) >= count:
        raise ConfigError(f"expected numbers from 0 to {count - 1}", where="chunks")
    return sorted(set(numbers))
