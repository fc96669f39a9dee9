"""The commands `weights.get` and `weights.apply`: updates of weights out of the device, and into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError, RefusedError
from edged.storage.incoming import announced

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.config import WeightsConfig
    from edged.loop.applying import Applying
    from edged.loop.incoming import Incoming
    from edged.loop.updates import Update, Updates

MODES = ("full", "delta")
DTYPES = ("float32", "float16", "int8")
MISSING_TOLD = 1000


class WeightsSteering:
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
    incoming, applying
        Take what comes in.
    topic
        Where the chunks of a transfer are sent to, by its name.
    """

    def __init__(
        self,
        config: WeightsConfig,
        *,
        updates: Updates,
        send: Callable[[Update, list[int] | None], None],
        champion: Callable[[], int],
        incoming: Incoming,
        applying: Applying,
        topic: Callable[[str], str],
    ) -> None:
        self._config = config
        self._updates = updates
        self._send = send
        self._champion = champion
        self._incoming = incoming
        self._applying = applying
        self._topic = topic

    def get(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send the weights of a version, or some chunks of them, by the way that updates go.

        Takes `version` (the champion's when absent), `mode`, `dtype`, `top_k`, `base` (`last`, `bundle` or a
        version) as in section `weights`, and `chunks`, a list of numbers.

        Raises
        ------
        ConfigError
            When a field is not usable.
        EdgedError
            When there is no such version, or its weights cannot be read.
        """
        version = _version(request.get("version"), "version")
        base = request.get("base")
        wish = self._updates.wish(
            mode=_one_of(request, "mode", MODES),
            dtype=_one_of(request, "dtype", DTYPES),
            top_k=_share(request.get("top_k")),
            base=base if base in (None, "last", "bundle") else _version(base, "base"),
        )
        update = self._updates.asked(self._champion() if version is None else version, wish)
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
        mix = request.get("mix", True)
        if not isinstance(mix, bool):
            raise ConfigError(f"{mix!r} is neither true nor false", where="mix")
        transfer = announced(
            request.get("transfer"), request.get("manifest"), {"mix": mix}, self._config.max_bytes
        )
        outcome = self._applying.outcome(transfer.name, transfer.sha256)
        if outcome is not None:
            return outcome
        missing = self._incoming.begin(transfer)
        return {
            "state": "receiving" if missing else "executing",
            "transfer": transfer.name,
            "topic": self._topic(transfer.name),
            "missing": missing[:MISSING_TOLD],
        }


def _version(value: Any, where: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ConfigError(f"{value!r} is no version number", where=where)
    return value


def _one_of(request: dict[str, Any], name: str, known: tuple[str, ...]) -> str | None:
    value = request.get(name)
    if value is not None and value not in known:
        raise ConfigError(f"{value!r} is not known", where=name, remedy=f"one of {', '.join(known)}")
    return value


def _share(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"{value!r} is no share above 0 and up to 1", where="top_k")
    return float(value)


def _chunks(value: Any, count: int) -> list[int] | None:
    if value is None:
        return None
    numbers = value if isinstance(value, list) else [None]
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < count for n in numbers):
        raise ConfigError(f"expected numbers from 0 to {count - 1}", where="chunks")
    return sorted(set(numbers))
