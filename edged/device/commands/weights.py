"""The commands `weights.get` and `weights.apply`: updates of weights out of the device, and into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.config import WeightsConfig
    from edged.device.commands.announce import TransferCommands
    from edged.device.outbound.weight_updates import WeightUpdate, WeightUpdates


class WeightsCommands:
    """Handlers of the commands about weights.

    Parameters
    ----------
    config
        Section `weights`.
    updates
        Makes what is asked for.
    send
        Sends an update, or only its chunks of these numbers.
    champion
        The version that serves.
    transfers
        Opens those that come in.
    """

    def __init__(
        self,
        config: WeightsConfig,
        *,
        updates: WeightUpdates,
        send: Callable[[WeightUpdate, list[int] | None], None],
        champion: Callable[[], int],
        transfers: TransferCommands,
    ) -> None:
        self._config = config
        self._updates = updates
        self._send = send
        self._champion = champion
        self._transfers = transfers

    def get(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send the weights of a version, or some chunks of them, by the way that updates go.

        Takes `version` (the champion's when absent), `mode`, `dtype`, `base` (`last`, `bundle` or a version)
        as in section `weights`, and `chunks`, a list of numbers.

        Raises
        ------
        ConfigError
            When a field is not usable.
        EdgedError
            When there is no such version, or its weights cannot be read.
        """
        wish = self._updates.wish(
            mode=request.get("mode"),
            dtype=request.get("dtype"),
            base=_base(request.get("base")),
        )
        update = self._updates.asked(request.get("version") or self._champion(), wish)
        chunks = _chunks(request.get("chunks"), len(update.chunks))
        self._send(update, chunks)
        return {
            "version": update.version,
            "chunks": len(update.chunks),
            "sent": len(update.chunks) if chunks is None else len(chunks),
            "manifest": {name: value for name, value in update.manifest.items() if name != "chunks"},
        }

    def apply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Announce an update, or ask how it stands: which chunks are missing, or what became of it.

        Takes `transfer`, a name that the sender chooses, `manifest` as `weights.get` publishes it, and `mix`
        (true when absent): whether the device may mix the weights with its own.

        Raises
        ------
        ConfigError
            When a field is not usable.
        RefusedError
            When updates are not taken, this one is too large, or another is under way.
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
